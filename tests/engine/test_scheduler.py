"""Priorities, suspension, prefill beside decode, prefix reuse: over the fake model."""

from __future__ import annotations

from typing import Any

import pytest

from engine.contract import Delta, Finished, Tier
from engine.step import StepOutput, StepPlan
from tests.fakes.runner import Bench, hashed_token, text_of


def expected_text(bench: Bench, text: str, count: int, seed: int = 7) -> str:
    """What the fake model says, worked out without an engine."""
    tokens = bench.engine.prepare(bench.request("x", text)).tokens
    start = len(tokens)
    for _ in range(count):
        tokens = [*tokens, hashed_token(tokens, seed, 0)]
    return bytes(tokens[start:]).decode()


def ends(events: list[Any]) -> list[str]:
    return [event.request_id for event in events if isinstance(event, Finished)]


def first_delta_at(bench: Bench, request_id: str, max_steps: int = 1000) -> float:
    """Seconds on the clock until a request's first text."""
    start = bench.clock.now
    for _ in range(max_steps):
        events = bench.engine.step()
        if any(isinstance(event, Delta) and event.request_id == request_id for event in events):
            return bench.clock.now - start
    raise AssertionError(f"no text of {request_id}")


def test_prefill_runs_beside_decode_in_pieces() -> None:
    bench = Bench(num_blocks=2048, target_step_ms=40.0)
    bench.add("chat", "hi", max_tokens=400)
    for _ in range(10):
        bench.engine.step()
    bench.add("long", "x" * 1500, max_tokens=2)
    sizes = []
    while not any(seq.num_computed for seq in bench.engine.scheduler.running[1:]):
        bench.engine.step()
    while "long" in bench.engine.sequences:
        before = bench.clock.now
        bench.engine.step()
        plan = bench.runner.plans[-1]
        assert plan.work[0].sequence.request_id == "chat"
        assert plan.work[0].num_tokens == 1
        sizes.append(bench.clock.now - before)
    # A step costs 10 ms and 1 ms a token, so pieces settle at about 29 tokens.
    assert max(sizes[2:]) <= 0.0401
    assert all(
        item.num_tokens % 4 == 0
        for plan in bench.runner.plans
        for item in plan.work
        if item.num_tokens > 1 and not item.samples
    )
    assert text_of(bench.run(), "chat")


def test_a_long_context_shrinks_the_pieces() -> None:
    # Attention costs as much as all else at 3000 tokens, as on a small machine.
    costs = {"base_ms": 12.0, "token_ms": 1.5, "context_ms": 0.5}
    bench = Bench(num_blocks=2048, window=8192, block_size=16, runner=costs)
    bench.add("chat", "hi", max_tokens=1000)
    for _ in range(20):
        bench.engine.step()
    bench.add("long", "x" * 7000, max_tokens=1)
    gaps = []
    while "long" in bench.engine.sequences:
        before = bench.clock.now
        bench.engine.step()
        gaps.append((bench.clock.now - before) * 1000)
    late = sorted(gaps)[int(len(gaps) * 0.98)]
    assert late <= 1.25 * bench.config.target_step_ms
    # Now and then a larger piece is tried again.
    assert max(gaps[2:]) <= 2 * bench.config.target_step_ms
    assert sum(gaps) / len(gaps) >= 0.7 * bench.config.target_step_ms


def test_slow_steps_do_not_shrink_pieces_to_nothing() -> None:
    # Any step takes longer than it should, and more tokens hardly change that.
    bench = Bench(num_blocks=2048, block_size=16, runner={"base_ms": 200.0, "token_ms": 0.5})
    bench.add("chat", "hi", max_tokens=1000)
    for _ in range(5):
        bench.engine.step()
    bench.add("long", "x" * 3000, max_tokens=1)
    num_steps = 0
    while "long" in bench.engine.sequences:
        bench.engine.step()
        num_steps += 1
    assert num_steps < 30


