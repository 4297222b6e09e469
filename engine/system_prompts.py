"""Which system prompts' KV is held, told to gateways by short names.

Chats that begin with one system prompt share its blocks. A gateway that knows which
workers hold them sends a new chat there. It can't tokenise, so the short name is made of
the text.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.block_manager import BlockManager
from engine.contract import Message, leading_system, system_tag

# Prompts remembered, and named in a heartbeat; the one not used for longest goes first.
MAX_PROMPTS = 64
# Shorter ones aren't worth a detour.
LEAST_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class SystemPrompt:
    """What a request's prompt shares with others of its tenant.

    Attributes:
        tag: As `system_tag` makes it.
        num_blocks: Whole KV blocks that hold nothing else.
    """

    tag: str
    num_blocks: int


class SystemPromptSizes:
    """Tells how many blocks of a prompt are its system prompt's. Thread-safe.

    Each system prompt is tokenised once more for it, and then remembered.

    Args:
        encode_chat: Renders and tokenises turns; thread-safe.
        block_size: Tokens a block holds.
    """

    def __init__(
        self, encode_chat: Callable[[tuple[Message, ...]], list[int]], block_size: int
    ) -> None:
        self._encode_chat = encode_chat
        self._block_size = block_size
        self._lock = threading.Lock()
        self._num_tokens: OrderedDict[str, int] = OrderedDict()

    def of(
        self, model: str, tenant: str, messages: tuple[Message, ...], tokens: Sequence[int]
    ) -> SystemPrompt | None:
        """The system prompt of a request; None if it has none worth telling of.

        Args:
            model: The model's name.
            tenant: Whose request.
            messages: Its turns.
            tokens: The same, tokenised.
        """
        if len(tokens) < LEAST_BLOCKS * self._block_size:
            return None
        tag = system_tag(model, tenant, messages)
        if tag is None:
            return None
        with self._lock:
            num_tokens = self._num_tokens.get(tag)
            if num_tokens is not None:
                self._num_tokens.move_to_end(tag)
        if num_tokens is None:
            num_tokens = self._measure(messages, tokens)
            with self._lock:
                self._num_tokens[tag] = num_tokens
                if len(self._num_tokens) > MAX_PROMPTS:
                    self._num_tokens.popitem(last=False)
        num_blocks = num_tokens // self._block_size
        return SystemPrompt(tag, num_blocks) if num_blocks >= LEAST_BLOCKS else None

    def _measure(self, messages: tuple[Message, ...], tokens: Sequence[int]) -> int:
        """Tokens that are the same whatever the first turn after the system prompt says."""
        system = leading_system(messages)
        shared = len(tokens)
        # Two endings, so that neither's first letter joins the system prompt by chance.
        for ending in ("0", "\u00e9"):
            other = self._encode_chat((*system, Message("user", ending)))
            both = zip(tokens[:shared], other, strict=False)
            shared = next((i for i, (a, b) in enumerate(both) if a != b), min(shared, len(other)))
        return shared


class SystemPrompts:
    """The latest system prompts of the engine's requests, and what is held of them."""

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        self._names: OrderedDict[str, tuple[bytes, ...]] = OrderedDict()

    def note(self, prompt: SystemPrompt, block_names: Sequence[bytes]) -> None:
        """A request with this system prompt was taken."""
        self._names[prompt.tag] = tuple(block_names[: prompt.num_blocks])
        self._names.move_to_end(prompt.tag)
        if len(self._names) > MAX_PROMPTS:
            self._names.popitem(last=False)

    def held(self) -> dict[str, int]:
        """Tokens that can be found, by tag."""
        counts = {tag: self._blocks.num_held(names) for tag, names in self._names.items()}
        return {
            tag: count * self._blocks.block_size
            for tag, count in counts.items()
            if count >= LEAST_BLOCKS
        }
