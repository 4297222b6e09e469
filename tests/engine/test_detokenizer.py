"""Tokens to whole characters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.detokenizer import Detokenizer


def detokenize(pieces: list[bytes]) -> list[str]:
    detokenizer = Detokenizer(pieces.__getitem__)
    return [*(detokenizer.push(i) for i in range(len(pieces))), detokenizer.finish()]


@given(st.lists(st.binary(max_size=4)))
def test_txt_02_any_bytes_equal_one_decode(pieces: list[bytes]) -> None:
    assert "".join(detokenize(pieces)) == b"".join(pieces).decode("utf-8", "replace")


@given(st.text(), st.lists(st.integers(1, 4), min_size=1))
def test_txt_01_valid_text_is_never_replaced(text: str, sizes: list[int]) -> None:
    raw = text.encode("utf-8", "replace")
    pieces, start = [], 0
    for i in range(len(raw)):
        size = sizes[i % len(sizes)]
        pieces.append(raw[start : start + size])
        start += size
    shown = detokenize(pieces)
    assert "".join(shown) == raw.decode()
    for delta in shown:
        delta.encode()


def test_a_character_appears_with_its_last_byte() -> None:
    raw = "é🐕".encode()
    shown = detokenize([raw[i : i + 1] for i in range(len(raw))])
    assert shown == ["", "é", "", "", "", "🐕", ""]


def test_an_incomplete_tail_waits_for_the_end() -> None:
    assert detokenize([b"a\xf0\x9f"]) == ["a", "\ufffd"]


def test_bad_bytes_are_known_as_soon_as_they_are_bad() -> None:
    assert detokenize([b"\xf0\x9f", b"\xf0\x9f", b"!"]) == ["", "\ufffd", "\ufffd!", ""]
    assert detokenize([b"\x80"]) == ["\ufffd", ""]
