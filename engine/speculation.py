"""Which sequences guess ahead in the next step, and how far.

A guess is free of risk for the text: the sampler's noise depends on the position
alone, so the verifying step samples at each guessed position what it would have
sampled anyway, and the guess stands as long as it agrees. What is at stake is time
only, so `auto` guesses just where the measured cost of more rows in a step is less
than the tokens they are expected to bring.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import EngineConfig
from engine.ngrams import MAX_MATCH, MIN_MATCH
from engine.sequence import Drafting, Sequence
from engine.step_costs import StepCosts

# Expected tokens per second must rise by this factor.
_MIN_GAIN = 1.05
# Weight of the newest guess in the share of guessed tokens that stood.
_NEW_SHARE = 0.1
# How fast a sequence that doesn't guess forgets its failures.
_RECOVERY = 0.01
# An unknown step size is tried at most once in so many steps.
_TRY_EVERY_STEPS = 64


@dataclass(frozen=True, slots=True)
class _Guess:
    seq: Sequence
    tokens: tuple[int, ...]
    rate: float


class Speculation:
    """Guesses by n-grams, and the account of what guessing costs and brings.

    Attributes:
        num_drafted: Tokens guessed since start.
        num_accepted: Of these, how many stood.
        num_requests: Requests that ended after guessing.
        acceptance: Sum, over these, of the share of their guesses that stood.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._mode = config.speculation
        self._max_tokens = config.max_draft_tokens
        self._costs = StepCosts()
        # Share of guessed tokens that stood, by length of the agreement before them.
        self._rates = {
            match: 0.3 + 0.1 * (match - MIN_MATCH) for match in range(MIN_MATCH, MAX_MATCH + 1)
        }
        self._num_steps = 0
        self._last_try = -_TRY_EVERY_STEPS
        self.num_drafted = 0
        self.num_accepted = 0
        self.num_requests = 0
        self.acceptance = 0.0

    def drafts(self, seqs: list[Sequence]) -> dict[int, tuple[int, ...]]:
        """Guesses for a step in which only `seqs` decode, by sequence id."""
        if self._mode == "off" or not seqs:
            return {}
        self._num_steps += 1
        guesses = [guess for seq in seqs if (guess := self._guess(seq)) is not None]
        if self._mode == "ngram" or not guesses:
            return {guess.seq.id: guess.tokens for guess in guesses}
        return self._worthwhile(guesses, len(seqs))

    def record_cost(self, num_rows: int, elapsed_ms: float) -> None:
        """Note the time of a step in which every computed token was sampled."""
        if self._mode == "auto":
            self._costs.record(num_rows, elapsed_ms)

    def record_outcome(self, seq: Sequence, draft: tuple[int, ...], num_accepted: int) -> None:
        """Note how much of a guess stood."""
        state = seq.drafting
        assert state is not None
        state.num_drafted += len(draft)
        state.num_accepted += num_accepted
        self.num_drafted += len(draft)
        self.num_accepted += num_accepted
        # The tokens after the first wrong one say nothing.
        share = num_accepted / min(num_accepted + 1, len(draft))
        state.rate += _NEW_SHARE * (share - state.rate)
        match = state.last_match
        self._rates[match] += _NEW_SHARE * (share - self._rates[match])

    def ended(self, seq: Sequence) -> None:
        """A request ended; take its own acceptance into account."""
        if seq.drafting is not None and seq.drafting.num_drafted:
            self.num_requests += 1
            self.acceptance += seq.drafting.num_accepted / seq.drafting.num_drafted

    def _guess(self, seq: Sequence) -> _Guess | None:
        if seq.drafting is None:
            seq.drafting = Drafting()
        state = seq.drafting
        limit = min(self._max_tokens, seq.num_remaining - 1)
        tokens, match = state.index.propose(seq.tokens, limit) if limit > 0 else ((), 0)
        if not tokens:
            return None
        state.last_match = match
        state.rate += _RECOVERY * (0.5 - state.rate)
        return _Guess(seq, tokens, (state.rate + self._rates[match]) / 2)

    def _worthwhile(self, guesses: list[_Guess], num_seqs: int) -> dict[int, tuple[int, ...]]:
        """Cut guesses to the lengths that promise the most tokens per second."""
        base_ms = self._costs.predict_ms(num_seqs)
        if base_ms is None:
            return {}
        # The likeliest tokens first; within a guess each is less likely than the last.
        chances = sorted(
            (
                (guess.rate**length, guess.seq.id, length)
                for guess in guesses
                for length in range(1, len(guess.tokens) + 1)
            ),
            reverse=True,
        )
        num_known = max(self._costs.max_tokens - num_seqs, 0)
        best_rate, best_count = _MIN_GAIN * num_seqs / base_ms, 0
        expected = float(num_seqs)
        for count, (chance, _, _) in enumerate(chances[:num_known], start=1):
            expected += chance
            step_ms = self._costs.predict_ms(num_seqs + count)
            if step_ms is not None and expected / step_ms > best_rate:
                best_rate, best_count = expected / step_ms, count
        if best_count == min(num_known, len(chances)) < len(chances):
            best_count = self._further(best_count, max(num_seqs, 2))
        lengths: dict[int, int] = {}
        for _, seq_id, length in chances[:best_count]:
            lengths[seq_id] = max(lengths.get(seq_id, 0), length)
        return {
            guess.seq.id: guess.tokens[: lengths[guess.seq.id]]
            for guess in guesses
            if guess.seq.id in lengths
        }

    def _further(self, count: int, more: int) -> int:
        """Now and then, try a step larger than any whose cost is known."""
        if self._num_steps - self._last_try < _TRY_EVERY_STEPS:
            return count
        self._last_try = self._num_steps
        return count + more
