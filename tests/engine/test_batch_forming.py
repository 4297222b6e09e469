"""Prompts wait for each other only where that saves time, never long, on a virtual clock."""

from __future__ import annotations

import random

import pytest

from engine.config import EngineConfig
from engine.contract import Tier
from engine.linear_fit import LinearFit
from engine.scheduler import Scheduler
from load_tests.measure import median
from load_tests.sim.machine import Costs
from load_tests.sim.simulate import Run, Simulation
from load_tests.sim.trace import Arrival

# A device on which any step with a prompt beside decodes costs four times a decode.
MIXED = Costs(base_ms=6.0, prompt_ms=0.02, decode_ms=0.1, mixed_ms=24.0, context_ms=0.0)
PLAIN = Costs(base_ms=6.0, prompt_ms=0.02, decode_ms=0.1, mixed_ms=0.0, context_ms=0.0)


def traffic(rate: float, seconds: float = 8.0, tier: Tier = Tier.STANDARD) -> list[Arrival]:
    rng = random.Random(5)
    at_s, arrivals = 0.0, []
    while (at_s := at_s + rng.expovariate(rate)) < seconds:
        arrivals.append(Arrival(at_s, tier, "t", 0, rng.randrange(40, 400), 60))
    return arrivals


def run(costs: Costs, trace: list[Arrival], batch_wait_ms: float) -> Run:
    # As on a GPU, pieces may make a step longer than twice its short decodes.
    config = EngineConfig(num_blocks=8192, mixed_step_ms=40.0, batch_wait_ms=batch_wait_ms)
    return Simulation(Scheduler, config, costs, 1).run(trace)


def waits(result: Run) -> list[float]:
    return [outcome.start_wait_s for outcome in result.outcomes]


def ends(result: Run) -> float:
    return median(sum(o.gaps_s) + o.ttft_s for o in result.outcomes)


def test_where_it_pays_answers_end_sooner_and_nobody_waits_past_the_bound() -> None:
    trace = traffic(15.0)
    without, with_wait = run(MIXED, trace, 0.0), run(MIXED, trace, 100.0)
    assert ends(with_wait) < 0.9 * ends(without)
    # The bound is looked at between steps.
    assert 0.05 < max(waits(with_wait)) <= 0.1 + 0.05
    assert median(waits(without)) < 0.02


@pytest.mark.parametrize(("costs", "rate"), [(PLAIN, 15.0), (MIXED, 1.0)])
def test_where_it_cannot_pay_nobody_waits(costs: Costs, rate: float) -> None:
    trace = traffic(rate)
    assert waits(run(costs, trace, 100.0)) == waits(run(costs, trace, 0.0))


def test_vips_never_wait() -> None:
    trace = traffic(15.0, tier=Tier.VIP)
    assert waits(run(MIXED, trace, 100.0)) == waits(run(MIXED, trace, 0.0))


def test_an_idle_machine_begins_at_once() -> None:
    busy = traffic(15.0, seconds=5.0)
    late = Arrival(30.0, Tier.STANDARD, "t", 0, 50, 5)
    result = run(MIXED, [*busy, late], 100.0)
    assert result.outcomes[-1].arrival is late
    assert result.outcomes[-1].start_wait_s < 0.01


def test_a_line_is_found_through_noise_and_not_through_one_point() -> None:
    rng = random.Random(1)
    fit = LinearFit()
    for _ in range(200):
        x = rng.uniform(10, 300)
        fit.add(x, 20 + 0.3 * x + rng.gauss(0, 2))
    assert fit.base == pytest.approx(20, abs=4)
    same = LinearFit()
    for _ in range(200):
        same.add(64, 40)
    assert same.base is None
