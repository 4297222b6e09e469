"""Refusals by predicted wait, and turns between tenants, over the fake model."""

from __future__ import annotations

import pytest

from engine.contract import Finished, Overloaded, Tier
from tests.fakes.runner import Bench


def busy(**config: object) -> Bench:
    """One slot, its costs known, and one long answer in it."""
    bench = Bench(max_running=1, num_blocks=1024, **config)
    bench.add("warm", "x" * 40, max_tokens=20)
    bench.run()
    bench.add("running", "r", max_tokens=100)
    bench.engine.step()
    return bench


def fill(bench: Bench, tier: Tier, most: int = 200, tenant: str = "t") -> tuple[int, Overloaded]:
    """Add requests until one is refused; how many were taken."""
    for i in range(most):
        try:
            bench.add(f"{tier}{tenant}{i}", "x" * 20, tier=tier, tenant=tenant, max_tokens=50)
        except Overloaded as refusal:
            return i, refusal
    raise AssertionError("nobody was refused")


def test_a_long_wait_is_refused_with_its_length() -> None:
    bench = busy(standard_max_wait_ms=5000.0)
    taken, refusal = fill(bench, Tier.STANDARD)
    # An answer takes about 0.6 s.
    assert 2 <= taken <= 9
    assert refusal.retryable
    assert refusal.retry_after_ms is not None
    assert 5000 < refusal.retry_after_ms < 10_000
    assert "The wait would be about" in refusal.message
    counters = bench.engine.stats().counters
    assert counters["repartee_engine_refused_standard_total"] == 1


def test_nobody_is_refused_who_need_not_wait() -> None:
    # The first steps of a process are slow, and say nothing of the later ones.
    bench = Bench(num_blocks=1024, standard_max_wait_ms=100.0, runner={"base_ms": 3000.0})
    bench.add("first", "x" * 10, max_tokens=3)
    bench.run()
    for i in range(20):
        bench.add(f"r{i}", "x" * 20, max_tokens=3)
    assert len([e for e in bench.run() if isinstance(e, Finished)]) == 20


def test_the_retry_hint_follows_the_queue() -> None:
    hints = []
    for limit_ms in (2000.0, 8000.0):
        _, refusal = fill(busy(standard_max_wait_ms=limit_ms), Tier.STANDARD)
        hints.append(refusal.retry_after_ms)
    assert hints[0] * 2 < hints[1]


def test_what_was_taken_starts_in_time() -> None:
    bench = busy(standard_max_wait_ms=5000.0)
    fill(bench, Tier.STANDARD)
    sequences = list(bench.engine.sequences.values())
    bench.run()
    assert all(seq.started_at - seq.arrived_at <= 5.0 for seq in sequences)


def test_each_tier_has_a_limit_of_its_own() -> None:
    bench = busy(standard_max_wait_ms=2000.0, batch_max_wait_ms=1e6)
    fill(bench, Tier.STANDARD)
    bench.add("batch", "x", tier=Tier.BATCH)
    # A VIP waits behind VIPs only.
    bench.add("vip", "x", tier=Tier.VIP)


def test_max_waiting_counts_a_tier() -> None:
    bench = busy(standard_max_waiting=2)
    taken, refusal = fill(bench, Tier.STANDARD)
    assert taken == 2
    assert "2 standard requests wait" in refusal.message
    bench.add("batch", "x", tier=Tier.BATCH)


def test_a_deadline_before_the_start_is_refused() -> None:
    bench = busy(standard_max_wait_ms=1e6)
    for i in range(5):
        bench.add(f"r{i}", "x" * 20, max_tokens=50)
    with pytest.raises(Overloaded, match="The wait would be about"):
        bench.add("late", "x", max_tokens=5, deadline_s=0.5)
    assert "late" not in bench.engine.sequences


def test_a_refused_request_leaves_nothing() -> None:
    bench = busy(standard_max_wait_ms=1000.0)
    fill(bench, Tier.STANDARD)
    num_waiting = len(bench.engine.scheduler.waiting)
    for i in range(50):
        with pytest.raises(Overloaded):
            bench.add(f"no{i}", "x", max_tokens=50)
    assert len(bench.engine.scheduler.waiting) == num_waiting
    assert bench.engine.scheduler.shares._num_live[Tier.STANDARD] == {"t": num_waiting + 1}
    bench.run()
    assert not bench.engine.scheduler.shares._until


def test_a_tenant_that_asks_for_much_queues_behind_itself() -> None:
    bench = busy(standard_max_wait_ms=1e6, ageing_ms=60_000.0)
    for i in range(8):
        bench.add(f"much{i}", "x" * 20, tenant="much", max_tokens=30)
    for i in range(2):
        bench.add(f"little{i}", "x" * 20, tenant="little", max_tokens=30)
    ends = [event.request_id for event in bench.run() if isinstance(event, Finished)][1:]
    assert max(ends.index("little0"), ends.index("little1")) <= 4
    assert [name for name in ends if name.startswith("much")] == [f"much{i}" for i in range(8)]


def test_nobody_is_held_back_for_ever() -> None:
    bench = busy(standard_max_wait_ms=1e6, ageing_ms=2000.0)
    for i in range(20):
        bench.add(f"much{i}", "x" * 20, tenant="much", max_tokens=30)
    last = bench.engine.sequences["much19"]
    # Half an ageing time, and what stood before it.
    assert last.place_at <= last.arrived_at + 1.0
    num_before = 0
    while last.started_at is None:
        if len(bench.engine.sequences) < 60:
            bench.add(f"other{num_before}", "x" * 20, tenant=f"t{num_before}", max_tokens=30)
            num_before += 1
        bench.engine.step()
    late = [seq for seq in bench.engine.sequences.values() if seq.request.tenant != "much"]
    assert late
    # Who came after its place in line is still behind it.
    behind = [seq for seq in late if seq.place_at > last.place_at]
    assert behind
    assert all(seq.started_at is None for seq in behind)


def test_alone_everything_is_first_come_first_served() -> None:
    bench = busy(standard_max_wait_ms=1e6)
    for i in range(6):
        bench.add(f"r{i}", "x" * (i + 1), max_tokens=5)
    ends = [event.request_id for event in bench.run() if isinstance(event, Finished)]
    assert ends == ["running", *(f"r{i}" for i in range(6))]


def test_a_vip_prompt_pauses_others_for_a_bounded_time() -> None:
    bench = Bench(num_blocks=4096, window=16_384, block_size=16, max_pause_ms=300.0)
    bench.add("chat", "hi", max_tokens=2000)
    for _ in range(10):
        bench.engine.step()
    bench.add("vip", "x" * 3000, tier=Tier.VIP, max_tokens=1)
    served = bench.clock.now
    pauses = []
    while "vip" in bench.engine.sequences:
        bench.engine.step()
        plan = bench.runner.plans[-1]
        if any(item.sequence.request_id == "chat" for item in plan.work):
            pauses.append(bench.clock.now - served)
            served = bench.clock.now
    longest = max(pauses)
    # The bound is looked at between steps.
    assert 0.3 <= longest <= 0.3 + 2 * bench.config.prefill_step_ms / 1000
