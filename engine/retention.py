"""Which conversations' KV is kept by preference between their turns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from engine.block_manager import BlockManager
from engine.contract import conversation_tag
from engine.invariant_error import require

# Conversations that a heartbeat names: the latest.
MAX_PUBLISHED = 256


@dataclass(frozen=True, slots=True)
class _Kept:
    """One conversation's prefix: its blocks' names, and until when it is kept, seconds."""

    names: tuple[bytes, ...]
    expires_at: float


class Retention:
    """The latest prefix of each conversation, kept for a while and within a share.

    Keeping is a preference: blocks that are kept are free, and handed out when there
    are no others. So nothing that runs ever waits for a conversation that may not go
    on.

    Args:
        blocks: The pool.
        max_blocks: Names kept in all; the conversation longest unused gives way.
        ttl_s: How long one is kept after its last turn.
    """

    def __init__(self, blocks: BlockManager, max_blocks: int, ttl_s: float) -> None:
        self._blocks = blocks
        self._max_blocks = max_blocks
        self._ttl_s = ttl_s
        # In order of their last turn, so of their expiry too.
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, conversation_id: str, names: Sequence[bytes], now: float) -> None:
        """Keep a conversation's prefix in place of its last one.

        Args:
            conversation_id: Whose.
            names: Names of its blocks from the first on; what exceeds the share is left
                out.
            now: Seconds on the engine's clock.
        """
        kept = _Kept(tuple(names[: self._max_blocks]), now + self._ttl_s)
        # First the new, then the old: what both have is never let go.
        self._blocks.keep(kept.names)
        self.release(conversation_id)
        self._kept[conversation_id] = kept
        while self._blocks.num_kept > self._max_blocks:
            self.release(next(iter(self._kept)))

    def release(self, conversation_id: str) -> None:
        """Keep one no longer; unknown ids are ignored."""
        kept = self._kept.pop(conversation_id, None)
        if kept is not None:
            self._blocks.unkeep(kept.names)

    def expire(self, now: float) -> None:
        """Let those go whose time is over."""
        while self._kept:
            conversation_id, kept = next(iter(self._kept.items()))
            if kept.expires_at > now:
                return
            self.release(conversation_id)

    def held(self) -> dict[str, int]:
        """Tokens that can be found, by `conversation_tag`, of the latest conversations."""
        held = {}
        for conversation_id in list(reversed(self._kept))[:MAX_PUBLISHED]:
            num_blocks = self._blocks.num_held(self._kept[conversation_id].names)
            if num_blocks:
                held[conversation_tag(conversation_id)] = num_blocks * self._blocks.block_size
        return held

    def check(self) -> None:
        """Compare with the pool.

        Raises:
            InvariantError: saying what disagrees.
        """
        names = {name for kept in self._kept.values() for name in kept.names}
        require(len(names) == self._blocks.num_kept, "kept names differ from the pool's")
        require(len(names) <= self._max_blocks, f"{len(names)} blocks kept")
