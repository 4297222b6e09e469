"""Waits foreseen on a worker whose steps are not all alike, on a virtual clock."""

from __future__ import annotations

import pytest

from engine.step import StepOutput, StepPlan
from tests.fakes.runner import Bench


def with_slow_steps(bench: Bench, *numbers: int, seconds: float = 4.0) -> None:
    """Let the engine's steps of these numbers, from 1, take so much longer."""
    run = bench.runner.run
    steps = iter(range(1, 1_000_000))

    def slow(plan: StepPlan) -> StepOutput:
        if next(steps) in numbers:
            bench.clock.advance(seconds)
        return run(plan)

    bench.runner.run = slow  # type: ignore[method-assign]


def foreseen_s(bench: Bench, count: int = 5) -> float:
    """The wait of the last of some requests behind one that runs."""
    for i in range(count):
        bench.add(f"w{i}", "x" * 20, max_tokens=50)
    return bench.engine.sequences[f"w{count - 1}"].predicted_wait_s


def answer(bench: Bench, num_steps: int) -> None:
    """One request, run for so many steps of its answer."""
    bench.add("running", "y" * 30, max_tokens=100)
    while bench.engine.sequences["running"].num_answer_tokens < num_steps:
        bench.engine.step()


def patient() -> Bench:
    """One slot, and nobody refused."""
    return Bench(max_running=1, num_blocks=1024, standard_max_wait_ms=1e6)


def usual_s() -> float:
    """What an even machine foresees."""
    bench = patient()
    answer(bench, 30)
    return foreseen_s(bench)


@pytest.mark.parametrize("slow", [(1,), (2,), (1, 2), (2, 3)])
@pytest.mark.parametrize("num_steps", [6, 8, 15])
def test_slow_first_steps_foresee_no_long_waits(slow: tuple[int, ...], num_steps: int) -> None:
    bench = patient()
    with_slow_steps(bench, *slow)
    answer(bench, num_steps)
    assert 0 < foreseen_s(bench) < 3 * usual_s()


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_nobody_is_refused_while_hardly_a_step_is_known(num_steps: int) -> None:
    bench = Bench(max_running=1, num_blocks=1024, standard_max_wait_ms=7000.0)
    with_slow_steps(bench, 1, 2)
    answer(bench, num_steps)
    assert foreseen_s(bench) < 7.0


@pytest.mark.parametrize("later", [1, 3, 10])
def test_one_held_up_step_changes_little(later: int) -> None:
    bench = patient()
    with_slow_steps(bench, 30, seconds=30.0)
    answer(bench, 29 + later)
    assert 0.5 * usual_s() < foreseen_s(bench) < 3 * usual_s()


def test_steps_that_stay_slow_are_believed() -> None:
    bench = patient()
    with_slow_steps(bench, *range(20, 80), seconds=0.2)
    answer(bench, 60)
    assert foreseen_s(bench) > 5 * usual_s()
