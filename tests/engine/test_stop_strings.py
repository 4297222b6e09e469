"""Stop strings: the cut, and how little is held back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.stop_strings import StopStrings


def feed(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    """What each piece let through, the end last; and whether a stop was found."""
    matcher = StopStrings(stops)
    shown = []
    for piece in pieces:
        shown.append(matcher.push(piece))
        if matcher.matched:
            return shown, True
    return [*shown, matcher.finish()], False


def first_stop(stops: list[str], text: str) -> str | None:
    """The text before the stop that ends first, by looking at every prefix."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            return text[: end - max(map(len, ended))]
    return None


def longest_held(stops: list[str], text: str) -> int:
    """Length of the longest suffix of `text` that begins some stop."""
    return max(
        (size for stop in stops for size in range(len(stop)) if text.endswith(stop[:size])),
        default=0,
    )


_short = st.text("ab", min_size=1, max_size=4)


@given(st.lists(_short, max_size=4), st.lists(st.text("ab", max_size=5), max_size=10))
def test_stp_01_cut_exactly_before_the_first_stop(stops: list[str], pieces: list[str]) -> None:
    shown, found = feed(stops, pieces)
    text = "".join(pieces)
    expected = first_stop(stops, text)
    assert found == (expected is not None)
    assert "".join(shown) == (text if expected is None else expected)


@given(st.lists(_short, min_size=1, max_size=4), st.lists(_short, max_size=10))
def test_stp_06_only_a_true_prefix_is_withheld(stops: list[str], pieces: list[str]) -> None:
    matcher = StopStrings(stops)
    text = shown = ""
    for piece in pieces:
        text += piece
        shown += matcher.push(piece)
        if matcher.matched:
            return
        assert len(text) - len(shown) == longest_held(stops, text)


def test_stp_02_text_like_a_stops_beginning_comes_out() -> None:
    lines = ["one", "\n", "two", "\n", "\n", "three\nZZ", "four"]
    shown, found = feed(["\nZZZZ"], lines)
    assert not found
    assert "".join(shown) == "".join(lines)
    assert shown[1] == ""
    assert shown[2] == "\ntwo"


def test_stp_06_long_stop_does_not_delay() -> None:
    text = "the quick brown fox"
    shown, _ = feed(["#" * 400], list(text))
    assert shown[:-1] == list(text)


def test_overlapping_stops() -> None:
    assert feed(["abab", "b"], ["a", "b"]) == (["", "a"], True)
    assert feed(["aab"], ["aa", "ab", "c"]) == (["", "a"], True)
    assert feed(["abcd", "cd"], ["abcd"]) == ([""], True)
