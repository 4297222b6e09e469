"""Titles of conversations: made of the first message, or given by a person."""

from __future__ import annotations

from engine.contract import InvalidRequest

MAX_TITLE_CHARS = 200
# A title that is made; what is left out shows as an ellipsis.
DEFAULT_TITLE_CHARS = 60
# What is looked at of a message: a title's worth, however its blanks are spread.
_LOOKED_AT_CHARS = 1000
# Not printable by themselves, but part of emoji and of words in some scripts.
_JOINERS = "\u200c\u200d"


def default_title(text: str) -> str:
    """The beginning of a message as a title; empty if it shows nothing.

    One line, cut at a word's end where there is one in the second half.
    """
    line = _one_line(text[:_LOOKED_AT_CHARS])
    if len(line) <= DEFAULT_TITLE_CHARS:
        return line
    cut = line[:DEFAULT_TITLE_CHARS]
    words, _, rest = cut.rpartition(" ")
    if line[DEFAULT_TITLE_CHARS] != " " and len(words) >= len(rest):
        cut = words
    return cut.rstrip() + "…"


def check_title(text: str, param: str) -> str:
    """A title as a person gave it, on one line.

    Raises:
        InvalidRequest: it shows nothing, or is too long.
    """
    if len(text) > MAX_TITLE_CHARS:
        raise InvalidRequest(
            f"{param} must be at most {MAX_TITLE_CHARS} characters, got {len(text)}.", param=param
        )
    title = _one_line(text)
    if not title:
        raise InvalidRequest(f"{param} must hold a visible character.", param=param)
    return title


def _one_line(text: str) -> str:
    shown = "".join(char if char.isprintable() or char in _JOINERS else " " for char in text)
    return " ".join(shown.split()).strip(_JOINERS + " ")
