"""Titles made of messages, and titles given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.sessions.titles import (
    DEFAULT_TITLE_CHARS,
    MAX_TITLE_CHARS,
    check_title,
    default_title,
)
from engine.contract import InvalidRequest


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Hello", "Hello"),
        ("  two\n\n lines\t here ", "two lines here"),
        ("", ""),
        (" \n\x00\x1b ", ""),
        ("right‮left", "right left"),
        ("👩‍🚀 in space", "👩‍🚀 in space"),
        ("word " * 30, "word word word word word word word word word word word word…"),
        ("x" * 100, "x" * 60 + "…"),
        ("日本語" * 30, "日本語" * 20 + "…"),
        ("a" * 20 + " " + "b" * 100, "a" * 20 + " " + "b" * 39 + "…"),
    ],
)
def test_default_titles(text: str, title: str) -> None:
    assert default_title(text) == title


@given(st.text())
def test_a_default_title_is_one_short_line_that_may_be_given(text: str) -> None:
    title = default_title(text)
    assert len(title) <= DEFAULT_TITLE_CHARS + 1
    assert title == title.strip() and "\n" not in title
    title.encode()
    if title:
        assert check_title(title, "title") == title


def test_given_titles() -> None:
    assert check_title("  My \n chat ", "title") == "My chat"
    assert check_title("x" * MAX_TITLE_CHARS, "title") == "x" * MAX_TITLE_CHARS
    for wrong in ("", "  ", "\x07", "‍", "x" * (MAX_TITLE_CHARS + 1)):
        with pytest.raises(InvalidRequest) as caught:
            check_title(wrong, "title")
        assert caught.value.param == "title"
