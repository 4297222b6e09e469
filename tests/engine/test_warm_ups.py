"""Warm-ups: what they save, whom they never hold up, and how they end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.contract import Finished, Message, Overloaded, Tier
from engine.drafts import stable_tokens
from tests.fakes.runner import Bench, encode_chat, text_of

STORY = "once upon a time there was a river that ran past a small town and "


def usage(events: list[Any]) -> Any:
    return next(event.usage for event in events if isinstance(event, Finished))


def test_a_warmed_prompt_is_found() -> None:
    bench = Bench()
    bench.warm("c", STORY + "a mil")
    assert bench.run() == []
    bench.add("r", STORY + "a mill", conversation_id="c", max_tokens=4)
    first = bench.engine.step()
    assert bench.runner.plans[-1].num_tokens < 16
    spent = usage(first + bench.run())
    assert spent.cached_tokens > len(STORY) - 8
    assert bench.engine.stats().counters["repartee_engine_warm_tokens_total"] == spent.cached_tokens


def test_it_is_never_billed_or_answered() -> None:
    bench = Bench()
    bench.warm("c", STORY)
    assert bench.run() == []
    stats = bench.engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.used_blocks) == (0, 0, 0)
    assert stats.counters["repartee_engine_requests_total"] == 0
    assert stats.counters["repartee_engine_completion_tokens_total"] == 0


def test_a_draft_that_grows_computes_only_what_is_new() -> None:
    bench = Bench()
    for size in range(10, len(STORY), 10):
        bench.warm("c", STORY[:size])
        bench.run()
    assert bench.engine.stats().counters["repartee_engine_warm_tokens_total"] <= len(STORY)


def test_one_a_conversation_and_a_submit_ends_it() -> None:
    bench = Bench()
    warm_ups = bench.engine.scheduler.warm_ups
    bench.warm("c", "other words than those " + STORY)
    bench.warm("c", STORY)
    assert len(warm_ups) == 1
    bench.add("r", STORY, conversation_id="c", max_tokens=1)
    assert len(warm_ups) == 0
    bench.run()
    assert bench.engine.stats().counters["repartee_engine_warm_tokens_total"] == 0


def test_release_ends_it() -> None:
    bench = Bench()
    bench.warm("c", STORY)
    bench.engine.release("c")
    bench.engine.release("unknown")
    assert not bench.engine.has_work()


def test_prompts_go_first_and_nobody_misses_a_step() -> None:
    bench = Bench(runner={"token_ms": 1.0})
    warm_tokens = "repartee_engine_warm_tokens_total"
    bench.add("r", "hi", max_tokens=200, tier=Tier.BATCH)
    bench.warm("c", STORY * 4)
    bench.add("s", STORY * 2, tier=Tier.BATCH, max_tokens=200)
    while any(seq.num_uncomputed > 1 for seq in bench.engine.sequences.values()):
        bench.engine.step()
        assert bench.engine.stats().counters[warm_tokens] == 0
    while bench.engine.stats().counters[warm_tokens] == 0:
        bench.engine.step()
        plan = bench.runner.plans[-1]
        assert [item.sequence.request_id for item in plan.work[:2]] == ["r", "s"]
        assert all(item.samples for item in plan.work[:2])
        assert plan.num_tokens <= bench.config.max_step_tokens


def test_none_is_computed_while_any_prompt_is_not() -> None:
    bench = Bench(max_step_tokens=16)
    for name in ("r", "s"):
        bench.add(name, "hi", max_tokens=300)
    bench.engine.step()
    bench.warm("c", "now " + STORY * 4)
    bench.add("t", STORY * 3, max_tokens=2, tier=Tier.BATCH)
    while bench.engine.sequences["t"].num_uncomputed > 1:
        bench.engine.step()
        plan = bench.runner.plans[-1]
        assert {item.sequence.request_id for item in plan.work} <= {"r", "s", "t"}
    bench.engine.cancel("r")
    bench.engine.cancel("s")
    bench.run()
    assert bench.engine.stats().counters["repartee_engine_warm_tokens_total"] > 200


def test_a_fault_ends_it_alone() -> None:
    bench = Bench()
    bench.warm("c", STORY)
    bench.runner.fail_next = True
    assert bench.engine.step() == []
    assert not bench.engine.has_work()
    bench.add("r", STORY, max_tokens=3)
    assert usage(bench.run()).cached_tokens == 0


def test_a_tenant_cannot_spend_without_end() -> None:
    bench = Bench(warm_tokens_per_minute=40)
    bench.warm("c", STORY)
    bench.run()
    warm_tokens = "repartee_engine_warm_tokens_total"
    assert bench.engine.stats().counters[warm_tokens] == 40
    bench.warm("d", "more" + STORY)
    bench.run()
    assert bench.engine.stats().counters[warm_tokens] == 40
    bench.warm("e", "of another tenant " + STORY, tenant="u")
    bench.run()
    assert bench.engine.stats().counters[warm_tokens] == 80
    bench.clock.advance(60)
    bench.warm("d", "more" + STORY)
    bench.run()
    assert bench.engine.stats().counters[warm_tokens] == 120


def test_a_pool_too_small_ends_it() -> None:
    bench = Bench(num_blocks=8)
    bench.warm("c", STORY[:28])
    bench.warm("d", STORY[5:30])
    bench.run(max_steps=100)
    assert not bench.engine.has_work()


def test_one_left_alone_expires() -> None:
    bench = Bench(num_blocks=64, max_running=1)
    bench.add("r", "hi", max_tokens=200)
    bench.add("s", "hi", max_tokens=2)
    bench.warm("c", STORY)
    bench.engine.step()
    bench.clock.advance(31)
    bench.engine.cancel("r")
    bench.run()
    assert bench.engine.stats().counters["repartee_engine_warm_tokens_total"] == 0


def test_without_a_prefix_cache_there_is_none() -> None:
    bench = Bench(prefix_cache=False)
    bench.warm("c", STORY)
    assert not bench.engine.has_work()


def test_draining_ends_all() -> None:
    bench = Bench()
    bench.warm("c", STORY)
    bench.engine.drain()
    bench.warm("d", STORY)
    assert not bench.engine.has_work()


@pytest.mark.parametrize(
    ("draft", "certain"),
    [("", ""), ("hel", ""), ("hello wor", "hello"), ("a b, ", "a b"), ("it's don", "it's")],
)
def test_the_last_word_is_left_out(draft: str, certain: str) -> None:
    earlier = (Message("user", "before"),)
    tokens = stable_tokens(encode_chat, earlier, draft)
    assert tokens == [*encode_chat(earlier), *certain.encode()]


@settings(max_examples=60, deadline=None)
@given(
    drafts=st.lists(
        st.tuples(
            st.sampled_from("cd"),
            st.integers(0, 60),
            st.sampled_from(["add", "warm", "warm", "warm", "release", "step", "cancel"]),
        ),
        min_size=1,
        max_size=25,
    ),
    num_blocks=st.integers(18, 60),
    fault_at=st.one_of(st.none(), st.integers(0, 20)),
)
def test_answers_are_the_same_with_warm_ups_among_them(
    drafts: list[tuple[str, int, str]], num_blocks: int, fault_at: int | None
) -> None:
    bench = Bench(window=64, num_blocks=num_blocks)
    plain = Bench(window=64, num_blocks=60, prefix_cache=False)
    events: list[Any] = []
    expected: list[Any] = []
    for number, (conversation, size, action) in enumerate(drafts):
        text = conversation + STORY[:size]
        if action == "warm":
            bench.warm(conversation, text)
        elif action == "add" and size < 50:
            plain.add(f"r{number}", text, max_tokens=9)
            expected += plain.run()
            try:
                events += bench.add(f"r{number}", text, conversation_id=conversation, max_tokens=9)
            except Overloaded:
                continue
        elif action == "release":
            bench.engine.release(conversation)
        elif action == "cancel":
            for name in list(bench.engine.sequences)[:1]:
                events += bench.engine.cancel(name)
        bench.runner.fail_next = number == fault_at
        events += bench.engine.step()
    bench.runner.fail_next = False
    events += bench.run(2000)
    ends = [event for event in events if hasattr(event, "usage")]
    assert len(ends) == len({event.request_id for event in ends})
    for end in ends:
        whole = text_of(expected, end.request_id)
        text = text_of(events, end.request_id)
        if isinstance(end, Finished) and end.reason != "cancelled":
            assert text == whole
        else:
            assert whole.startswith(text)
