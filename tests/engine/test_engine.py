"""The engine over a fake model: events, ends, cancel, deadlines, faults."""

from __future__ import annotations

import gc

import pytest

from engine.contract import (
    Accepted,
    Conflict,
    ContextLengthExceeded,
    DeadlineExceeded,
    Delta,
    EngineFault,
    Failed,
    Finished,
    FinishReason,
    InvalidRequest,
    NotFound,
    Overloaded,
    Tier,
    Unavailable,
    Usage,
)
from tests.fakes.runner import EOS_ID, Bench, text_of


def test_one_request_end_to_end() -> None:
    bench = Bench()
    events = bench.add("a", "hi", max_tokens=10)
    assert events == [Accepted("a", 1, 0, prompt_tokens=3)]
    events += bench.run()
    assert [event.seq for event in events] == list(range(len(events)))
    assert [event.num_tokens for event in events if isinstance(event, Delta)] == [1, 3, 3, 3]
    usage = Usage(3, 10, 0)
    assert events[-1] == Finished("a", 1, len(events) - 1, FinishReason.LENGTH, usage, 0.0)
    assert len(text_of(events, "a")) == 10


def test_fin_02_natural_end_sends_stop() -> None:
    bench = Bench(runner={"eos_every": 6})
    bench.add("a", "hello")
    events = bench.run()
    assert events[-1].reason is FinishReason.STOP
    assert events[-1].usage.completion_tokens == len(text_of(events, "a"))


def test_ignore_eos_goes_on() -> None:
    bench = Bench(runner={"next_token": lambda tokens, seed: EOS_ID})
    bench.add("a", ignore_eos=True, max_tokens=5)
    events = bench.run()
    assert events[-1].reason is FinishReason.LENGTH
    assert events[-1].usage.completion_tokens == 5
    assert text_of(events, "a") == ""


def test_stop_token_ends_and_is_not_counted() -> None:
    bench = Bench(runner={"next_token": lambda tokens, seed: 97 + len(tokens) % 26})
    bench.add("a", "hi", stop_token_ids=(97 + 6,))
    events = bench.run()
    assert text_of(events, "a") == "def"
    assert events[-1].usage == Usage(3, 3, 0)
    assert events[-1].reason is FinishReason.STOP


def test_smp_09_max_tokens_one_gives_one_token() -> None:
    bench = Bench()
    bench.add("a", max_tokens=1)
    events = bench.run()
    assert [type(event) for event in events] == [Delta, Finished]
    assert events[-1].usage.completion_tokens == 1
    assert len(text_of(events, "a")) == 1


def test_txt_02_bytes_that_are_no_text_count_as_tokens() -> None:
    bench = Bench(runner={"next_token": lambda tokens, seed: 0xF0 if len(tokens) % 2 else 0x9F})
    bench.add("a", "hi", max_tokens=5)
    events = bench.run()
    assert events[-1].usage.completion_tokens == 5
    assert text_of(events, "a") == bytes((0xF0, 0x9F, 0xF0, 0x9F, 0xF0)).decode("utf-8", "replace")
    deltas = [event for event in events if isinstance(event, Delta)]
    assert sum(delta.num_tokens for delta in deltas) == 5


def test_ctx_01_long_prompt_is_refused_with_length_and_limit() -> None:
    bench = Bench(window=64)
    with pytest.raises(ContextLengthExceeded, match=r"window of 64 tokens, got 64 tokens"):
        bench.engine.prepare(bench.request("a", "x" * 63))
    with pytest.raises(ContextLengthExceeded, match=r"got at least 64 tokens"):
        bench.engine.prepare(bench.request("a", "x" * 64))
    bench.engine.prepare(bench.request("a", "x" * 62))


def test_ctx_02_ends_at_the_window() -> None:
    bench = Bench(window=64)
    bench.add("a", "x" * 50)
    events = bench.run()
    assert events[-1].reason is FinishReason.LENGTH
    assert events[-1].usage == Usage(51, 13, 0)
    assert bench.engine.stats().num_running == 0
    assert bench.engine.stats().used_blocks == 0