def test_pri_01_long_low_prompts_do_not_block_a_vip() -> None:
    bench = Bench(num_blocks=8192, window=16_384)
    unloaded = Bench()
    unloaded.add("vip", "hi", tier=Tier.VIP, max_tokens=1)
    alone = first_delta_at(unloaded, "vip")
    for i in range(4):
        bench.add(f"long{i}", f"{i}" * 7000, tier=Tier.BATCH, max_tokens=2)
    for _ in range(5):
        bench.engine.step()
    bench.add("vip", "hi", tier=Tier.VIP, max_tokens=1)
    assert first_delta_at(bench, "vip") <= alone + 2 * bench.config.prefill_step_ms / 1000


def test_short_prompts_pass_a_long_one_of_their_own_tier() -> None:
    bench = Bench(num_blocks=8192, window=16_384)
    bench.add("long", "x" * 7000, max_tokens=1)
    bench.engine.step()
    bench.add("short", "hi", max_tokens=1)
    events = []
    while "short" in bench.engine.sequences:
        events += bench.engine.step()
    assert ends(events) == ["short"]
    assert len(bench.runner.plans) < 10
    # The long one went on meanwhile.
    assert all(any(w.sequence.request_id == "long" for w in p.work) for p in bench.runner.plans)


def test_pri_02_low_tiers_do_not_starve() -> None:
    bench = Bench(max_running=1, ageing_ms=1000.0)
    bench.add("batch", "b", tier=Tier.BATCH, max_tokens=3)
    started = bench.clock.now
    for i in range(200):
        bench.add(f"vip{i}", f"v{i}", tier=Tier.VIP, max_tokens=5)
        while len(bench.engine.scheduler.waiting) > 2:
            if "batch" in ends(bench.engine.step()):
                # Three ageing times, and the answers before it.
                assert bench.clock.now - started < 3.5
                return
    raise AssertionError("the batch request starved")


def test_first_come_first_served_within_a_tier() -> None:
    bench = Bench(max_running=1)
    for i in range(6):
        bench.add(f"r{i}", f"{i}", max_tokens=3)
    assert ends(bench.run()) == [f"r{i}" for i in range(6)]


def test_pri_04_a_pool_too_small_for_two_does_not_thrash() -> None:
    bench = Bench(num_blocks=26, block_size=4)
    prompts = {"a": "first prompt", "b": "other prompt"}
    for name, prompt in prompts.items():
        bench.add(name, prompt, max_tokens=60)
    suspended: set[int] = set()
    events = []
    while bench.engine.has_work():
        events += bench.engine.step()
        suspended |= {seq.num_suspensions for seq in bench.engine.sequences.values()}
    assert 1 <= bench.engine.scheduler.counts.suspensions < 10
    assert max(suspended) <= bench.config.max_suspensions
    for name, prompt in prompts.items():
        assert text_of(events, name) == expected_text(bench, prompt, 60)
    serial = Bench(num_blocks=26, block_size=4)
    for name, prompt in prompts.items():
        serial.add(name, prompt, max_tokens=60)
        serial.run()
    assert bench.clock.now <= serial.clock.now


def test_admission_leaves_room_for_answers_to_grow() -> None:
    bench = Bench(num_blocks=10, block_size=4)
    bench.add("a", "x" * 7, max_tokens=20)
    bench.engine.step()
    # Seven blocks: all that are free, and the first answer still grows.
    bench.add("b", "y" * 27, max_tokens=4)
    assert ends(bench.run()) == ["a", "b"]
    assert bench.engine.scheduler.counts.suspensions == 0


def test_an_aged_request_is_not_suspended_for_a_vip() -> None:
    bench = Bench(max_running=1, ageing_ms=100.0)
    bench.add("first", "f", max_tokens=40)
    bench.engine.step()
    bench.add("batch", "b", tier=Tier.BATCH, max_tokens=20)
    while "first" in bench.engine.sequences:
        bench.engine.step()
    bench.engine.step()
    bench.add("vip", "v", tier=Tier.VIP, max_tokens=2)
    assert ends(bench.run()) == ["batch", "vip"]
    assert bench.engine.scheduler.counts.suspensions == 0


