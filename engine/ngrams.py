"""Guesses how a text goes on from where it said the same before."""

from __future__ import annotations

from collections.abc import Sequence

# Tokens that must agree before a continuation is guessed.
MIN_MATCH = 2
# Longer agreement is not told apart.
MAX_MATCH = 8
# Earlier places looked at for one guess, the latest first.
_MAX_PLACES = 8


class NgramIndex:
    """The places at which each n-gram of a growing sequence ends."""

    __slots__ = ("_earlier", "_latest")

    def __init__(self) -> None:
        self._latest: dict[tuple[int, ...], int] = {}
        # _earlier[end - MIN_MATCH]: the place before `end` with the same n-gram, or 0.
        self._earlier: list[int] = []

    def propose(self, tokens: Sequence[int], limit: int) -> tuple[tuple[int, ...], int]:
        """What may follow `tokens`, and how many tokens agree with that place.

        Args:
            tokens: The whole sequence; each call's begins with the last call's.
            limit: Most tokens to guess.

        Returns:
            At most `limit` tokens, and the length of the agreement, from MIN_MATCH to
            MAX_MATCH; ((), 0) where nothing agrees.
        """
        self._extend(tokens)
        length = len(tokens)
        place = self._earlier[length - MIN_MATCH] if length > MIN_MATCH else 0
        best, best_match = 0, 0
        for _ in range(_MAX_PLACES):
            if not place:
                break
            match = self._match(tokens, place)
            if match > best_match:
                best, best_match = place, match
            if match == MAX_MATCH:
                break
            place = self._earlier[place - MIN_MATCH]
        return tuple(tokens[best : best + limit]) if best else (), best_match

    def _extend(self, tokens: Sequence[int]) -> None:
        for end in range(MIN_MATCH + len(self._earlier), len(tokens) + 1):
            key = tuple(tokens[end - MIN_MATCH : end])
            self._earlier.append(self._latest.get(key, 0))
            self._latest[key] = end

    @staticmethod
    def _match(tokens: Sequence[int], place: int) -> int:
        """How many tokens before `place` agree with the last ones."""
        match = MIN_MATCH
        while match < min(MAX_MATCH, place) and tokens[place - 1 - match] == tokens[-1 - match]:
            match += 1
        return match
