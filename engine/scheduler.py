"""Who runs in the next step, with how many tokens.

Every step, running sequences decode first; what is left of the step's token budget
goes to pieces of prompts. The budget follows measured step time, the batch follows
free blocks, and neither is a constant.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.admission import Admission
from engine.batch import Batch
from engine.batch_forming import BatchForming
from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.contract import Tier
from engine.host_tier import HostTier
from engine.prefix_joins import PrefixJoins
from engine.prompt_pieces import MIN_PIECE_TOKENS, prompt_pieces
from engine.sequence import Sequence, Status
from engine.speculation import Speculation
from engine.step import StepPlan, Work
from engine.step_budget import StepBudget
from engine.step_shares import num_step_tokens, share_step
from engine.suspension import Suspension
from engine.swaps import Swaps
from engine.wait_estimator import WaitEstimator
from engine.waiting import WaitingQueue
from engine.warm_ups import WarmUps


@dataclass(frozen=True, slots=True)
class SchedulerCounts:
    """Totals since start."""

    admissions: int
    suspensions: int
    cached_tokens: int


class Scheduler:
    """Waiting and running sequences, and the blocks they hold.

    Args:
        config: The engine's.
        max_decode_steps: As the runner says.
        host_tier: Takes the blocks that leave the pool; None drops them.
        max_ahead_steps: As the runner says.
        piece_layers: As the runner says.
    """

    queue_type = WaitingQueue
    admission_type = Admission

    def __init__(
        self,
        config: EngineConfig,
        max_decode_steps: int,
        host_tier: HostTier | None = None,
        max_ahead_steps: int = 0,
        piece_layers: int = 1,
    ) -> None:
        self._config = config
        self._max_decode_steps = max_decode_steps
        self._max_ahead_steps = max_ahead_steps
        self._piece_layers = piece_layers
        self.blocks = BlockManager(config.num_blocks, config.block_size)
        self.budget = StepBudget()
        self.waits = WaitEstimator(config, self.budget)
        self.forming = BatchForming(config.batch_wait_ms / 1000, self.budget)
        self.speculation = Speculation(config, self._row_ms)
        self.swaps = Swaps(self.blocks, host_tier)
        self.warm_ups = WarmUps(config, self.blocks, self.swaps)
        self._joins = PrefixJoins(self.blocks)
        self._queue = self.queue_type(config)
        self.shares = self._queue.shares
        self._batch = Batch(config, self.blocks)
        self._suspension = Suspension(config, self.blocks, self._batch, self._queue)
        self._admission = self.admission_type(
            config,
            blocks=self.blocks,
            budget=self.budget,
            queue=self._queue,
            batch=self._batch,
            suspension=self._suspension,
            swaps=self.swaps,
        )
        # Whether the last step left anybody waiting.
        self._is_queued = False

    @property
    def waiting(self) -> list[Sequence]:
        """In order of the queue."""
        return self._queue.sequences

    @property
    def running(self) -> list[Sequence]:
        """In order of admission."""
        return self._batch.running

    @property
    def counts(self) -> SchedulerCounts:
        admission = self._admission
        num_cached = admission.num_cached_tokens + self._joins.num_tokens
        return SchedulerCounts(admission.num_admitted, self._suspension.count, num_cached)

    def foresee_wait_s(self, seq: Sequence) -> float:
        """Give a new sequence its place; how long it is expected to wait there, seconds."""
        num_cached = len(self._batch.cached_blocks(seq)) * self.blocks.block_size
        seq.work_s = self.waits.work_s(seq, num_cached, max(len(self.running), 1))
        seq.place_at = self.shares.place(seq)
        tier = seq.request.tier
        work_ahead_s = 0.0
        num_ahead, num_blocks = 0, self.blocks.blocks_for(len(seq.tokens))
        for other in self._queue.before(seq):
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
        self.forming.arrived(seq.arrived_at)
        self._queue.insert(seq)

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out, wherever it is, and free its blocks."""
        if seq.status is Status.RUNNING:
            self._batch.leave(seq)
        elif seq.status is Status.WAITING:
            self._queue.remove(seq)
        seq.status = Status.ENDED
        self.shares.remove(seq)

    def computed(self, seq: Sequence, num_computed: int) -> None:
        """Note that the KV of the first `num_computed` tokens is in place."""
        self._batch.computed(seq, num_computed)

    def computed_layers(self, item: Work) -> None:
        """Note how far a piece has come that a step left unfinished."""
        if item.layers is not None and item.sequence.partial is not None:
            item.sequence.partial.num_layers = item.layers.stop

    def schedule(self, now: float) -> StepPlan:
        """Choose the next step's work and reserve its blocks; may be empty.

        Args:
            now: Seconds on the engine's clock.
        """
        num_suspended = self._suspension.count
        self._suspension.reserve_decodes(now)
        # What was just suspended for want of blocks would only come straight back.
        if (
            self.waiting
            and self._suspension.count == num_suspended
            and not self.forming.holds(now, self.waiting, self.running)
        ):
            self._admission.admit(now)
        self._is_queued = bool(self.waiting)
        self.waits.note(now, self._is_queued)
        self._joins.take_over(self.running)
        shares = share_step(self.running, self.budget, self._config, now)
        decodes, prefills = shares.decodes, shares.prefills
        plain = bool(decodes) and self.budget.wants_plain_step()
        prefills = [] if plain else self._joins.first_of_each(prefills)
        # Prompts come before guesses: someone waits for a first token.
        drafts = {} if prefills else self.speculation.drafts(decodes)
        warm = len(self.warm_ups) > 0 and not plain and self._nobody_waits()
        num_steps = 1 if prefills or drafts or warm else self._num_steps(len(decodes))
        work = [self._decode(seq, drafts.get(seq.id, ()), num_steps) for seq in decodes]
        num_decoding = sum(1 + len(item.draft) for item in work)
        least_tokens = MIN_PIECE_TOKENS / (1 if warm else self._piece_layers)
        spare = num_step_tokens(shares, self.budget, self._config, least_tokens) - num_decoding
        work += prompt_pieces(prefills, spare, self.blocks.block_size, self._piece_layers)
        if warm:
            piece = self.warm_ups.schedule(now, int(spare))
            work += [piece] if piece else []
        for item in work:
            item.sequence.served_at = now
        return StepPlan(tuple(work))

    def _nobody_waits(self) -> bool:
        """Whether every request has its first token, so that warm-ups hold nobody up."""
        return not self.waiting and all(seq.num_uncomputed == 1 for seq in self.running)

    def _decode(self, seq: Sequence, draft: tuple[int, ...], num_steps: int) -> Work:
        """One token, with a guess or further steps behind it where blocks abound."""
        num_steps = min(num_steps, seq.num_remaining)
        num_tokens = len(draft) + num_steps - 1
        # One more than the runner makes ahead, for the token that those lead to.
        num_ahead = self._max_ahead_steps + 1 if self._max_ahead_steps else 0
        num_ahead = min(num_ahead, seq.num_remaining - num_steps)
        if not self._batch.reserve_ahead(seq, num_tokens + num_ahead) and (
            not self._batch.reserve_ahead(seq, num_tokens)
        ):
            draft, num_steps = (), 1
        return Work(
            sequence=seq,
            start=seq.num_computed,
            num_tokens=1,
            samples=True,
            draft=draft,
            num_decode_steps=num_steps,
        )

    def _num_steps(self, num_decodes: int) -> int:
        """Tokens that each of so many sequences decodes in a plan with nothing else in it."""
        step_ms = self.budget.decode_ms(num_decodes)
        if not step_ms or not self._config.decode_plan_ms:
            return self._max_decode_steps
        within = int(self._config.decode_plan_ms / step_ms)
        return max(1, min(within, self._max_decode_steps))

    def record_cost(self, plan: StepPlan, elapsed_ms: float) -> None:
        """Note how long a plan took."""
        num_steps = max(item.num_decode_steps for item in plan.work)
        decodes = [item for item in plan.work if item.samples and item.num_tokens == 1]
        elapsed_ms /= num_steps
        if len(decodes) == len(plan.work):
            num_guessed = plan.num_tokens - len(decodes)
            self.speculation.record_cost(len(decodes), num_guessed, elapsed_ms)
        if not any(item.draft for item in decodes):
            self.waits.measured(len(decodes), plan.num_tokens - len(decodes), elapsed_ms)
            pieces = [item for item in plan.work if not (item.samples and item.num_tokens == 1)]
            num_tokens = sum(item.num_tokens * item.share for item in pieces)
            before = sum(item.num_tokens * item.share * item.start for item in pieces)
            self.budget.record(
                len(decodes),
                num_tokens,
                elapsed_ms,
                context=before / num_tokens if num_tokens else 0.0,
                is_whole=all(item.layers is None for item in pieces),
            )

    def _row_ms(self) -> float:
        """About what one token more costs in a step: as much as in prompts, at least."""
        return self.budget.prompt_token_ms or 0.0
