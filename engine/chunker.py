"""Text pieces to chunks: the first at once, then three to five tokens each."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

MIN_CHUNK_TOKENS = 3
MAX_CHUNK_TOKENS = 5


@dataclass(frozen=True, slots=True)
class Chunk:
    """Text to send together, and how many tokens became visible with it."""

    text: str
    num_tokens: int


class Chunker:
    """Gathers pieces until they make a chunk.

    The first piece leaves at once. After it a chunk holds 3 to 5 tokens, however
    many arrive together; fewer leave when the oldest has waited `flush_s`, and at
    the end. A character made of several tokens is never cut, so that next to one a
    chunk may be larger.

    Args:
        flush_s: Longest wait of a piece, in seconds; looked at when `take` is called.
    """

    __slots__ = ("_flush_s", "_num_tokens", "_oldest_at", "_pieces", "_started")

    def __init__(self, flush_s: float) -> None:
        self._flush_s = flush_s
        self._pieces: deque[Chunk] = deque()
        self._num_tokens = 0
        self._oldest_at = 0.0
        self._started = False

    @property
    def is_empty(self) -> bool:
        return not self._pieces

    def push(self, text: str, num_tokens: int, now: float) -> None:
        """Add the text of one token (or of several that share a character)."""
        if not self._pieces:
            self._oldest_at = now
        self._pieces.append(Chunk(text, num_tokens))
        self._num_tokens += num_tokens

    def skip(self, num_chars: int, num_tokens: int) -> None:
        """Leave out what was sent before: so many characters, and tokens, from the front.

        Raises:
            ValueError: no pieces hold just these.
        """
        while num_chars > 0 or num_tokens > 0:
            if not self._pieces:
                raise ValueError(f"{num_chars} characters and {num_tokens} tokens too many")
            piece = self._pieces.popleft()
            num_chars -= len(piece.text)
            num_tokens -= piece.num_tokens
            self._num_tokens -= piece.num_tokens
            self._started = True
        if num_chars or num_tokens:
            raise ValueError("what was sent ends within a piece")

    def take(self, now: float) -> list[Chunk]:
        """Chunks that are due."""
        chunks: list[Chunk] = []
        if self._pieces and not self._started:
            self._started = True
            chunks.append(self._join(1))
        chunks += self._take_full()
        if chunks and self._pieces:
            self._oldest_at = now
        if self._pieces and now - self._oldest_at >= self._flush_s:
            chunks.append(self._join(self._num_tokens))
        return chunks

    def finish(self) -> list[Chunk]:
        """Everything left, the last chunk as small as it comes."""
        chunks = self._take_full()
        if self._pieces:
            chunks.append(self._join(self._num_tokens))
        self._started = True
        return chunks

    def _take_full(self) -> list[Chunk]:
        """Split what is there into chunks of 3 to 5 tokens, as equal as possible."""
        chunks: list[Chunk] = []
        while self._num_tokens >= MIN_CHUNK_TOKENS:
            num_chunks = -(-self._num_tokens // MAX_CHUNK_TOKENS)
            chunks.append(self._join(-(-self._num_tokens // num_chunks)))
        return chunks

    def _join(self, num_tokens: int) -> Chunk:
        """Take pieces from the front until they hold `num_tokens`, at least one piece."""
        piece = self._pieces.popleft()
        texts, total = [piece.text], piece.num_tokens
        while self._pieces and total + self._pieces[0].num_tokens <= num_tokens:
            piece = self._pieces.popleft()
            texts.append(piece.text)
            total += piece.num_tokens
        self._num_tokens -= total
        return Chunk("".join(texts), total)
