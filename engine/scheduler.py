"""Who runs in the next step, with how many tokens.

The whole policy is here. Every step, running sequences decode first; what is left
of the step's token budget goes to pieces of prompts. The budget follows measured
step time, the batch follows free blocks, and neither is a constant.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.contract import Tier
from engine.sequence import Sequence, Status
from engine.speculation import Speculation
from engine.step import StepPlan, Work
from engine.step_costs import StepCosts
from engine.warm_ups import WarmUps

# Where even the smallest piece of a prompt takes longer than a step should, pieces may
# take this much longer than that: much of a step's time doesn't depend on its size.
_STRETCH = 1.25


@dataclass(slots=True)
class SchedulerCounts:
    """Totals since start."""

    admissions: int = 0
    suspensions: int = 0
    cached_tokens: int = 0


class Scheduler:
    """Waiting and running sequences, and the blocks they hold.

    Order of waiting: a sequence's place is its arrival plus `ageing_ms` for each
    tier below vip, so a higher tier passes a lower one, but not one that has waited
    `ageing_ms` longer; first come, first served within a tier. The head of the
    queue is never passed for want of blocks, except by a VIP that makes its own room.

    Suspension gives all blocks of a running sequence back and puts it into the
    queue again at its old place; its tokens are computed again later, or found in
    the prefix cache. For want of blocks the lowest tier's latest arrival goes; a
    VIP also suspends lower tiers for a slot. After `max_suspensions` a sequence is
    resumed only when its whole answer fits beside the running ones, and is then
    left alone.
    """

    def __init__(self, config: EngineConfig, max_decode_steps: int) -> None:
        self._config = config
        self._max_decode_steps = max_decode_steps
        self._ageing_s = config.ageing_ms / 1000
        self.blocks = BlockManager(config.num_blocks, config.block_size)
        self.costs = StepCosts()
        self.speculation = Speculation(config)
        self.warm_ups = WarmUps(config, self.blocks)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.counts = SchedulerCounts()

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence."""
        insort(self.waiting, seq, key=self._place)

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out, wherever it is, and free its blocks."""
        if seq.status is Status.RUNNING:
            self.running.remove(seq)
            self._release(seq)
        elif seq.status is Status.WAITING:
            self.waiting.remove(seq)
        seq.status = Status.ENDED

    def schedule(self, now: float) -> StepPlan:
        """Choose the next step's work and reserve its blocks; may be empty.

        Args:
            now: Seconds on the engine's clock.
        """
        num_suspended = self.counts.suspensions
        self._reserve_decodes(now)
        # What was just suspended for want of blocks would only come straight back.
        if self.waiting and self.counts.suspensions == num_suspended:
            self._admit(now)
        decodes = [seq for seq in self.running if seq.num_uncomputed == 1]
        prefills = [seq for seq in self.running if seq.num_uncomputed > 1]
        # Prompts come before guesses: someone waits for a first token.
        drafts = {} if prefills else self.speculation.drafts(decodes)
        # Warm-ups get what nobody else could use.
        warm = len(self.warm_ups) > 0 and not prefills and not self.waiting
        num_steps = 1 if prefills or drafts or warm else self._max_decode_steps
        work = [self._decode(seq, drafts.get(seq.id, ()), num_steps) for seq in decodes]
        work += self._prefill(prefills, sum(1 + len(item.draft) for item in work))
        if warm:
            num_tokens = sum(item.num_tokens + len(item.draft) for item in work)
            piece = self.warm_ups.schedule(now, self._num_spare(num_tokens))
            work += [piece] if piece else []
        return StepPlan(tuple(work))

    def _num_spare(self, num_tokens: int) -> int:
        """Tokens that fit beside `num_tokens` in a step of ordinary length."""
        within = self.costs.tokens_within(self._config.target_step_ms)
        spare = min(within, self._config.max_step_tokens) - num_tokens
        # While nothing runs, even a piece that takes too long is better than none.
        return spare if num_tokens else max(spare, self.blocks.block_size)

    def record_cost(self, plan: StepPlan, elapsed_ms: float) -> None:
        """Note how long a plan took."""
        num_steps = max(item.num_decode_steps for item in plan.work)
        self.costs.record(plan.num_tokens, elapsed_ms / num_steps)
        if all(item.samples and item.num_tokens == 1 for item in plan.work):
            self.speculation.record_cost(plan.num_tokens, elapsed_ms / num_steps)

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
        return (seq.arrived_at + seq.tier_rank * self._ageing_s, seq.id)

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
        seq.status = Status.WAITING
        self.add(seq)
        self.counts.suspensions += 1

    def _release(self, seq: Sequence) -> None:
        self.blocks.release(seq.block_table)
        seq.block_table = []
        seq.num_computed = 0
        seq.num_named = 0

    # Admission.

    def _admit(self, now: float) -> None:
        """Move sequences from the queue into the batch."""
        while self.waiting and len(self.running) < self._config.max_running:
            if not self._try_admit(self.waiting[0], now):
                break
        for seq in [seq for seq in self.waiting if seq.request.tier is Tier.VIP]:
            if not self._make_room(seq, now):
                break

    def _try_admit(self, seq: Sequence, now: float) -> bool:
        """Admit `seq` if its known tokens fit and leave room for the others to grow."""
        hits = self._cached_blocks(seq)
        needed = self.blocks.blocks_for(len(seq.tokens)) - len(hits)
        left = self.blocks.num_free - self.blocks.num_free_among(hits) - needed
        if left < self._headroom(seq, self.running):
            return False
        self.blocks.acquire(hits)
        seq.block_table = hits + self.blocks.allocate(needed)
        seq.num_computed = len(hits) * self.blocks.block_size
        seq.num_named = len(hits)
        if seq.cached_tokens is None:
            seq.cached_tokens = seq.num_computed
            self.counts.cached_tokens += seq.num_computed
        if seq.started_at is None:
            seq.started_at = now
        waited_s = now - seq.enqueued_at
        seq.rank = max(0, seq.tier_rank - int(waited_s / self._ageing_s))
        seq.status = Status.RUNNING
        self.waiting.remove(seq)
        self.running.append(seq)
        self.counts.admissions += 1
        return True

    def _cached_blocks(self, seq: Sequence) -> list[int]:
        """Blocks that already hold a prefix of `seq`, at least one token short of all."""
        num_whole = (len(seq.tokens) - 1) // self.blocks.block_size
        return self.blocks.match(seq.block_names[:num_whole])

    def _headroom(self, seq: Sequence, running: list[Sequence]) -> int:
        """Blocks that must stay free when `seq` joins `running`, for answers to grow.

        One for each. It doubles with each suspension of `seq`, so that it isn't resumed
        and thrown out again block by block; a protected sequence waits until all can
        grow to their ends.
        """
        if not running:
            return 0
        if not self._protected(seq):
            return (len(running) + 1) << seq.num_suspensions
        growth = [
            self.blocks.blocks_for(other.max_tokens) - len(other.block_table) for other in running
        ]
        own = self.blocks.blocks_for(seq.max_tokens) - self.blocks.blocks_for(len(seq.tokens))
        return sum(growth) + own

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

    def _prefill(self, seqs: list[Sequence], num_decoding: int) -> list[Work]:
        """Share what is left of the step's budget between prompts.

        Higher tiers first; within one, the shortest remainder first, so that a long
        prompt doesn't hold up short ones, but the longest-waiting prompt always gets
        a quarter. Pieces end on block boundaries.
        """
        if not seqs:
            return []
        block_size = self.blocks.block_size
        limit_ms = self._config.target_step_ms if num_decoding else self._config.prefill_step_ms
        least = num_decoding + block_size
        least_ms = self.costs.predict_ms(least)
        if least_ms is not None and self.costs.max_tokens >= least:
            limit_ms = max(limit_ms, _STRETCH * least_ms)
        budget = min(self.costs.tokens_within(limit_ms), self._config.max_step_tokens)
        budget = max(budget - num_decoding, block_size)
        order = sorted(seqs, key=lambda seq: (seq.rank, seq.num_uncomputed, seq.id))
        oldest = min(seqs, key=_rank_order)
        pieces = {oldest.id: self._piece(oldest, max(budget // 4, block_size))}
        budget -= pieces[oldest.id]
        for seq in order:
            if budget <= 0:
                break
            given = pieces.get(seq.id, 0)
            size = self._piece(seq, budget + given)
            pieces[seq.id] = size
            budget -= size - given
        return [
            Work(
                sequence=seq,
                start=seq.num_computed,
                num_tokens=pieces[seq.id],
                samples=pieces[seq.id] == seq.num_uncomputed,
            )
            for seq in order
            if pieces.get(seq.id)
        ]

    def _piece(self, seq: Sequence, limit: int) -> int:
        """Tokens of `seq` to compute, at most `limit`: all that is left, or whole blocks."""
        if seq.num_uncomputed <= limit:
            return seq.num_uncomputed
        end = (seq.num_computed + limit) // self.blocks.block_size * self.blocks.block_size
        return max(end - seq.num_computed, 0)


def _rank_order(seq: Sequence) -> tuple[int, int]:
    return (seq.rank, seq.id)