def test_pri_06_a_vip_takes_a_slot_and_the_victim_resumes_exactly() -> None:
    bench = Bench(max_running=2)
    for name in ("b0", "b1"):
        bench.add(name, name, tier=Tier.BATCH, max_tokens=40)
    events = [event for _ in range(10) for event in bench.engine.step()]
    bench.add("vip", "hi", tier=Tier.VIP, max_tokens=3)
    # At most as long as it takes to compute the victim's tokens again.
    for _ in range(6):
        if bench.engine.scheduler.counts.suspensions == 0:
            events += bench.engine.step()
    running = {seq.request_id for seq in bench.engine.scheduler.running}
    assert running == {"b0", "vip"}
    events += bench.run()
    assert ends(events)[0] == "vip"
    for name in ("b0", "b1"):
        assert text_of(events, name) == expected_text(bench, name, 40)


def test_a_vip_waits_no_longer_than_its_victim_takes_to_compute_again() -> None:
    bench = Bench(max_running=1, num_blocks=1024)
    # A prompt's token takes a millisecond.
    bench.add("short", "x" * 30, tier=Tier.BATCH, max_tokens=500)
    bench.add("long", "y" * 400, tier=Tier.BATCH, max_tokens=500)
    waits = {}
    for name in ("short", "long"):
        while not any(s.request_id == name for s in bench.engine.scheduler.running):
            bench.engine.step()
        for _ in range(20):
            bench.engine.step()
        victim = bench.engine.sequences[name]
        bench.add(f"vip {name}", "hi", tier=Tier.VIP, max_tokens=2)
        vip = bench.engine.sequences[f"vip {name}"]
        lost_s = victim.num_computed / 1000
        while vip.started_at is None:
            bench.engine.step()
        waits[name] = vip.started_at - vip.arrived_at
        assert waits[name] <= 1.5 * lost_s + 0.05
        bench.engine.cancel(name)
    assert waits["long"] > 4 * waits["short"] > 0
    bench.run()


def test_a_vip_waits_rather_than_suspend_who_is_about_to_end() -> None:
    bench = Bench(max_running=1, num_blocks=1024)
    bench.add("batch", "x" * 400, tier=Tier.BATCH, max_tokens=25)
    while len(bench.engine.sequences["batch"].tokens) < 400 + 20:
        bench.engine.step()
    bench.add("vip", "hi", tier=Tier.VIP, max_tokens=2)
    assert ends(bench.run()) == ["batch", "vip"]
    assert bench.engine.scheduler.counts.suspensions == 0


@pytest.mark.parametrize("tier", [Tier.STANDARD, Tier.BATCH])
def test_a_standard_request_starts_within_its_ageing_time(tier: Tier) -> None:
    bench = Bench(max_running=2, num_blocks=1024, standard_max_wait_ms=1e9, ageing_ms=2000.0)
    for i in range(2):
        bench.add(f"endless{i}", f"{i}", tier=tier, max_tokens=600)
    events = bench.engine.step()
    for i in range(2):
        bench.add(f"late{i}", "x" * 30, max_tokens=5)
    late = [bench.engine.sequences[f"late{i}"] for i in range(2)]
    events += bench.run()
    for seq in late:
        assert seq.started_at - seq.arrived_at <= bench.config.ageing_ms / 1000
    for i in range(2):
        name = f"endless{i}"
        assert text_of(events, name) == expected_text(bench, str(i), 600)