def test_a_pool_smaller_than_the_window_is_the_limit() -> None:
    bench = Bench(window=4096, num_blocks=4)
    with pytest.raises(ContextLengthExceeded, match="16 tokens"):
        bench.engine.prepare(bench.request("a", "x" * 15))
    bench.add("a", "x" * 9)
    assert bench.run()[-1].usage.completion_tokens == 6


def test_smp_03_smp_04_token_ids_outside_the_vocabulary_are_refused() -> None:
    bench = Bench()
    bench.add("busy", max_tokens=20)
    for sampling in ({"logit_bias": ((300, 1.0),)}, {"stop_token_ids": (300,), "min_tokens": 5}):
        with pytest.raises(InvalidRequest, match="from 0 to 299, got 300"):
            bench.engine.prepare(bench.request("a", **sampling))
    assert bench.run()[-1].usage.completion_tokens == 20


def test_another_model_is_not_found() -> None:
    bench = Bench()
    request = bench.request("a")
    object.__setattr__(request, "model", "other")
    with pytest.raises(NotFound, match="'other'"):
        bench.engine.prepare(request)


def test_a_live_id_is_refused_a_second_time() -> None:
    bench = Bench()
    bench.add("a", max_tokens=5)
    with pytest.raises(Conflict):
        bench.add("a", max_tokens=5)
    assert bench.run()[-1].usage.completion_tokens == 5
    bench.add("a", max_tokens=5)


def test_cancel_before_the_first_token() -> None:
    bench = Bench()
    bench.add("a", "hi")
    assert bench.engine.cancel("a") == [Finished("a", 1, 1, FinishReason.CANCELLED, Usage(3, 0, 0))]
    assert not bench.engine.has_work()
    assert bench.engine.cancel("a") == []
    assert bench.engine.step() == []


def test_cancel_while_running_keeps_the_text_so_far() -> None:
    bench = Bench()
    bench.add("a", "hi", max_tokens=50)
    events = []
    for _ in range(6):
        events += bench.engine.step()
    events += bench.engine.cancel("a")
    assert len(text_of(events, "a")) == 6
    assert events[-1].usage == Usage(3, 6, 0)
    assert bench.engine.stats().used_blocks == 0


def test_can_05_cancelled_in_the_queue_never_runs() -> None:
    bench = Bench(max_running=2)
    for name in ("a", "b"):
        bench.add(name, name, max_tokens=30)
    bench.engine.step()
    for i in range(10):
        bench.add(f"q{i}", f"q{i}", max_tokens=3)
    for i in range(0, 10, 2):
        assert [type(event) for event in bench.engine.cancel(f"q{i}")] == [Finished]
    assert bench.engine.stats().num_waiting == 5
    events = bench.run()
    ran = {item.sequence.request_id for plan in bench.runner.plans for item in plan.work}
    assert ran == {"a", "b", "q1", "q3", "q5", "q7", "q9"}
    ends = [event.request_id for event in events if isinstance(event, Finished)]
    assert sorted(ends) == sorted(ran)


def test_mem_04_cancels_of_unknown_ids_leave_nothing() -> None:
    bench = Bench(check_invariants=False)
    for i in range(1000):
        assert bench.engine.cancel(f"unknown-{i}") == []
    assert not bench.engine.sequences


def test_mem_01_ended_requests_leave_nothing() -> None:
    bench = Bench(check_invariants=False, num_blocks=32, speculation="ngram")

    def run_some(start: int) -> int:
        for i in range(start, start + 200):
            bench.add(f"r{i}", f"prompt {i}", max_tokens=6, stop=("zz",))
            if i % 3 == 0:
                bench.engine.step()
                bench.engine.cancel(f"r{i}")
            bench.run()
        bench.runner.plans.clear()
        gc.collect()
        return len(gc.get_objects())

    run_some(0)
    before = run_some(200)
    # Python itself keeps a few objects more or less.
    assert run_some(400) - before < 50


