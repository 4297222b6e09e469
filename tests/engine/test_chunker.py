"""Chunks of 3 to 5 tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.chunker import Chunker


def run(steps: list[list[int]], step_s: float, flush_s: float) -> tuple[list[int], list[bool]]:
    """Feed steps of pieces (token counts); sizes of chunks, and which the timer sent."""
    chunker = Chunker(flush_s)
    sizes, timed = [], []
    now = 0.0
    waiting_since = None
    for pieces in steps:
        for tokens in pieces:
            waiting_since = now if waiting_since is None else waiting_since
            chunker.push("x" * tokens, tokens, now)
        late = waiting_since is not None and now - waiting_since >= flush_s
        for chunk in chunker.take(now):
            assert len(chunk.text) == chunk.num_tokens
            sizes.append(chunk.num_tokens)
            timed.append(late)
            waiting_since = None
        if chunker.is_empty:
            waiting_since = None
        elif waiting_since is None:
            waiting_since = now
        now += step_s
    last = [chunk.num_tokens for chunk in chunker.finish()]
    assert chunker.is_empty
    return sizes + last, timed + [False] * len(last)


def test_first_at_once_then_three() -> None:
    assert run([[1]] * 8, 0.01, 1.0)[0] == [1, 3, 3, 1]


def test_spd_06_bursts_leave_in_chunks_of_three_to_five() -> None:
    assert run([[1], [1] * 9], 0.01, 1.0)[0] == [1, 5, 4]
    assert run([[1], [1] * 6], 0.01, 1.0)[0] == [1, 3, 3]
    assert run([[1] * 9], 0.01, 1.0)[0] == [1, 4, 4]


@given(st.lists(st.integers(0, 17)))
def test_spd_06_any_bursts(bursts: list[int]) -> None:
    sizes, _ = run([[1] * burst for burst in bursts], 0.01, 1e9)
    assert sum(sizes) == sum(bursts)
    assert all(3 <= size <= 5 for size in sizes[1:-1])
    assert all(1 <= size <= 5 for size in sizes)


@given(st.lists(st.integers(0, 4)), st.sampled_from([0.02, 0.06, 0.2]))
def test_no_token_waits_longer_than_the_timer(bursts: list[int], step_s: float) -> None:
    sizes, timed = run([[1] * burst for burst in bursts], step_s, 0.15)
    for i in range(1, len(sizes) - 1):
        assert 3 <= sizes[i] <= 5 or timed[i]


def test_slow_models_are_flushed() -> None:
    chunker = Chunker(0.15)
    chunker.push("a", 1, 0.0)
    assert [chunk.text for chunk in chunker.take(0.0)] == ["a"]
    chunker.push("b", 1, 0.1)
    assert chunker.take(0.1) == []
    chunker.push("c", 1, 0.2)
    assert chunker.take(0.2) == []
    assert [chunk.text for chunk in chunker.take(0.25)] == ["bc"]


def test_a_character_of_several_tokens_stays_whole() -> None:
    assert run([[1], [4], [4], [2], [2]], 0.01, 1.0)[0] == [1, 4, 4, 4]
