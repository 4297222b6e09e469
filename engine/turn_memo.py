"""The tokens of turns that came before, so that a chat that goes on tokenises what is new.

A prompt is tokenised piece by piece between its control tokens, each for itself, so a
piece that was seen before has the tokens that it had. Each tenant finds its own pieces
alone: how fast a prompt is prepared tells nobody what others wrote.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence

# Shorter pieces are tokenised as fast as they are looked up.
LEAST_CHARACTERS = 64
# Text and tokens kept in all, about.
MAX_BYTES = 16 << 20

# (whether it stands behind a control token, text, how to tokenise it) to its tokens.
Recall = Callable[[bool, str, Callable[[], list[int]]], Sequence[int]]


class TurnMemo:
    """Pieces and their tokens, the longest unused forgotten first. Thread-safe.

    Args:
        max_bytes: Kept in all; one piece takes a quarter of it at most.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, bool, str], array[int]] = OrderedDict()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def of(self, tenant: str) -> Recall:
        """What a tenant may recall."""

        def recall(
            is_continued: bool, text: str, tokenise: Callable[[], list[int]]
        ) -> Sequence[int]:
            return self._recall((tenant, is_continued, text), tokenise)

        return recall

    def _recall(
        self, key: tuple[str, bool, str], tokenise: Callable[[], list[int]]
    ) -> Sequence[int]:
        if len(key[2]) < LEAST_CHARACTERS:
            return tokenise()
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return known
        ids = array("I", tokenise())
        size = _size(key, ids)
        if size <= self._max_bytes // 4:
            with self._lock:
                if key not in self._known:
                    self._known[key] = ids
                    self._num_bytes += size
                while self._num_bytes > self._max_bytes:
                    self._num_bytes -= _size(*self._known.popitem(last=False))
        return ids


def _size(key: tuple[str, bool, str], ids: array[int]) -> int:
    # At most four bytes a character.
    return 4 * len(key[2]) + ids.itemsize * len(ids)
