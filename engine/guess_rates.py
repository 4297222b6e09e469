"""How often guessed tokens turn out right, by how much text agreed before them."""

from __future__ import annotations

from engine.ngrams import MAX_MATCH, MIN_MATCH

# Trials that the expectation counts for, beside what was seen.
_PRIOR_TRIALS = 8.0
# What is expected of a guess before any was seen, by its agreement.
_FIRST_RATES = tuple(0.35 + 0.1 * (match - MIN_MATCH) for match in range(MAX_MATCH + 1))
# No guess is certain.
_MOST = 0.98


class GuessRates:
    """Shares of guesses that were right, older ones counting ever less.

    A guess of several tokens is as many guesses: the second is right, given that the first
    was, as often as any guess behind an agreement that is longer by one.

    Args:
        memory: Guesses of one agreement after which an old one counts a third.
        prior: Expected as long as little was seen; None takes a rough idea.
    """

    __slots__ = ("_hits", "_kept", "_prior", "_trials")

    def __init__(self, memory: float, prior: GuessRates | None = None) -> None:
        self._kept = 1 - 1 / memory
        self._prior = prior
        self._hits = [0.0] * (MAX_MATCH + 1)
        self._trials = [0.0] * (MAX_MATCH + 1)

    def rate(self, match: int) -> float:
        """How likely a guess is right.

        Args:
            match: Tokens that agree before it, at least `MIN_MATCH`.
        """
        match = min(match, MAX_MATCH)
        expected = self._prior.rate(match) if self._prior is not None else _FIRST_RATES[match]
        trials = self._trials[match] + _PRIOR_TRIALS
        return min((self._hits[match] + _PRIOR_TRIALS * expected) / trials, _MOST)

    def note(self, match: int, was_right: bool) -> None:
        """One guess and what came of it, told to the prior as well."""
        match = min(match, MAX_MATCH)
        self._hits[match] = self._kept * self._hits[match] + was_right
        self._trials[match] = self._kept * self._trials[match] + 1
        if self._prior is not None:
            self._prior.note(match, was_right)
