"""Tokens to chunks: what counts as visible."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.text_stream import TextStream


def run(pieces: list[bytes], stops: tuple[str, ...] = ()) -> tuple[str, int, int]:
    """Text, tokens counted with the deltas, tokens counted in all."""
    stream = TextStream(pieces.__getitem__, stops, 1.0)
    chunks = []
    for i in range(len(pieces)):
        stream.push(i, 0.0)
        if stream.stopped:
            break
        chunks += stream.take(0.0)
    chunks += stream.finish(0.0)
    text = "".join(chunk.text for chunk in chunks)
    return text, sum(chunk.num_tokens for chunk in chunks), stream.num_visible


def test_every_token_counts_once() -> None:
    assert run([b"He", b"llo", b" world"]) == ("Hello world", 3, 3)


def test_tokens_without_text_count_with_the_next() -> None:
    assert run([b"a", b"", b"b"]) == ("ab", 3, 3)
    assert run([b"\xf0\x9f", b"\x90\x95"]) == ("🐕", 2, 2)
    # At the end nothing comes that they could be sent with.
    assert run([b"a", b""]) == ("a", 1, 2)


def test_spd_04_tokens_cut_by_a_stop_do_not_count() -> None:
    assert run([b"one", b" two", b" STOP", b" x"], ("STOP",)) == ("one two ", 3, 3)
    assert run([b"one", b" two", b" ST", b"OP", b" x"], (" STOP",)) == ("one two", 2, 2)
    assert run([b"STOP"], ("STOP",)) == ("", 0, 0)


def test_held_back_text_comes_at_the_end() -> None:
    assert run([b"one", b" ST"], ("STOP",)) == ("one ST", 2, 2)


def test_an_incomplete_tail_may_complete_a_stop() -> None:
    assert run([b"a\xf0"], ("\ufffd",)) == ("a", 1, 1)


@given(
    st.lists(st.sampled_from([b"a", b"b", b"ab", b"\xc3", b"\xa9", b"", b"ba"]), max_size=12),
    st.lists(st.text("abé", min_size=1, max_size=3), max_size=2),
)
def test_counts_agree_with_the_text(pieces: list[bytes], stops: list[str]) -> None:
    text, sent, counted = run(pieces, tuple(stops))
    whole = b"".join(pieces).decode("utf-8", "replace")
    assert whole.startswith(text)
    if not any(stop in whole for stop in stops):
        assert (text, counted) == (whole, len(pieces))
    assert sent <= counted <= len(pieces)
