"""A request on its way in: rendered, tokenised, checked, its prefix named."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from engine.config import EngineConfig
from engine.contract import (
    ContextLengthExceeded,
    GenerateRequest,
    InvalidRequest,
    Message,
    ModelCard,
    NotFound,
    Warm,
)
from engine.contract.sampling import MAX_SEED
from engine.drafts import stable_tokens
from engine.prefix_cache import extend_names, root_name
from engine.system_prompts import SystemPrompt, SystemPromptSizes
from engine.turn_memo import TurnMemo


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that fits: tokenised, checked, its prefix named.

    Attributes:
        request: What was asked for.
        tokens: The prompt; not empty.
        block_names: Names of the full blocks of the prompt and of what was made already.
        root_name: Parent of the first block.
        seed: The request's, or one drawn for it.
        system: What it shares with other chats; None for nothing worth telling of.
    """

    request: GenerateRequest
    tokens: list[int]
    block_names: list[bytes]
    root_name: bytes
    seed: int
    system: SystemPrompt | None = None


@dataclass(frozen=True, slots=True)
class PreparedWarmUp:
    """The part of a prompt that is certain before its last turn is typed.

    Attributes:
        warm: What was asked for.
        tokens: Whole blocks of the prompt; may be empty.
        block_names: Their names.
        root_name: Parent of the first block.
    """

    warm: Warm
    tokens: list[int]
    block_names: list[bytes]
    root_name: bytes


class Preparer:
    """Prepares requests, on any thread and on many at once.

    Args:
        config: The engine's.
        card: The model's.
        encode_chat: Renders and tokenises the turns of a request; thread-safe.
        memo: Its `recall` is given to `encode_chat`, tenant by tenant; None for an
            `encode_chat` that takes none.
    """

    def __init__(
        self,
        config: EngineConfig,
        card: ModelCard,
        encode_chat: Callable[..., list[int]],
        memo: TurnMemo | None = None,
    ) -> None:
        self._config = config
        self._card = card
        self._encode_chat = encode_chat
        self._memo = memo
        self._system_sizes = SystemPromptSizes(encode_chat, config.block_size)

    @property
    def max_sequence_tokens(self) -> int:
        """Prompt and answer together: the model's window, or the whole KV pool."""
        return min(self._card.context_window, self._config.num_kv_tokens)

    def prepare(self, request: GenerateRequest) -> Prepared:
        """Tokenise and check a request. Thread-safe; takes CPU time in proportion to it.

        Raises:
            NotFound: for another model.
            ContextLengthExceeded: where the prompt leaves no room for an answer.
            InvalidRequest: for token ids outside the vocabulary.
        """
        self._check_model(request.model)
        request.sampling.check_vocabulary(self._card.vocab_size)
        self._check_size(request.messages)
        tokens = self._encoder(request.tenant)(request.messages)
        if not tokens:
            raise InvalidRequest("messages must render to at least one token.", param="messages")
        if len(tokens) >= self.max_sequence_tokens:
            raise self._too_long(f"{len(tokens)} tokens")
        root = root_name(self._card.id, request.tenant)
        names: list[bytes] = []
        if self._config.prefix_cache:
            made = request.progress.tokens if request.progress is not None else ()
            extend_names(names, root, [*tokens, *made], self._config.block_size)
        system = self._system_sizes.of(self._card.id, request.tenant, request.messages, tokens)
        seed = request.sampling.seed
        return Prepared(
            request=request,
            tokens=tokens,
            block_names=names,
            root_name=root,
            seed=secrets.randbelow(MAX_SEED + 1) if seed is None else seed,
            system=system if self._config.prefix_cache else None,
        )

    def prepare_warm_up(self, warm: Warm) -> PreparedWarmUp:
        """Tokenise what is certain of a draft. Thread-safe; costs two tokenisings.

        Raises:
            NotFound: for another model.
            ContextLengthExceeded: where the prompt leaves no room for an answer.
            InvalidRequest: for turns that can't be rendered.
        """
        self._check_model(warm.model)
        self._check_size((*warm.messages, Message("user", warm.draft)))
        tokens = stable_tokens(self._encoder(warm.tenant), warm.messages, warm.draft)
        root = root_name(self._card.id, warm.tenant)
        names: list[bytes] = []
        extend_names(names, root, tokens, self._config.block_size)
        return PreparedWarmUp(warm, tokens[: len(names) * self._config.block_size], names, root)

    def _encoder(self, tenant: str) -> Callable[[tuple[Message, ...]], list[int]]:
        if self._memo is None:
            return self._encode_chat
        return partial(self._encode_chat, recall=self._memo.of(tenant))

    def _check_model(self, model: str) -> None:
        if model != self._card.id:
            raise NotFound(
                f"model must be {self._card.id!r}, got {model!r:.80}.",
                param="model",
                code="model_not_found",
            )

    def _check_size(self, messages: tuple[Message, ...]) -> None:
        """Refuse what can't fit without tokenising it."""
        num_bytes = sum(len(message.content.encode()) for message in messages)
        least = -(-num_bytes // self._card.max_token_bytes)
        if least >= self.max_sequence_tokens:
            raise self._too_long(f"at least {least} tokens")

    def _too_long(self, length: str) -> ContextLengthExceeded:
        return ContextLengthExceeded(
            f"messages must leave room for an answer in the context window of "
            f"{self.max_sequence_tokens} tokens, got {length}.",
            param="messages",
        )
