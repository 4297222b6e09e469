"""Who makes room for whom."""

from __future__ import annotations

from engine.batch import Batch
from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.contract import Tier
from engine.sequence import Sequence, Status
from engine.waiting import WaitingQueue


class Suspension:
    """Gives all blocks of running sequences back and lets them wait again.

    A suspended sequence keeps its old place (batch work gets a new one); its tokens are
    computed again later, or found in the prefix cache. For want of blocks the lowest
    tier's latest arrival goes; a VIP also suspends lower tiers for a slot. After
    `max_suspensions` a sequence is resumed only when its whole answer can grow beside
    the others that are protected so, and is then left alone.

    Args:
        config: The engine's.
        blocks: The pool.
        batch: Where sequences are suspended.
        queue: Where they wait again.

    Attributes:
        count: Suspensions since the start.
    """

    def __init__(
        self, config: EngineConfig, blocks: BlockManager, batch: Batch, queue: WaitingQueue
    ) -> None:
        self._max_running = config.max_running
        self._blocks = blocks
        self._batch = batch
        self._queue = queue
        self.count = 0

    def reserve_decodes(self, now: float) -> None:
        """Give every decoding sequence the block its next token needs."""
        for seq in sorted(self._batch.running, key=_rank_order):
            if seq.status is not Status.RUNNING or seq.num_uncomputed != 1:
                continue
            missing = self._blocks.blocks_for(len(seq.tokens)) - len(seq.block_table)
            while missing > self._blocks.num_free:
                victim = self._victim()
                self.suspend(victim, now)
                victim.num_evictions += 1
                if victim is seq:
                    break
            else:
                if missing > 0:
                    seq.block_table += self._blocks.allocate(missing)

    def _victim(self) -> Sequence:
        """Whom to suspend for want of blocks: lowest tier, latest arrival."""
        batch = self._batch
        return max(batch.running, key=lambda seq: (not batch.is_protected(seq), *_rank_order(seq)))

    def suspend(self, seq: Sequence, now: float) -> None:
        """Let a running sequence wait again."""
        self._batch.leave(seq)
        seq.num_suspensions += 1
        seq.enqueued_at = now
        if seq.request.tier is Tier.BATCH:
            # Back in its old place it would hold up whoever comes before it by tier.
            seq.place_at = now
        self._queue.insert(seq)
        self.count += 1

    def for_start(self, seq: Sequence, least_rank: int) -> list[Sequence]:
        """The fewest sequences whose going lets `seq` in; none if that can't do.

        Args:
            seq: Waiting.
            least_rank: Who runs in this rank or a lower one may be suspended.
        """
        victims = sorted(
            (
                other
                for other in self._batch.running
                if other.rank >= least_rank and not self._batch.is_protected(other)
            ),
            key=_rank_order,
            reverse=True,
        )
        needed = self._blocks.blocks_for(len(seq.tokens)) - len(self._batch.cached_blocks(seq))
        gained = 0
        staying = list(self._batch.running)
        for i, victim in enumerate(victims, start=1):
            gained += self._blocks.num_sole_references(victim.block_table)
            staying.remove(victim)
            room = self._blocks.num_free + gained
            fits = room >= needed + self._batch.headroom(seq, staying)
            if fits and len(staying) < self._max_running:
                return victims[:i]
        return []


def _rank_order(seq: Sequence) -> tuple[int, int]:
    return (seq.rank, seq.id)