@pytest.mark.parametrize("steps", [0, 4])
def test_deadline_passes_waiting_or_running(steps: int) -> None:
    bench = Bench()
    bench.add("a", "hi", deadline_s=1.0)
    bench.add("b", "hi", max_tokens=3)
    events = [event for _ in range(steps) for event in bench.engine.step()]
    bench.clock.advance(2.0)
    events += bench.run()
    failed = [event for event in events if isinstance(event, Failed)]
    assert [event.request_id for event in failed] == ["a"]
    assert isinstance(failed[0].error, DeadlineExceeded)
    assert failed[0].usage.completion_tokens == len(text_of(events, "a")) == steps


def test_runner_fault_fails_only_that_step() -> None:
    bench = Bench(max_running=2)
    for name in ("a", "b", "c"):
        bench.add(name, name, max_tokens=8)
    bench.engine.step()
    bench.runner.fail_next = True
    events = bench.run()
    ends = {event.request_id: event for event in events if isinstance(event, Finished | Failed)}
    assert isinstance(ends["a"].error, EngineFault)
    assert "told to fail" not in ends["a"].error.message
    assert isinstance(ends["b"].error, EngineFault)
    assert ends["c"].usage.completion_tokens == 8
    assert bench.engine.stats().used_blocks == 0


def test_nothing_to_sample_fails_that_request_alone() -> None:
    bench = Bench(runner={"next_token": lambda tokens, seed: -1 if seed == 1 else 97})
    bench.add("a", seed=1)
    bench.add("b", seed=2, max_tokens=4)
    events = bench.run()
    ends = {event.request_id: event for event in events if isinstance(event, Finished | Failed)}
    assert isinstance(ends["a"].error, EngineFault)
    assert text_of(events, "b") == "aaaa"


def test_a_full_queue_is_overloaded() -> None:
    bench = Bench(standard_max_waiting=2)
    bench.add("a")
    bench.add("b")
    with pytest.raises(Overloaded, match="2 standard requests wait") as caught:
        bench.add("c")
    assert caught.value.retry_after_ms
    bench.engine.step()
    bench.add("c")


def test_drain_refuses_new_work_and_ends_the_old() -> None:
    bench = Bench()
    bench.add("a", max_tokens=5)
    bench.engine.drain()
    with pytest.raises(Unavailable):
        bench.add("b")
    assert bench.run()[-1].usage.completion_tokens == 5


def test_a_later_epoch_is_on_every_event() -> None:
    bench = Bench()
    events = bench.add("a", epoch=3, max_tokens=4) + bench.run()
    assert {event.epoch for event in events} == {3}


def test_unseeded_requests_draw_their_own_seeds() -> None:
    bench = Bench()
    seeds = {bench.engine.prepare(bench.request("a", seed=None)).seed for _ in range(20)}
    assert len(seeds) == 20


def test_bat_01_eight_at_once_equal_eight_in_turn() -> None:
    prompts = [f"prompt number {i} " * (i + 1) for i in range(8)]
    serial = Bench()
    texts = []
    for i, prompt in enumerate(prompts):
        serial.add(f"r{i}", prompt, max_tokens=40)
        texts.append(text_of(serial.run(), f"r{i}"))
    together = Bench()
    for i, prompt in enumerate(prompts):
        together.add(f"r{i}", prompt, max_tokens=40)
    events = together.run()
    assert [text_of(events, f"r{i}") for i in range(8)] == texts


def test_vip_goes_first() -> None:
    bench = Bench(max_running=1)
    for name, tier in (("a", Tier.BATCH), ("b", Tier.STANDARD), ("c", Tier.VIP)):
        bench.add(name, name, tier=tier, max_tokens=2)
    ends = [event.request_id for event in bench.run() if isinstance(event, Finished)]
    assert ends == ["c", "b", "a"]
