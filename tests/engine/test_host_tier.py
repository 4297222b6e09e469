"""Blocks that leave the pool and come back: bounds, order, and answers that don't notice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine import host_tier
from engine.contract import Finished, Overloaded
from engine.host_tier import HostTier
from tests.fakes.runner import Bench, FakeCodec, LateExecutor, text_of


def tier(max_bytes: int = 1000) -> tuple[HostTier, LateExecutor]:
    executor = LateExecutor()
    return HostTier(max_bytes, FakeCodec(), executor), executor


def test_what_is_offered_is_found_before_and_after_packing() -> None:
    host, executor = tier()
    host.offer([b"a", b"b"], [[1, 2], [3, 4]])
    for _ in range(2):
        assert host.match([b"a", b"b", b"c"]) == 2
        assert host.match([b"c", b"a"]) == 0
        assert host.take([b"a", b"b"]) == [[1, 2], [3, 4]]
        host.check()
        executor.catch_up()
    assert (host.num_blocks, host.num_bytes) == (2, 12)


def test_the_longest_unused_goes_first() -> None:
    host, executor = tier(max_bytes=19)
    host.offer([b"a", b"b", b"c"], [[1, 2], [3, 4], [5, 6]])
    executor.catch_up()
    host.take([b"a"])
    host.offer([b"d"], [[7, 8]])
    executor.catch_up()
    assert [host.match([name]) for name in (b"a", b"b", b"c", b"d")] == [1, 0, 1, 1]
    host.check()


def test_a_block_larger_than_all_is_not_kept() -> None:
    host, executor = tier(max_bytes=5)
    host.offer([b"a"], [[1, 2]])
    executor.catch_up()
    assert (host.num_blocks, host.num_bytes) == (0, 0)
    assert host.take([b"a"]) == []


def test_a_step_takes_in_what_left_last_and_no_more_than_may_wait(monkeypatch: Any) -> None:
    monkeypatch.setattr(host_tier, "MAX_STEP_BYTES", 32)
    monkeypatch.setattr(host_tier, "MAX_PENDING_BYTES", 48)
    host, executor = tier()
    assert host.lacks([(1, b"c"), (2, b"b"), (3, b"a")]) == [(2, b"b"), (3, b"a")]
    host.offer([b"b", b"a"], [[1], [2]])
    assert host.lacks([(1, b"f"), (2, b"e"), (3, b"a")]) == [(2, b"e")]
    host.offer([b"e"], [[3]])
    assert host.lacks([(1, b"g")]) == []
    assert host.counts.refused == 3
    executor.catch_up()
    assert host.lacks([(1, b"g"), (2, b"a")]) == [(1, b"g")]


def test_a_thread_packs() -> None:
    with ThreadPoolExecutor(1) as pool:
        host = HostTier(10_000, FakeCodec(), pool)
        for i in range(100):
            host.offer([bytes([i])], [[i]])
            host.check()
        pool.shutdown()
    assert host.take([bytes([i]) for i in range(100)]) == [[i] for i in range(100)]
    host.check()


def usage(events: list[Any]) -> Any:
    return next(event.usage for event in events if isinstance(event, Finished))


def test_a_chat_comes_back_from_the_host_with_the_same_text() -> None:
    story = "a long first turn that fills many blocks. " * 3
    bench = Bench(num_blocks=64, host_bytes=100_000, retained_share=0.0)
    bench.add("r1", story, max_tokens=8)
    first = text_of(bench.run(), "r1")
    for i in range(6):
        bench.add(f"flood{i}", chr(65 + i) * 150, max_tokens=1)
        bench.run()
        bench.executor.catch_up(10)
    bench.add("r2", story, max_tokens=8)
    events = bench.run()
    assert text_of(events, "r2") == first
    assert usage(events).cached_tokens >= len(story) - 4
    counters = bench.engine.stats().counters
    assert counters["repartee_engine_host_restored_total"] >= len(story) // 4 - 1


def test_a_warm_up_brings_blocks_back() -> None:
    story = "a long first turn that fills many blocks. " * 3
    bench = Bench(num_blocks=64, host_bytes=100_000, retained_share=0.0)
    bench.warm("c", story)
    bench.run()
    for i in range(6):
        bench.add(f"flood{i}", chr(65 + i) * 150, max_tokens=1)
        bench.run()
    before = bench.engine.stats().counters["repartee_engine_warm_tokens_total"]
    bench.warm("c", story + "and some more words typed behind it")
    bench.run()
    counters = bench.engine.stats().counters
    assert counters["repartee_engine_warm_tokens_total"] - before < 40
    assert counters["repartee_engine_host_restored_total"] > 25
    assert bench.engine.stats().used_blocks == 0


@settings(max_examples=100, deadline=None)
@given(
    turns=st.lists(
        st.tuples(
            st.sampled_from("abcd"),
            st.integers(1, 40),
            st.sampled_from(["add", "add", "warm", "cancel", "pack", "fault"]),
        ),
        min_size=1,
        max_size=25,
    ),
    num_blocks=st.integers(20, 34),
    host_bytes=st.sampled_from([60, 400, 100_000]),
    step_bytes=st.sampled_from([16, 64, 1 << 20]),
)
def test_answers_do_not_depend_on_where_blocks_are(
    turns: list[tuple[str, int, str]], num_blocks: int, host_bytes: int, step_bytes: int
) -> None:
    bench = Bench(window=72, num_blocks=num_blocks, host_bytes=host_bytes)
    plain = Bench(window=72, num_blocks=40, prefix_cache=False)
    most, host_tier.MAX_STEP_BYTES = host_tier.MAX_STEP_BYTES, step_bytes
    events: list[Any] = []
    expected: list[Any] = []
    try:
        for number, (letter, size, action) in enumerate(turns):
            text = letter * size + " " + letter * 5
            if action == "add":
                plain.add(f"r{number}", text, max_tokens=20)
                expected += plain.run()
                try:
                    events += bench.add(f"r{number}", text, conversation_id=letter, max_tokens=20)
                except Overloaded:
                    continue
            elif action == "warm":
                bench.warm(letter, text)
            elif action == "pack":
                bench.executor.catch_up(size)
            elif action == "cancel":
                for name in list(bench.engine.sequences)[:1]:
                    events += bench.engine.cancel(name)
            bench.runner.fail_next = action == "fault"
            events += bench.engine.step()
        bench.runner.fail_next = False
        events += bench.run(3000)
    finally:
        host_tier.MAX_STEP_BYTES = most
    for end in (event for event in events if hasattr(event, "usage")):
        whole, text = (text_of(which, end.request_id) for which in (expected, events))
        ended = isinstance(end, Finished) and end.reason != "cancelled"
        assert text == whole if ended else whole.startswith(text)
    assert bench.engine.stats().used_blocks == 0
