"""Who comes from the queue into the batch."""

from __future__ import annotations

from engine.batch import Batch
from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.contract import Tier
from engine.sequence import Sequence
from engine.step_budget import StepBudget
from engine.suspension import Suspension
from engine.swaps import Swaps
from engine.waiting import WaitingQueue

# A batch may always grow until its step takes this many times that of the smallest.
_BATCH_STRETCH = 4.0
# Blocks for so many VIPs, but no larger share of all, stay free for a while after one.
_NUM_VIPS_AHEAD = 4
_MOST_RESERVED = 0.125
_VIP_MEMORY_S = 10.0
_NEW_SHARE = 0.1
# Parts of the ageing time after which a standard request that hasn't started goes before
# all others, and after which others make room for it.
_FIRST_IN_LINE = 0.6
_MAKES_ROOM = 0.8
# Ageing protects at most this share of the batch from VIPs.
_MOST_AGED = 0.25


class Admission:
    """Moves sequences into the batch as far as blocks and step time go.

    The head of the queue is never passed for want of blocks, except by a VIP that makes
    its own room.

    Args:
        config: The engine's.
        blocks: The pool.
        budget: Measured step times.
        queue: Who waits.
        batch: Who runs.
        suspension: Makes room for VIPs.
        swaps: Brings back what left the pool.

    Attributes:
        num_admitted: Since the start, those that came back included.
        num_cached_tokens: Tokens found in the prefix cache at first admission.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        blocks: BlockManager,
        budget: StepBudget,
        queue: WaitingQueue,
        batch: Batch,
        suspension: Suspension,
        swaps: Swaps,
    ) -> None:
        self._config = config
        self._blocks = blocks
        self._budget = budget
        self._queue = queue
        self._batch = batch
        self._suspension = suspension
        self._swaps = swaps
        self.num_admitted = 0
        self.num_cached_tokens = 0
        # Blocks that a VIP takes at its start, on average, and when the last one came.
        self._vip_blocks = 0.0
        self._vip_at = float("-inf")

    def admit(self, now: float) -> None:
        """Move sequences from the queue into the batch."""
        if not self._admit_overdue(now):
            # What becomes free is theirs.
            return
        first = self._queue.due(now, _FIRST_IN_LINE)
        if all(self._has_slot() and self._try_admit(seq, now) for seq in first):
            while self._queue and len(self._batch.running) < self._max_running():
                if not self._try_admit(self._queue.sequences[0], now):
                    break
        for seq in [seq for seq in self._queue if seq.request.tier is Tier.VIP]:
            if not self._admit_vip(seq, now):
                break

    def _has_slot(self) -> bool:
        return len(self._batch.running) < self._config.max_running

    def _admit_overdue(self, now: float) -> bool:
        """Let those in who must start now, at the cost of their own tier or a lower."""
        for seq in self._queue.due(now, _MAKES_ROOM):
            if not (self._has_slot() and self._try_admit(seq, now, reserve=0)):
                victims = self._suspension.for_start(seq, seq.tier_rank)
                if not self._replace(victims, seq, now):
                    return False
        return True

    def _admit_vip(self, seq: Sequence, now: float) -> bool:
        """Suspend whom it takes to let a VIP in.

        It waits first for as long as they would take to compute again: often somebody
        ends meanwhile, and at worst it waits about as long as it would have cost.
        """
        victims = self._suspension.for_start(seq, seq.tier_rank + 1)
        token_ms = self._budget.prompt_token_ms or 0.0
        lost_s = sum(victim.num_computed for victim in victims) * token_ms / 1000
        return now - seq.enqueued_at >= lost_s and self._replace(victims, seq, now)

    def _max_running(self) -> int:
        """Sequences that may run now, as far as the time of their steps goes.

        A VIP comes in beyond that.
        """
        num_running = len(self._batch.running)
        more_ms = self._budget.decode_ms(num_running + 1)
        least_ms = self._budget.decode_ms(1)
        if more_ms is None or least_ms is None:
            return self._config.max_running
        limit_ms = max(self._config.target_step_ms, _BATCH_STRETCH * least_ms)
        most = num_running + 1 if more_ms <= limit_ms else num_running
        return min(most, self._config.max_running)

    def _try_admit(self, seq: Sequence, now: float, reserve: int | None = None) -> bool:
        """Admit `seq` if its known tokens fit and leave room for the others to grow.

        `reserve` blocks more stay free; as many as the next VIPs may need where it is None.
        """
        hits = self._batch.cached_blocks(seq)
        needed = self._blocks.blocks_for(len(seq.tokens)) - len(hits)
        left = self._blocks.num_free - self._blocks.num_free_among(hits) - needed
        running = self._batch.running
        if reserve is None:
            reserve = 0 if seq.request.tier is Tier.VIP or not running else self._vip_reserve(now)
        if left < self._batch.headroom(seq, running) + reserve:
            return False
        if seq.request.tier is Tier.VIP:
            self._vip_blocks += _NEW_SHARE * (needed - self._vip_blocks)
            self._vip_at = now
        self._start(seq, hits, needed, now)
        return True

    def _start(self, seq: Sequence, hits: list[int], needed: int, now: float) -> None:
        self._blocks.acquire(hits)
        fresh = self._blocks.allocate(needed)
        num_whole = (len(seq.tokens) - 1) // self._blocks.block_size
        num_back = self._swaps.bring_back(seq.block_names[len(hits) : num_whole], fresh)
        seq.num_computed = (len(hits) + num_back) * self._blocks.block_size
        seq.num_named = len(hits)
        if seq.cached_tokens is None:
            seq.cached_tokens = seq.num_computed
            self.num_cached_tokens += seq.num_computed
        if seq.started_at is None:
            seq.started_at = now
        seq.rank = self._rank(seq, now)
        seq.served_at = now
        self._queue.remove(seq)
        self._batch.join(seq, hits + fresh)
        self.num_admitted += 1

    def _vip_reserve(self, now: float) -> int:
        """Blocks left free for the next VIPs, while there are some: cheaper than to suspend."""
        if now - self._vip_at > _VIP_MEMORY_S:
            return 0
        most = int(_MOST_RESERVED * self._blocks.num_blocks)
        return min(int(_NUM_VIPS_AHEAD * self._vip_blocks), most)

    def _rank(self, seq: Sequence, now: float) -> int:
        """The tier in which a sequence starts: its own, or higher after a long wait."""
        running = self._batch.running
        waited_s = now - seq.enqueued_at
        aged = max(0, seq.tier_rank - int(waited_s / self._queue.ageing_s))
        num_aged = sum(other.rank < other.tier_rank for other in running)
        # Else a queue of aged requests would fill the batch, and VIPs find no victim.
        if num_aged >= max(_MOST_AGED * len(running), 1):
            return seq.tier_rank
        return aged

    def _replace(self, victims: list[Sequence], seq: Sequence, now: float) -> bool:
        for victim in victims:
            self._suspension.suspend(victim, now)
        return bool(victims) and self._try_admit(seq, now, reserve=0)
