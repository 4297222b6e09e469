"""Tokens to text, one token at a time, in whole characters only."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class Detokenizer:
    """Joins the bytes of tokens and hands out each character once it is whole.

    The text of all `push` calls and `finish` equals
    `b"".join(token bytes).decode("utf-8", "replace")`: bytes that can't be UTF-8
    become U+FFFD, and an incomplete tail waits for its continuation or the end.

    Args:
        token_bytes: The bytes of a token id; b"" for a control token, which
            therefore never shows in the text.
    """

    __slots__ = ("_decoder", "_token_bytes")

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Text that became whole with this token; may be empty."""
        return self._decoder.decode(self._token_bytes(token_id))

    def finish(self) -> str:
        """The incomplete tail as U+FFFD, if there is one."""
        return self._decoder.decode(b"", final=True)
