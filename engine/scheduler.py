"""Who runs in the next step, with how many tokens.

The whole policy is here. Every step, running sequences decode first; what is left
of the step's token budget goes to pieces of prompts. The budget follows measured
step time, the batch follows free blocks, and neither is a constant.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from engine.admission import WaitEstimator
from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.contract import Tier
from engine.fair_share import FairShare
from engine.host_tier import HostTier
from engine.prompt_pieces import prompt_pieces
from engine.sequence import Sequence, Status
from engine.speculation import Speculation
from engine.step import StepPlan, Work
from engine.step_budget import StepBudget
from engine.swaps import Swaps
from engine.warm_ups import WarmUps

# A batch may always grow until its step takes this many times that of the smallest.
_BATCH_STRETCH = 4.0
# Ageing times by which each tier stands behind vip in the queue.
_TIER_AGES = {Tier.VIP: 0, Tier.STANDARD: 1, Tier.BATCH: 3}
# A request falls back behind other tenants' by at most this share of the ageing time.
_FAIR_SHARE_OF_AGEING = 0.5
# Blocks for so many VIPs, but no larger share of all, stay free for a while after one.
_NUM_VIPS_AHEAD = 4
_MOST_RESERVED = 0.125
_VIP_MEMORY_S = 10.0
_NEW_SHARE = 0.1
# Ageing protects at most this share of the batch from VIPs.
_MOST_AGED = 0.25


@dataclass(slots=True)
class SchedulerCounts:
    """Totals since start."""

    admissions: int = 0
    suspensions: int = 0
    cached_tokens: int = 0


class Scheduler:
    """Waiting and running sequences, and the blocks they hold.

    Order of waiting: a sequence's place is its arrival, plus `ageing_ms` for standard
    and three times that for batch, so a higher tier passes a lower one, but not one
    that has waited so much longer. Within a tier, tenants take turns by `FairShare`; a tenant's
    own requests are first come, first served. The head of the queue is never passed
    for want of blocks, except by a VIP that makes its own room.

    Suspension gives all blocks of a running sequence back and puts it into the queue
    again at its old place (batch work at a new one); its tokens are computed again
    later, or found in the prefix cache. For want of blocks the lowest tier's latest
    arrival goes; a VIP also suspends lower tiers for a slot. After `max_suspensions` a
    sequence is resumed only when its whole answer can grow beside the others that are
    protected so, and is then left alone.
    """

    def __init__(
        self, config: EngineConfig, max_decode_steps: int, host_tier: HostTier | None = None
    ) -> None:
        self._config = config
        self._max_decode_steps = max_decode_steps
        self._ageing_s = config.ageing_ms / 1000
        self.blocks = BlockManager(config.num_blocks, config.block_size)
        self.budget = StepBudget()
        self.waits = WaitEstimator(config, self.budget)
        self.shares = FairShare(self._ageing_s * _FAIR_SHARE_OF_AGEING)
        self.speculation = Speculation(config)
        self.swaps = Swaps(self.blocks, host_tier)
        self.warm_ups = WarmUps(config, self.blocks, self.swaps)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.counts = SchedulerCounts()
        # Blocks that a VIP takes at its start, on average, and when the last one came.
        self._vip_blocks = 0.0
        self._vip_at = float("-inf")
        # Whether the last step left anybody waiting.
        self._is_queued = False

    def foresee_wait_s(self, seq: Sequence) -> float:
        """Give a new sequence its place; how long it is expected to wait there, seconds."""
        num_cached = len(self._cached_blocks(seq)) * self.blocks.block_size
        seq.work_s = self.waits.work_s(seq, num_cached, max(len(self.running), 1))
        seq.place_at = self.shares.place(seq)
        place = self._place(seq)
        tier = seq.request.tier
        work_ahead_s = 0.0
        num_ahead, num_blocks = 0, self.blocks.blocks_for(len(seq.tokens))
        for other in self.waiting:
            if self._place(other) > place:
                break
            # VIPs make their own room.
            if tier is not Tier.VIP or other.request.tier is Tier.VIP:
                work_ahead_s += other.work_s
                num_ahead += 1
                num_blocks += self.blocks.blocks_for(len(other.tokens))
        num_running = len(self.running) + num_ahead + 1
        if (
            not self._is_queued
            and num_running <= self._config.max_running
            and num_blocks + num_running <= self.blocks.num_free
        ):
            # Those before it have only just come, and the next step takes them all.
            return 0.0
        # As long as it is held back for other tenants, theirs may fill the machine.
        behind_s = self.shares.behind_s(seq)
        seq.predicted_wait_s = behind_s + self.waits.wait_s(tier, work_ahead_s)
        return seq.predicted_wait_s

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence, whose wait was foreseen."""
        self.shares.add(seq)
        self.waits.added(seq)
        insort(self.waiting, seq, key=self._place)

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out, wherever it is, and free its blocks."""
        if seq.status is Status.RUNNING:
            self.running.remove(seq)
            self._release(seq)
        elif seq.status is Status.WAITING:
            self.waiting.remove(seq)
        seq.status = Status.ENDED
        self.shares.remove(seq)

    def schedule(self, now: float) -> StepPlan:
        """Choose the next step's work and reserve its blocks; may be empty.

        Args:
            now: Seconds on the engine's clock.
        """
        self.waits.note(now, bool(self.waiting))
        num_suspended = self.counts.suspensions
        self._reserve_decodes(now)
        # What was just suspended for want of blocks would only come straight back.
        if self.waiting and self.counts.suspensions == num_suspended:
            self._admit(now)
        self._is_queued = bool(self.waiting)
        decodes, prefills = self._due(now)
        plain = bool(decodes) and self.budget.wants_plain_step()
        if plain:
            prefills = []
        # Prompts come before guesses: someone waits for a first token.
        drafts = {} if prefills else self.speculation.drafts(decodes)
        warm = len(self.warm_ups) > 0 and not plain and self._nobody_waits()
        num_steps = 1 if prefills or drafts or warm else self._max_decode_steps
        work = [self._decode(seq, drafts.get(seq.id, ()), num_steps) for seq in decodes]
        num_decoding = sum(1 + len(item.draft) for item in work)
        spare = self._num_spare(len(work)) - num_decoding
        work += prompt_pieces(prefills, spare, self.blocks.block_size)
        if warm:
            piece = self.warm_ups.schedule(now, spare)
            work += [piece] if piece else []
        for item in work:
            item.sequence.served_at = now
        return StepPlan(tuple(work))

    def _nobody_waits(self) -> bool:
        """Whether every request has its first token, so that warm-ups hold nobody up."""
        return not self.waiting and all(seq.num_uncomputed == 1 for seq in self.running)

    def _due(self, now: float) -> tuple[list[Sequence], list[Sequence]]:
        """Whose next token, and whose prompt, the step may compute.

        While a VIP waits for a first token, everybody below pauses, each for
        `max_pause_ms` at most.
        """
        running = self.running
        if any(seq.request.tier is Tier.VIP and seq.num_uncomputed > 1 for seq in running):
            overdue_at = now - self._config.max_pause_ms / 1000
            running = [
                seq
                for seq in running
                if seq.request.tier is Tier.VIP or seq.served_at <= overdue_at
            ]
        decodes = [seq for seq in running if seq.num_uncomputed == 1]
        prefills = [seq for seq in running if seq.num_uncomputed > 1]
        return decodes, prefills

    def _num_spare(self, num_decodes: int) -> int:
        """Tokens that a step has room for, those of the decodes included."""
        if num_decodes:
            least_ms = self._config.mixed_step_ms
            within = num_decodes + self.budget.tokens_beside(num_decodes, least_ms)
        else:
            within = self.budget.tokens_alone(self._config.prefill_step_ms)
        return min(within, self._config.max_step_tokens)

    def record_cost(self, plan: StepPlan, elapsed_ms: float) -> None:
        """Note how long a plan took."""
        num_steps = max(item.num_decode_steps for item in plan.work)
        decodes = [item for item in plan.work if item.samples and item.num_tokens == 1]
        elapsed_ms /= num_steps
        if len(decodes) == len(plan.work):
            self.speculation.record_cost(plan.num_tokens, elapsed_ms)
        if not any(item.draft for item in decodes):
            self.budget.record(len(decodes), plan.num_tokens - len(decodes), elapsed_ms)

    def computed(self, seq: Sequence, num_computed: int) -> None:
        """Note that the KV of the first `num_computed` tokens is in place."""
        seq.num_computed = num_computed
        if not self._config.prefix_cache:
            return
        num_full = min(num_computed // self.blocks.block_size, len(seq.block_names))
        for i in range(seq.num_named, num_full):
            self.blocks.name(seq.block_table[i], seq.block_names[i])
        seq.num_named = max(seq.num_named, num_full)

    def _place(self, seq: Sequence) -> tuple[float, int]:
        """Sort key in the queue; constant for a sequence, whatever the time."""
        return (seq.place_at + _TIER_AGES[seq.request.tier] * self._ageing_s, seq.id)

    # Blocks for the sequences that run.

    def _reserve_decodes(self, now: float) -> None:
        """Give every decoding sequence the block its next token needs."""
        for seq in sorted(self.running, key=_rank_order):
            if seq.status is not Status.RUNNING or seq.num_uncomputed != 1:
                continue
            missing = self.blocks.blocks_for(len(seq.tokens)) - len(seq.block_table)
            while missing > self.blocks.num_free:
                victim = self._victim()
                self._suspend(victim, now)
                victim.num_evictions += 1
                if victim is seq:
                    break
            else:
                if missing > 0:
                    seq.block_table += self.blocks.allocate(missing)

    def _victim(self) -> Sequence:
        """Whom to suspend for want of blocks: lowest tier, latest arrival."""
        return max(self.running, key=lambda seq: (not self._protected(seq), *_rank_order(seq)))

    def _protected(self, seq: Sequence) -> bool:
        return seq.num_suspensions >= self._config.max_suspensions

    def _suspend(self, seq: Sequence, now: float) -> None:
        self.running.remove(seq)
        self._release(seq)
        seq.num_suspensions += 1
        seq.enqueued_at = now
        if seq.request.tier is Tier.BATCH:
            # Back in its old place it would hold up whoever comes before it by tier.
            seq.place_at = now
        seq.status = Status.WAITING
        insort(self.waiting, seq, key=self._place)
        self.counts.suspensions += 1

    def _release(self, seq: Sequence) -> None:
        self.blocks.release(seq.block_table)
        seq.block_table = []
        seq.num_computed = 0
        seq.num_named = 0

    # Admission.

    def _admit(self, now: float) -> None:
        """Move sequences from the queue into the batch."""
        while self.waiting and len(self.running) < self._max_running():
            if not self._try_admit(self.waiting[0], now):
                break
        for seq in [seq for seq in self.waiting if seq.request.tier is Tier.VIP]:
            if not self._make_room(seq, now):
                break

    def _max_running(self) -> int:
        """Sequences that may run now, as far as the time of their steps goes.

        A VIP comes in beyond that.
        """
        num_more = len(self.running) + 1
        more_ms = self.budget.decode_ms(num_more)
        least_ms = self.budget.decode_ms(1)
        if more_ms is None or least_ms is None:
            return self._config.max_running
        limit_ms = max(self._config.target_step_ms, _BATCH_STRETCH * least_ms)
        most = num_more if more_ms <= limit_ms else len(self.running)
        return min(most, self._config.max_running)

    def _try_admit(self, seq: Sequence, now: float) -> bool:
        """Admit `seq` if its known tokens fit and leave room for the others to grow."""
        hits = self._cached_blocks(seq)
        needed = self.blocks.blocks_for(len(seq.tokens)) - len(hits)
        left = self.blocks.num_free - self.blocks.num_free_among(hits) - needed
        headroom = self._headroom(seq, self.running)
        if seq.request.tier is not Tier.VIP and self.running:
            headroom += self._vip_reserve(now)
        if left < headroom:
            return False
        if seq.request.tier is Tier.VIP:
            self._vip_blocks += _NEW_SHARE * (needed - self._vip_blocks)
            self._vip_at = now
        self.blocks.acquire(hits)
        fresh = self.blocks.allocate(needed)
        seq.block_table = hits + fresh
        num_whole = (len(seq.tokens) - 1) // self.blocks.block_size
        num_back = self.swaps.bring_back(seq.block_names[len(hits) : num_whole], fresh)
        seq.num_computed = (len(hits) + num_back) * self.blocks.block_size
        seq.num_named = len(hits)
        if seq.cached_tokens is None:
            seq.cached_tokens = seq.num_computed
            self.counts.cached_tokens += seq.num_computed
        if seq.started_at is None:
            seq.started_at = now
        seq.rank = self._rank(seq, now)
        seq.served_at = now
        seq.status = Status.RUNNING
        self.waiting.remove(seq)
        self.running.append(seq)
        self.counts.admissions += 1
        return True

    def _vip_reserve(self, now: float) -> int:
        """Blocks left free for the next VIPs, while there are some: cheaper than to suspend."""
        if now - self._vip_at > _VIP_MEMORY_S:
            return 0
        most = int(_MOST_RESERVED * self.blocks.num_blocks)
        return min(int(_NUM_VIPS_AHEAD * self._vip_blocks), most)

    def _rank(self, seq: Sequence, now: float) -> int:
        """The tier in which a sequence starts: its own, or higher after a long wait."""
        waited_s = now - seq.enqueued_at
        aged = max(0, seq.tier_rank - int(waited_s / self._ageing_s))
        num_aged = sum(other.rank < other.tier_rank for other in self.running)
        # Else a queue of aged requests would fill the batch, and VIPs find no victim.
        if num_aged >= max(_MOST_AGED * len(self.running), 1):
            return seq.tier_rank
        return aged

    def _cached_blocks(self, seq: Sequence) -> list[int]:
        """Blocks that already hold a prefix of `seq`, at least one token short of all."""
        num_whole = (len(seq.tokens) - 1) // self.blocks.block_size
        return self.blocks.match(seq.block_names[:num_whole])

    def _headroom(self, seq: Sequence, running: list[Sequence]) -> int:
        """Blocks that must stay free when `seq` joins `running`, for answers to grow.

        One for each. It doubles each time that `seq` was suspended for want of them, so
        that it isn't resumed and thrown out again block by block; a protected sequence
        waits until all protected ones can grow to their ends, at the others' cost.
        """
        if not running:
            return 0
        if not self._protected(seq):
            return (len(running) + 1) << seq.num_evictions
        growth = evictable = 0
        for other in (*running, seq):
            if self._protected(other):
                growth += self.blocks.blocks_for(other.max_tokens)
                growth -= len(other.block_table) or self.blocks.blocks_for(len(other.tokens))
            else:
                evictable += self.blocks.num_sole_references(other.block_table)
        return max(len(running) + 1, growth - evictable)

    def _make_room(self, seq: Sequence, now: float) -> bool:
        """Suspend as few lower-tier sequences as let a VIP in; none if that can't do."""
        victims = sorted(
            (
                other
                for other in self.running
                if other.rank > seq.tier_rank and not self._protected(other)
            ),
            key=_rank_order,
            reverse=True,
        )
        needed = self.blocks.blocks_for(len(seq.tokens)) - len(self._cached_blocks(seq))
        gained = 0
        staying = list(self.running)
        for i, victim in enumerate(victims, start=1):
            gained += self.blocks.num_sole_references(victim.block_table)
            staying.remove(victim)
            fits = self.blocks.num_free + gained >= needed + self._headroom(seq, staying)
            if fits and len(staying) < self._config.max_running:
                for chosen in victims[:i]:
                    self._suspend(chosen, now)
                return self._try_admit(seq, now)
        return False

    # Shares of the step.

    def _decode(self, seq: Sequence, draft: tuple[int, ...], num_steps: int) -> Work:
        """One token, with a guess or further steps behind it where blocks abound."""
        num_steps = min(num_steps, seq.num_remaining)
        if not self._reserve_ahead(seq, len(draft) + num_steps - 1):
            draft, num_steps = (), 1
        return Work(
            sequence=seq,
            start=seq.num_computed,
            num_tokens=1,
            samples=True,
            draft=draft,
            num_decode_steps=num_steps,
        )

    def _reserve_ahead(self, seq: Sequence, num_tokens: int) -> bool:
        """Give `seq` blocks for more tokens if that leaves each other one a block."""
        needed = self.blocks.blocks_for(len(seq.tokens) + num_tokens) - len(seq.block_table)
        if needed <= 0:
            return True
        if self.blocks.num_free - needed < len(self.running):
            return False
        seq.block_table += self.blocks.allocate(needed)
        return True


def _rank_order(seq: Sequence) -> tuple[int, int]:
    return (seq.rank, seq.id)
