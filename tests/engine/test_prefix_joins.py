"""Prompts that begin alike and come together: computed once, by whoever goes first."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.contract import Failed, Tier
from tests.fakes.runner import Bench, text_of

SHARED = "".join(chr(97 + i * i % 23) for i in range(200))


def bench_of(*, joins: bool = True, **options: Any) -> Bench:
    """An engine whose prompts take several steps; without joins, as it would be."""
    options.setdefault("prefill_step_ms", 30.0)
    bench = Bench(num_blocks=2048, runner={"base_ms": 2.0, "token_ms": 1.0}, **options)
    if not joins:
        scheduler = bench.engine.scheduler
        scheduler._joins.take_over = lambda running: None  # type: ignore[method-assign]
        scheduler._joins.first_of_each = lambda prefills: prefills  # type: ignore[method-assign]
    # Known costs, so that the first pieces are not a guess.
    bench.add("before", "y" * 150, tenant="other", max_tokens=2)
    bench.run()
    return bench


def step_until(bench: Bench, done: Any, events: list[Any] | None = None) -> list[Any]:
    events = [] if events is None else events
    while not done():
        events += bench.engine.step()
    return events


def test_eight_at_once_compute_a_shared_prompt_once() -> None:
    alone = bench_of()
    bench = bench_of()
    before = bench.engine.totals.computed_tokens
    for i in range(8):
        bench.add(f"r{i}", SHARED + f"question {i}", max_tokens=5)
    events = bench.run()
    own = 8 * (len("question 0") + 1 + 5 + 4)
    assert bench.engine.totals.computed_tokens - before <= len(SHARED) + own
    ends = [event for event in events if hasattr(event, "usage")]
    found = [end.usage.cached_tokens for end in ends]
    assert sum(count >= len(SHARED) - 4 for count in found) == 7
    counted = bench.engine.stats().counters["repartee_engine_cached_tokens_total"]
    assert counted == sum(found)
    for i in range(8):
        alone.add(f"r{i}", SHARED + f"question {i}", max_tokens=5)
        assert text_of(alone.run(), f"r{i}") == text_of(events, f"r{i}")


def test_who_comes_in_the_midst_joins() -> None:
    bench = bench_of()
    bench.add("first", SHARED + "one", max_tokens=3)
    bench.engine.step()
    bench.engine.step()
    computed = bench.engine.sequences["first"].num_computed
    assert 0 < computed < len(SHARED)
    before = bench.engine.totals.computed_tokens
    bench.add("second", SHARED + "another", max_tokens=3)
    bench.run()
    left = len(SHARED) - computed
    assert bench.engine.totals.computed_tokens - before <= left + 4 + 4 + 8 + 6


def test_a_cancelled_first_passes_the_work_on() -> None:
    bench = bench_of()
    for name in "abc":
        bench.add(name, SHARED + name, max_tokens=3)
    before = bench.engine.totals.computed_tokens
    for gone in "ab":
        bench.engine.step()
        bench.engine.step()
        bench.engine.cancel(gone)
    events = bench.run()
    assert bench.engine.totals.computed_tokens - before <= len(SHARED) + 4 * 4
    alone = bench_of()
    alone.add("c", SHARED + "c", max_tokens=3)
    assert text_of(events, "c") == text_of(alone.run(), "c")


def test_a_failing_first_fails_alone() -> None:
    bench = bench_of()
    for name in "abc":
        bench.add(name, SHARED + name, max_tokens=3)
    events = bench.engine.step()
    bench.runner.fail_next = True
    events += bench.engine.step()
    assert [event.request_id for event in events if isinstance(event, Failed)] == ["a"]
    events += bench.run()
    assert len(text_of(events, "b")) == len(text_of(events, "c")) == 3


def test_a_vip_goes_on_from_what_a_standard_prompt_has_come_to() -> None:
    bench = bench_of()
    bench.add("standard", SHARED * 3 + "long and longer", max_tokens=3)
    for _ in range(4):
        bench.engine.step()
    computed = bench.engine.sequences["standard"].num_computed
    assert computed > 40
    bench.add("vip", SHARED * 3 + "v", tier=Tier.VIP, max_tokens=2)
    asked_at = bench.clock.now
    vip = bench.engine.sequences["vip"]
    step_until(bench, lambda: vip.num_answer_tokens > 0)
    # As if it were alone with what was done before it came, and two steps' borders.
    left_ms = (3 * len(SHARED) + 2 - computed) * (1.0 + 2.0 / 28) + 4.0
    assert (bench.clock.now - asked_at) * 1000 <= left_ms
    last = bench.engine.sequences["standard"]
    bench.engine.step()
    assert last.num_computed >= 3 * len(SHARED) - 4
    bench.run()


def test_another_tenant_s_prompt_is_no_help() -> None:
    bench = bench_of()
    before = bench.engine.totals.computed_tokens
    bench.add("a", SHARED, tenant="t", max_tokens=1)
    bench.add("b", SHARED, tenant="u", max_tokens=1)
    bench.run()
    assert bench.engine.totals.computed_tokens - before >= 2 * len(SHARED)


def test_without_a_prefix_cache_nobody_waits() -> None:
    bench = bench_of(prefix_cache=False)
    bench.add("a", SHARED, max_tokens=1)
    bench.add("b", SHARED, max_tokens=1)
    bench.run()
    assert bench.engine.scheduler._joins.num_tokens == 0


_arrivals = st.lists(
    st.tuples(
        st.integers(0, 120),  # how much of the shared prompt
        st.integers(1, 60),  # what of its own
        st.integers(0, 4),  # steps since the one before
        st.sampled_from([Tier.VIP, Tier.STANDARD, Tier.STANDARD]),
    ),
    min_size=2,
    max_size=6,
)


def first_times(bench: Bench, arrivals: Any) -> list[float]:
    """When each has its first token."""
    times: dict[str, float] = {}
    names: list[str] = []

    def note() -> None:
        for name, seq in bench.engine.sequences.items():
            if seq.num_answer_tokens and name not in times:
                times[name] = bench.clock.now - seq.arrived_at

    for number, (shared, own, gap, tier) in enumerate(arrivals):
        for _ in range(gap):
            bench.engine.step()
            note()
        names.append(f"r{number}")
        text = SHARED[:shared] + chr(65 + number) * own
        bench.add(names[-1], text, tier=tier, max_tokens=50)
    while len(times) < len(names):
        bench.engine.step()
        note()
    bench.run()
    return [times[name] for name in names]


@settings(max_examples=60, deadline=None)
@given(_arrivals)
def test_on_the_whole_nobody_waits_longer_than_by_itself(arrivals: Any) -> None:
    plain, joined = (first_times(bench_of(joins=joins), arrivals) for joins in (False, True))
    # Steps have other borders: an arrival may find one that has just begun.
    step_s = 2 * 0.032 + 0.01
    for before, after in zip(plain, joined, strict=True):
        assert after <= before + step_s
    assert sum(joined) <= sum(plain) + step_s
