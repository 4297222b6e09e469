"""One answer's text: tokens in, chunks out, with the count of visible tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from engine.chunker import Chunk, Chunker
from engine.detokenizer import Detokenizer
from engine.stop_strings import StopStrings


class TextStream:
    """Detokenizer, stop strings and chunker in a row.

    A token counts as visible with its first character that leaves the stop
    matcher. A token without text of its own (a control token, or a part of a
    character) counts with the next character.

    Args:
        token_bytes: The bytes of a token id, b"" for a control token.
        stops: Stop strings.
        flush_s: Longest wait of a token in the chunker, in seconds.

    Attributes:
        num_visible: Tokens whose text left the stop matcher.
    """

    __slots__ = ("_carried", "_chunker", "_detokenizer", "_origins", "_stops", "num_visible")

    def __init__(
        self, token_bytes: Callable[[int], bytes], stops: Sequence[str], flush_s: float
    ) -> None:
        self._detokenizer = Detokenizer(token_bytes)
        self._stops = StopStrings(stops)
        self._chunker = Chunker(flush_s)
        # Characters not yet out of the stop matcher: [characters, tokens that count
        # with the first of them], one entry a token.
        self._origins: deque[list[int]] = deque()
        self._carried = 0
        self.num_visible = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; the text ends before it."""
        return self._stops.matched

    @property
    def has_unsent(self) -> bool:
        """Whether `take` may have something to send later on."""
        return not self._chunker.is_empty

    def push(self, token_id: int, now: float) -> None:
        """Add the answer's next token; not after `stopped`."""
        self._carried += 1
        text = self._detokenizer.push(token_id)
        if text:
            self._origins.append([len(text), self._carried])
            self._carried = 0
            self._release(self._stops.push(text), now)

    def skip(self, num_chars: int, num_tokens: int) -> None:
        """Leave out what was sent before: so many characters, and tokens, from the front.

        Raises:
            ValueError: the text is another than what was sent.
        """
        self._chunker.skip(num_chars, num_tokens)

    def take(self, now: float) -> list[Chunk]:
        """Chunks that are due."""
        return self._chunker.take(now)

    def finish(self, now: float) -> list[Chunk]:
        """The text has ended: everything left, unless a stop string cut it."""
        if not self.stopped:
            tail = self._detokenizer.finish()
            if tail:
                self._origins.append([len(tail), self._carried])
                self._carried = 0
                self._release(self._stops.push(tail), now)
        if not self.stopped:
            self._release(self._stops.finish(), now)
            self.num_visible += self._carried
            self._carried = 0
        return self._chunker.finish()

    def _release(self, text: str, now: float) -> None:
        """Hand `text` to the chunker, cut where one token's characters end."""
        start = 0
        while start < len(text):
            origin = self._origins[0]
            length = min(origin[0], len(text) - start)
            self._chunker.push(text[start : start + length], origin[1], now)
            self.num_visible += origin[1]
            origin[0] -= length
            origin[1] = 0
            start += length
            if not origin[0]:
                self._origins.popleft()
