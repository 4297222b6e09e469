"""An engine goes on with what another one began: the same words, counted once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.contract import (
    Accepted,
    Delta,
    EngineFault,
    Event,
    Finished,
    FinishReason,
    Progress,
    TakenOver,
    progress_of,
)
from tests.fakes.runner import Bench


def undisturbed(**options: Any) -> list[Event]:
    bench = Bench()
    return bench.add("a", **options) + bench.run()


def go_on(events: list[Event], bench: Bench, **options: Any) -> list[Event]:
    """Give what was made to another engine, in the next lease."""
    last = events[-1]
    made = [*events, TakenOver("a", last.epoch + 1, last.seq + 1, "w2")]
    request = bench.request("a", epoch=last.epoch + 1, **options)
    prepared = bench.engine.prepare(replace(request, progress=progress_of(made)))
    return [*made, *bench.engine.add(prepared), *bench.run()]


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def tokens_of(events: list[Event]) -> list[int]:
    return [token for event in events if isinstance(event, Delta) for token in event.tokens]


def assert_same(events: list[Event], whole: list[Event]) -> None:
    assert text_of(events) == text_of(whole)
    assert tokens_of(events) == tokens_of(whole)
    assert [event.seq for event in events] == list(range(len(events)))
    assert sum(isinstance(event, Accepted) for event in events) == 1
    final, expected = events[-1], whole[-1]
    assert isinstance(final, Finished) and isinstance(expected, Finished)
    assert final.reason is expected.reason
    assert final.usage.prompt_tokens == expected.usage.prompt_tokens
    assert final.usage.completion_tokens == expected.usage.completion_tokens
    counted = sum(event.num_tokens for event in events if isinstance(event, Delta))
    assert counted == sum(event.num_tokens for event in whole if isinstance(event, Delta))


@settings(max_examples=60)
@given(
    seed=st.integers(0, 1000),
    max_tokens=st.integers(1, 60),
    temperature=st.sampled_from([0.0, 0.8]),
    cut=st.floats(0, 1),
    again=st.floats(0, 1),
)
def test_any_answer_cut_anywhere_is_the_same(
    seed: int, max_tokens: int, temperature: float, cut: float, again: float
) -> None:
    options = {"seed": seed, "max_tokens": max_tokens, "temperature": temperature}
    whole = undisturbed(**options)
    head = whole[: 1 + int(cut * (len(whole) - 2))]
    once = go_on(head, Bench(), **options)
    assert_same(once, whole)
    # And taken over twice, by an engine that is busy with others.
    first = once.index(next(event for event in once if isinstance(event, TakenOver)))
    head = once[: first + 1 + int(again * (len(once) - first - 2))]
    bench = Bench(num_blocks=24)
    bench.add("b", "another prompt", max_tokens=30)
    assert_same([e for e in go_on(head, bench, **options) if e.request_id == "a"], whole)


def test_stop_strings_held_back_at_the_cut_are_found() -> None:
    text = text_of(undisturbed(max_tokens=60))
    for start in range(4, 40, 3):
        stop = (text[start : start + 4],)
        whole = undisturbed(max_tokens=60, stop=stop)
        for cut in range(1, len(whole)):
            assert_same(go_on(whole[:cut], Bench(), max_tokens=60, stop=stop), whole)


def test_tokens_that_were_all_made_only_need_their_end() -> None:
    bench = Bench()
    request = bench.request("a", max_tokens=5, epoch=2)
    whole = undisturbed(max_tokens=5)
    progress = progress_of(whole[:-1])
    assert progress is not None and len(progress.tokens) == 5
    events = bench.engine.add(bench.engine.prepare(replace(request, progress=progress)))
    assert [type(event) for event in events] == [Finished]
    assert events[0].reason is FinishReason.LENGTH
    assert events[0].usage.completion_tokens == 5
    assert not bench.engine.has_work()


def test_another_text_of_the_same_tokens_is_refused() -> None:
    bench = Bench()
    request = bench.request("a", max_tokens=9, epoch=2)
    wrong = Progress(next_seq=2, prompt_tokens=3, tokens=(65, 66), num_chars=9, num_tokens=9)
    with pytest.raises(EngineFault):
        bench.engine.add(bench.engine.prepare(replace(request, progress=wrong)))
    assert not bench.engine.has_work()


def test_what_was_begun_elsewhere_is_taken_however_full() -> None:
    bench = Bench(standard_max_waiting=1, max_running=1)
    for name in "bc":
        bench.add(name, max_tokens=8)
        bench.engine.step()
    whole = undisturbed(max_tokens=20)
    events = go_on(whole[:2], bench, max_tokens=20)
    assert_same([event for event in events if event.request_id == "a"], whole)
