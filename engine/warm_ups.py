"""Prompts computed while they are still being typed, in time that nobody else needs."""

from __future__ import annotations

from dataclasses import dataclass

from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.sequence import Sequence
from engine.step import Work
from engine.swaps import Swaps

# One that was not renewed for this long is given up: the person went away.
TTL_S = 30.0
# Live at once; one more ends the oldest.
MAX_WARM_UPS = 64
# Tenants remembered before those whose allowance is whole again are forgotten.
_MAX_TENANTS = 1024


@dataclass(slots=True)
class WarmUpCounts:
    """Totals since start."""

    warm_ups: int = 0
    tokens: int = 0


@dataclass(slots=True)
class _WarmUp:
    """One conversation's.

    Attributes:
        sequence: The prompt's certain part, whole blocks of it; it never samples.
        expires_at: Seconds on the engine's clock.
        num_left: Tokens that may still be computed for it. Under pressure its blocks
            can be lost between two steps, and it must not begin again for ever.
    """

    sequence: Sequence
    expires_at: float
    num_left: int


class WarmUps:
    """The live warm-ups, one a conversation.

    A warm-up refers to blocks only during a step: what a step computed is named and
    released at once, and the next one finds it again. So it never stands in the way of
    an admission, there is nothing to suspend, and ending it is forgetting it.

    Args:
        config: The engine's.
        blocks: The pool.
        swaps: Brings back what left the pool.
    """

    def __init__(self, config: EngineConfig, blocks: BlockManager, swaps: Swaps) -> None:
        self._blocks = blocks
        self._swaps = swaps
        self._block_size = config.block_size
        self._enabled = config.prefix_cache
        self._allowance = _Allowance(config.warm_tokens_per_minute)
        self._live: dict[str, _WarmUp] = {}
        self._in_step: Sequence | None = None
        self.counts = WarmUpCounts()

    def __len__(self) -> int:
        return len(self._live)

    def is_in_step(self, seq: Sequence) -> bool:
        """Whether the running step computes a piece of this warm-up."""
        return seq is self._in_step

    @property
    def tables(self) -> list[list[int]]:
        """Block tables of those in the running step."""
        return [] if self._in_step is None else [self._in_step.block_table]

    def add(self, conversation_id: str, seq: Sequence, now: float) -> None:
        """Begin one, in place of the conversation's last.

        Args:
            conversation_id: Whose.
            seq: Its tokens, a whole number of blocks, all named.
            now: Seconds on the engine's clock.
        """
        self._live.pop(conversation_id, None)
        if not self._enabled or self._num_held(seq) == len(seq.block_names):
            return
        while len(self._live) >= MAX_WARM_UPS:
            del self._live[next(iter(self._live))]
        self._live[conversation_id] = _WarmUp(seq, now + TTL_S, len(seq.tokens))
        self.counts.warm_ups += 1

    def end(self, conversation_id: str) -> None:
        """Stop one; what it computed stays in the prefix cache."""
        self._live.pop(conversation_id, None)

    def clear(self) -> None:
        """Stop all."""
        self._live.clear()

    def schedule(self, now: float, num_spare: int) -> Work | None:
        """The next piece of the first that can go on; those that can't are given up.

        Args:
            now: Seconds on the engine's clock.
            num_spare: Tokens that the step has room for.
        """
        for conversation_id, warm_up in list(self._live.items()):
            if now >= warm_up.expires_at:
                del self._live[conversation_id]
                continue
            if num_spare < self._block_size:
                continue
            work = self._piece(warm_up, now, num_spare)
            if work is not None:
                return work
            del self._live[conversation_id]
        return None

    def _piece(self, warm_up: _WarmUp, now: float, num_spare: int) -> Work | None:
        seq = warm_up.sequence
        hits = self._blocks.match(seq.block_names)
        missing = seq.block_names[len(hits) :]
        num_back = self._swaps.num_in_reach(missing)
        num_free = self._blocks.num_free - self._blocks.num_free_among(hits) - num_back
        most = min(num_spare, warm_up.num_left, self._allowance.left(seq.request.tenant, now))
        count = min(len(missing) - num_back, most // self._block_size, num_free)
        if count <= 0:
            return None
        self._blocks.acquire(hits)
        fresh = self._blocks.allocate(num_back + count)
        seq.block_table = hits + fresh
        # Packing may have pushed some out since.
        num_found = self._swaps.bring_back(missing[:num_back], fresh)
        surplus = seq.block_table[len(hits) + num_found + count :]
        del seq.block_table[len(hits) + num_found + count :]
        self._blocks.release(surplus)
        num_tokens = count * self._block_size
        warm_up.num_left -= num_tokens
        self._allowance.take(seq.request.tenant, num_tokens, now)
        self._in_step = seq
        start = (len(hits) + num_found) * self._block_size
        return Work(seq, start=start, num_tokens=num_tokens, samples=False)

    def computed(self, item: Work) -> None:
        """Take in a piece that ran: others may find it from now on."""
        seq = item.sequence
        for block, name in zip(seq.block_table, seq.block_names, strict=False):
            self._blocks.name(block, name)
        self.counts.tokens += item.num_tokens
        self._release(seq)

    def failed(self, item: Work) -> None:
        """Give one up whose piece didn't run."""
        self._release(item.sequence)
        for conversation_id, warm_up in list(self._live.items()):
            if warm_up.sequence is item.sequence:
                del self._live[conversation_id]

    def _release(self, seq: Sequence) -> None:
        self._blocks.release(seq.block_table)
        seq.block_table = []
        self._in_step = None

    def _num_held(self, seq: Sequence) -> int:
        return len(self._blocks.match(seq.block_names))


class _Allowance:
    """Tokens that each tenant's warm-ups may compute: so many a minute.

    Args:
        per_minute: Also what can be taken at once.
    """

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        # Tenant to (tokens taken and not yet made good, when that was so).
        self._taken: dict[str, tuple[float, float]] = {}

    def left(self, tenant: str, now: float) -> int:
        """Tokens that a tenant may take now."""
        return int(self._per_minute - self._owed(tenant, now))

    def take(self, tenant: str, num_tokens: int, now: float) -> None:
        """Count tokens."""
        self._taken[tenant] = (self._owed(tenant, now) + num_tokens, now)
        if len(self._taken) > _MAX_TENANTS:
            self._taken = {
                name: entry for name, entry in self._taken.items() if self._owed(name, now) > 0
            }

    def _owed(self, tenant: str, now: float) -> float:
        taken, since = self._taken.get(tenant, (0.0, now))
        return max(0.0, taken - (now - since) * self._per_minute / 60)
