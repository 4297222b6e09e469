"""Which sequences guess ahead in the next step, and how far.

A guess is free of risk for the text: the sampler's noise depends on the position
alone, so the verifying step samples at each guessed position what it would have
sampled anyway, and the guess stands as long as it agrees. What is at stake is time
only, so `auto` guesses just where the measured cost of more rows in a step is less
than the tokens they are expected to bring.

How often guesses are right is known without checking any: what a sequence would have
guessed is compared with what it then says. Only what checking costs has to be tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.guess_costs import Account, GuessCosts
from engine.guess_rates import GuessRates
from engine.sequence import Drafting, Guess, Sequence

# Expected tokens per second must rise by this factor: chats that are luckier than others end
# sooner, and leave the rest to run in a smaller batch, where a token costs more.
_MIN_GAIN = 1.1
# Where guesses can't pay, nobody looks for any but in every so many steps.
_LOOK_EVERY = 16
# A probe takes guesses that would pay if checking cost so much less than it seems.
_PROBE_SHARE = 0.5
# Agreement behind a guess that is made whatever it costs.
_NGRAM_MATCH = 3
# Guesses of one agreement that are remembered: of one sequence, of all.
_MEMORY = 60.0
_MEMORY_ALL = 300.0


@dataclass(frozen=True, slots=True)
class _Chance:
    """That a sequence's guess is right up to a length."""

    chance: float
    seq: Sequence
    length: int


class Speculation:
    """Guesses by n-grams, and the account of what guessing costs and brings.

    Args:
        config: The engine's.
        token_ms: What a token more costs in any step, as far as that is known before a
            guess was ever checked, milliseconds.

    Attributes:
        num_drafted: Tokens guessed since start.
        num_accepted: Of these, how many stood.
        num_requests: Requests that ended after guessing.
        acceptance: Sum, over these, of the share of their guesses that stood.
    """

    def __init__(self, config: EngineConfig, token_ms: Callable[[], float] = lambda: 0.0) -> None:
        self._mode = config.speculation
        self._max_tokens = config.max_draft_tokens
        self._costs = GuessCosts(token_ms)
        self._account: Account | None = None
        self._rates = GuessRates(_MEMORY_ALL)
        self._num_steps = 0
        self.num_drafted = 0
        self.num_accepted = 0
        self.num_requests = 0
        self.acceptance = 0.0

    def drafts(self, seqs: list[Sequence]) -> dict[int, tuple[int, ...]]:
        """Guesses for a step in which only `seqs` decode, by sequence id."""
        if self._mode == "off" or not seqs:
            return {}
        if self._mode == "ngram":
            guesses = [(seq, self._guess(seq)) for seq in seqs]
            return {
                seq.id: guess.tokens
                for seq, guess in guesses
                if guess is not None and guess.match >= _NGRAM_MATCH
            }
        self._num_steps += 1
        account = self._account = self._costs.begin_step(len(seqs))
        if not self._could_pay(account) and self._num_steps % _LOOK_EVERY:
            return {}
        return self._worthwhile(account, [seq for seq in seqs if self._guess(seq) is not None])

    def record_cost(self, num_sequences: int, num_guessed: int, elapsed_ms: float) -> None:
        """Note the time of a step in which every sequence decoded."""
        if self._mode == "auto":
            self._costs.record(num_sequences, num_guessed, elapsed_ms)

    def record_outcome(self, seq: Sequence, draft: tuple[int, ...], num_accepted: int) -> None:
        """Note how much of a guess stood."""
        state = seq.drafting
        assert state is not None
        state.num_drafted += len(draft)
        state.num_accepted += num_accepted
        self.num_drafted += len(draft)
        self.num_accepted += num_accepted
        if self._account is not None:
            self._account.won(num_accepted)

    def ended(self, seq: Sequence) -> None:
        """A request ended; take its own acceptance into account."""
        if seq.drafting is not None and seq.drafting.num_drafted:
            self.num_requests += 1
            self.acceptance += seq.drafting.num_accepted / seq.drafting.num_drafted

    def new_rates(self) -> GuessRates:
        """A new sequence's, which expects of its guesses what others' came to."""
        return GuessRates(_MEMORY, self._rates)

    def _could_pay(self, account: Account) -> bool:
        """Whether there is any gain if all guesses were right."""
        most = self._max_tokens * account.num_sequences
        return not account.plain_ms or max(account.gain(1, 1), account.gain(most, most)) > _MIN_GAIN

    def _guess(self, seq: Sequence) -> Guess | None:
        """Judge a sequence's last guess, and make the next."""
        state = seq.drafting
        if state is None:
            state = seq.drafting = Drafting(self.new_rates())
        if state.guess is not None:
            _judge(state.guess, seq, state.rates)
        limit = min(self._max_tokens, seq.num_remaining - 1)
        tokens, match = state.index.propose(seq.tokens, limit) if limit > 0 else ((), 0)
        state.guess = Guess(len(seq.tokens), tokens, match) if tokens else None
        return state.guess

    def _worthwhile(self, account: Account, guessing: list[Sequence]) -> dict[int, tuple[int, ...]]:
        """Guesses, cut to the lengths that promise the most tokens per second."""
        if not guessing or not account.may_check:
            return {}
        # What is less likely costs more than it brings, whatever goes along.
        least = account.each_ms / account.token_ms
        chances = _chances(guessing, least)
        best_gain, best_count, expected = _MIN_GAIN, 0, 0.0
        for count, one in enumerate(chances, start=1):
            expected += one.chance
            gain = account.gain(count, expected)
            if gain > best_gain:
                best_gain, best_count = gain, count
        if not best_count and account.may_probe:
            chances = _chances(guessing, _PROBE_SHARE * least)
            best_count = min(len(chances), account.num_probed)
        lengths: dict[int, int] = {}
        drafts: dict[int, tuple[int, ...]] = {}
        for one in chances[:best_count]:
            lengths[one.seq.id] = max(lengths.get(one.seq.id, 0), one.length)
        for seq in guessing:
            if seq.id in lengths and seq.drafting is not None and seq.drafting.guess is not None:
                drafts[seq.id] = seq.drafting.guess.tokens[: lengths[seq.id]]
        return drafts


def _chances(guessing: list[Sequence], least: float) -> list[_Chance]:
    """Guessed tokens that are at least so likely, the likeliest first."""
    chances = []
    for seq in guessing:
        state = seq.drafting
        if state is None or state.guess is None:
            continue
        chance = 1.0
        for length in range(1, len(state.guess.tokens) + 1):
            chance *= state.rates.rate(state.guess.match + length - 1)
            if chance < least:
                break
            chances.append(_Chance(chance, seq, length))
    chances.sort(key=lambda one: -one.chance)
    return chances


def _judge(guess: Guess, seq: Sequence, rates: GuessRates) -> None:
    """Compare a guess, whether it was checked or not, with what its sequence went on to say."""
    said = seq.tokens[guess.position : guess.position + len(guess.tokens)]
    for right, (guessed, token) in enumerate(zip(guess.tokens, said, strict=False)):
        rates.note(guess.match + right, guessed == token)
        if guessed != token:
            return