def test_vips_leave_a_standard_request_its_start() -> None:
    limits = {"standard_max_wait_ms": 1e9, "vip_max_wait_ms": 1e9}
    bench = Bench(max_running=2, num_blocks=1024, ageing_ms=5000.0, **limits)
    for i in range(2):
        bench.add(f"first{i}", "x", tier=Tier.VIP, max_tokens=60)
    bench.engine.step()
    bench.add("late", "x" * 30, max_tokens=5)
    late = bench.engine.sequences["late"]
    num_vips = 0
    while late.started_at is None:
        while len(bench.engine.sequences) < 8:
            bench.add(f"vip{num_vips}", f"{num_vips}", tier=Tier.VIP, max_tokens=60)
            num_vips += 1
        bench.engine.step()
    assert num_vips > 10
    assert late.started_at - late.arrived_at <= bench.config.ageing_ms / 1000


def test_a_vip_takes_blocks_from_lower_tiers() -> None:
    bench = Bench(num_blocks=12, block_size=4)
    bench.add("low", "x" * 30, tier=Tier.STANDARD, max_tokens=8)
    events = bench.engine.step()
    bench.add("vip", "y" * 30, tier=Tier.VIP, max_tokens=2)
    events += bench.run()
    assert ends(events) == ["vip", "low"]
    assert text_of(events, "low") == expected_text(bench, "x" * 30, 8)


def test_a_vip_that_could_not_fit_suspends_nobody() -> None:
    bench = Bench(num_blocks=24, block_size=4)
    bench.add("v0", "x" * 60, tier=Tier.VIP, max_tokens=20)
    bench.add("low", "abc", tier=Tier.BATCH, max_tokens=30)
    events = bench.engine.step()
    bench.add("v1", "y" * 60, tier=Tier.VIP, max_tokens=2)
    for _ in range(5):
        events += bench.engine.step()
    assert "low" in {seq.request_id for seq in bench.engine.scheduler.running}
    assert len(ends(events + bench.run())) == 3


def test_suspensions_of_one_request_are_bounded() -> None:
    bench = Bench(max_running=1, max_suspensions=2, ageing_ms=1e6)
    bench.add("batch", "b", tier=Tier.BATCH, max_tokens=30)
    events = bench.engine.step()
    for i in range(6):
        bench.add(f"v{i}", f"v{i}", tier=Tier.VIP, max_tokens=2)
        while f"v{i}" in bench.engine.sequences and "batch" in bench.engine.sequences:
            events += bench.engine.step()
        events += bench.engine.step()
    events += bench.run()
    assert bench.engine.scheduler.counts.suspensions == 2
    assert text_of(events, "batch") == expected_text(bench, "b", 30)


def test_suspended_text_is_flushed_and_not_held() -> None:
    bench = Bench(max_running=1, flush_ms=50.0)
    bench.add("low", "x", tier=Tier.BATCH, max_tokens=40)
    events = [event for _ in range(6) for event in bench.engine.step()]
    bench.add("vip", "hi", tier=Tier.VIP, max_tokens=30)
    while not bench.engine.scheduler.counts.suspensions:
        events += bench.engine.step()
    low = bench.engine.sequences["low"]
    for _ in range(10):
        events += bench.engine.step()
    assert len(text_of(events, "low")) == low.num_answer_tokens >= 6


@pytest.mark.parametrize("length", [3, 4, 5, 8, 9])
@pytest.mark.parametrize("max_tokens", [1, 20])
def test_pfx_02_whole_blocks_twice(length: int, max_tokens: int) -> None:
    bench = Bench(block_size=4)
    # The chat adds one token to the text.
    text = "abcdefghij"[: length - 1]
    texts = []
    for i in range(2):
        bench.add(f"r{i}", text, max_tokens=max_tokens)
        events = bench.run()
        texts.append(text_of(events, f"r{i}"))
    assert texts[0] == texts[1] == expected_text(bench, text, max_tokens)
    cached = events[-1].usage.cached_tokens
    assert cached == (length - 1) // 4 * 4
    assert cached < length


def test_pfx_01_a_shared_prefix_is_found() -> None:
    bench = Bench()
    system = "you are a helpful assistant " * 4
    for i in range(5):
        question = f"{system} question {i}?"
        bench.add(f"r{i}", question, max_tokens=12)
        events = bench.run()
        assert text_of(events, f"r{i}") == expected_text(bench, question, 12)
        assert (events[-1].usage.cached_tokens > 100) == (i > 0)


