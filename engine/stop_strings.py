"""Finds stop strings in a growing text and holds back what may become one."""

from __future__ import annotations

from collections.abc import Sequence


class _Matcher:
    """Knuth-Morris-Pratt automaton of one stop string."""

    __slots__ = ("failure", "length", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        # Characters of the stop that the text so far ends with.
        self.length = 0
        self.failure = [0] * len(text)
        length = 0
        for i in range(1, len(text)):
            while length and text[i] != text[length]:
                length = self.failure[length - 1]
            if text[i] == text[length]:
                length += 1
            self.failure[i] = length

    def push(self, char: str) -> bool:
        """Advance by one character; True when the stop is complete."""
        length = self.length
        while length and char != self.text[length]:
            length = self.failure[length - 1]
        self.length = length + 1 if char == self.text[length] else 0
        return self.length == len(self.text)


class StopStrings:
    """Watches a text for the first complete stop string.

    Only the longest suffix that is a true prefix of some stop is withheld, so a
    stop delays nothing but text that may be its beginning. The stop whose last
    character comes first wins; of several that end there, the longest.

    Attributes:
        matched: Whether a stop was found; nothing may be pushed after that.
    """

    __slots__ = ("_held", "_matchers", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        self._matchers = [_Matcher(stop) for stop in stops]
        self._held = ""
        self.matched = False

    def push(self, text: str) -> str:
        """Text that is now safe to send: it can't belong to a stop string."""
        assert not self.matched
        if not self._matchers:
            return text
        known = self._held + text
        for i in range(len(self._held), len(known)):
            ended = [matcher for matcher in self._matchers if matcher.push(known[i])]
            if ended:
                self.matched = True
                self._held = ""
                return known[: i + 1 - max(matcher.length for matcher in ended)]
        num_safe = len(known) - max(matcher.length for matcher in self._matchers)
        self._held = known[num_safe:]
        return known[:num_safe]

    def finish(self) -> str:
        """What was still withheld: the text has ended, so it is no stop string."""
        held, self._held = self._held, ""
        return held
