"""Prepared requests and drafts become sequences."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from engine.config import EngineConfig
from engine.contract import EngineFault, GenerateRequest, Progress, SamplingParams, Tier, Warm
from engine.preparer import Prepared, PreparedWarmUp
from engine.sequence import Sequence
from engine.text_stream import TextStream

logger = logging.getLogger(__name__)


class Vocabulary(Protocol):
    """What the engine needs of a tokenizer to turn tokens into text."""

    @property
    def eos_ids(self) -> Iterable[int]:
        """Tokens that end a turn."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The token's bytes; b"" for a control token."""
        ...


class Intake:
    """Makes sequences, numbered in order of arrival.

    Args:
        config: The engine's.
        vocabulary: Bytes of tokens, and which end a turn.
        max_sequence_tokens: Prompt and answer together.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        config: EngineConfig,
        vocabulary: Vocabulary,
        max_sequence_tokens: int,
        clock: Callable[[], float],
    ) -> None:
        self._flush_s = config.flush_ms / 1000
        self._token_bytes = vocabulary.token_bytes
        self._eos_ids = frozenset(vocabulary.eos_ids)
        self._max_sequence_tokens = max_sequence_tokens
        self._clock = clock
        self._num_made = 0

    def request(self, prepared: Prepared) -> Sequence:
        """The sequence of a request.

        One that another engine began goes on as a suspended one does: its tokens are
        computed again, or found in the prefix cache, and its text goes on after what
        was sent.

        Raises:
            EngineFault: this engine's text of the tokens is another than what was sent.
        """
        sampling = prepared.request.sampling
        progress = prepared.request.progress
        made = progress.tokens if progress is not None else ()
        num_prompt_tokens = len(prepared.tokens)
        limit = self._max_sequence_tokens
        if sampling.max_tokens is not None:
            limit = min(limit, num_prompt_tokens + sampling.max_tokens)
        stop_ids = frozenset(sampling.stop_token_ids)
        now = self._clock()
        stream = TextStream(self._token_bytes, sampling.stop, self._flush_s)
        if progress is not None:
            _replay(stream, progress, now)
        return Sequence(
            id=self._next_id(),
            request=prepared.request,
            tokens=[*prepared.tokens, *made],
            num_prompt_tokens=num_prompt_tokens,
            max_tokens=limit,
            seed=prepared.seed,
            end_ids=stop_ids if sampling.ignore_eos else stop_ids | self._eos_ids,
            masked_ids=tuple(sorted(stop_ids | self._eos_ids)),
            block_names=list(prepared.block_names),
            root_name=prepared.root_name,
            stream=stream,
            arrived_at=now,
            enqueued_at=now,
            next_seq=progress.next_seq if progress is not None else 0,
            num_told=num_prompt_tokens + len(made),
        )

    def warm_up(self, prepared: PreparedWarmUp) -> Sequence:
        """The sequence of a draft, which never samples."""
        now = self._clock()
        return Sequence(
            id=self._next_id(),
            request=_warm_request(prepared.warm),
            tokens=prepared.tokens,
            num_prompt_tokens=len(prepared.tokens),
            max_tokens=len(prepared.tokens) + 1,
            seed=0,
            end_ids=self._eos_ids,
            masked_ids=(),
            block_names=prepared.block_names,
            root_name=prepared.root_name,
            stream=TextStream(self._token_bytes, (), 0.0),
            arrived_at=now,
            enqueued_at=now,
        )

    def _next_id(self) -> int:
        self._num_made += 1
        return self._num_made


def _replay(stream: TextStream, progress: Progress, now: float) -> None:
    """Bring a fresh stream to where another engine's was."""
    for token in progress.tokens:
        stream.push(token, now)
        if stream.stopped:
            break
    try:
        stream.skip(progress.num_chars, progress.num_tokens)
    except ValueError as error:
        logger.error("another engine's answer can't go on here: %s", error)
        raise EngineFault("The engine failed on this request.") from error


def _warm_request(warm: Warm) -> GenerateRequest:
    """The request behind a warm-up's sequence, which nobody answers."""
    return GenerateRequest(
        request_id=f"warm-up of {warm.conversation_id}",
        model=warm.model,
        messages=warm.messages,
        sampling=SamplingParams(),
        tier=Tier.BATCH,
        tenant=warm.tenant,
        conversation_id=warm.conversation_id,
        reply_to="",
        created_at=warm.created_at,
        deadline_at=float("inf"),
    )