def test_the_next_turn_finds_the_answer_as_well() -> None:
    bench = Bench()
    bench.add("r0", "hello there", max_tokens=30)
    answer = text_of(bench.run(), "r0")
    # In this chat format a turn's text follows its tokens directly.
    prompt = bench.engine.prepare(bench.request("x", "hello there")).tokens
    request = bench.request("r1", "hello there")
    prepared = bench.engine.prepare(request)
    longer = [*prompt, *answer.encode(), 257, 104, 105]
    object.__setattr__(prepared, "tokens", longer)
    prepared.block_names.clear()
    from engine.prefix_cache import extend_names

    extend_names(prepared.block_names, prepared.root_name, longer, 4)
    bench.engine.add(prepared)
    usage = next(e for e in bench.run() if isinstance(e, Finished)).usage
    assert usage.cached_tokens == (len(prompt) + len(answer) - 1) // 4 * 4


def test_tenants_do_not_share_prefixes() -> None:
    bench = Bench()
    for i, tenant in enumerate(("t", "u", "t")):
        bench.add(f"r{i}", "the same text", tenant=tenant, max_tokens=2)
        cached = bench.run()[-1].usage.cached_tokens
        assert (cached > 0) == (i == 2)


def test_prefix_cache_off() -> None:
    bench = Bench(prefix_cache=False)
    for i in range(2):
        bench.add(f"r{i}", "the same text", max_tokens=2)
        assert bench.run()[-1].usage.cached_tokens == 0
    assert bench.engine.scheduler.blocks.num_named == 0


def test_several_decode_steps_in_one_plan() -> None:
    bench = Bench(runner={"max_decode_steps": 4}, num_blocks=64)
    bench.add("a", "hello", max_tokens=30)
    bench.add("b", "world", max_tokens=7)
    events = bench.run()
    assert text_of(events, "a") == expected_text(bench, "hello", 30)
    assert text_of(events, "b") == expected_text(bench, "world", 7)
    assert len(bench.runner.plans) < 12


@pytest.mark.parametrize("num_blocks", [64, 5])
def test_blocks_for_tokens_made_ahead_are_reserved_where_they_abound(
    num_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(runner={"max_decode_steps": 4, "max_ahead_steps": 2}, num_blocks=num_blocks)
    missing: list[int] = []
    run = bench.runner.run

    def look(plan: StepPlan) -> StepOutput:
        for item in plan.work:
            if item.num_tokens == 1:
                reach = min(item.start + item.num_decode_steps + 3, item.sequence.max_tokens - 1)
                missing.append(max(0, reach - 4 * len(item.sequence.block_table)))
        return run(plan)

    monkeypatch.setattr(bench.runner, "run", look)
    bench.add("a", "hello", max_tokens=14)
    assert text_of(bench.run(), "a") == expected_text(bench, "hello", 14)
    assert any(missing) == (num_blocks == 5)


def test_a_plan_of_decodes_ends_within_its_time() -> None:
    bench = Bench(
        runner={"max_decode_steps": 8, "base_ms": 0.0, "token_ms": 10.0}, decode_plan_ms=25.0
    )
    bench.add("a", "hello", max_tokens=40)
    bench.run()
    steps = [plan.work[0].num_decode_steps for plan in bench.runner.plans]
    # The first decodes are made before their time is known.
    assert set(steps[2:-1]) == {2}


def test_several_decode_steps_stop_at_the_end_token() -> None:
    plain = Bench(runner={"eos_every": 8})
    chunked = Bench(runner={"eos_every": 8, "max_decode_steps": 5})
    for i in range(20):
        results = []
        for bench in (plain, chunked):
            bench.add(f"r{i}", f"prompt {i}", max_tokens=40)
            events = bench.run()
            results.append((text_of(events, f"r{i}"), events[-1].reason, events[-1].usage))
        assert results[0] == results[1]
