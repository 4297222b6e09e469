"""The checker: it finds what is wrong, on demand and without assertions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from engine.engine import Engine
from engine.invariant_error import InvariantError
from engine.invariants import check_invariants
from tests.fakes.runner import Bench


def busy() -> Bench:
    bench = Bench(check_invariants=False, max_running=1)
    for name in "ab":
        bench.add(name, "hello there", max_tokens=20)
    bench.engine.step()
    bench.engine.step()
    check_invariants(bench.engine)
    return bench


def lose_a_block(engine: Engine) -> None:
    engine.scheduler.running[0].block_table.pop()


def hold_one_twice(engine: Engine) -> None:
    table = engine.scheduler.running[0].block_table
    table.append(table[0])


def run_the_waiting(engine: Engine) -> None:
    engine.scheduler.running.append(engine.scheduler.waiting[0])


def forget_a_request(engine: Engine) -> None:
    del engine.sequences["b"]


def suspend_too_often(engine: Engine) -> None:
    engine.scheduler.running[0].num_suspensions = 9


def compute_beyond_the_tokens(engine: Engine) -> None:
    engine.scheduler.running[0].num_computed = 99


FAULTS = (
    lose_a_block,
    hold_one_twice,
    run_the_waiting,
    forget_a_request,
    suspend_too_often,
    compute_beyond_the_tokens,
)


@pytest.mark.parametrize("spoil", FAULTS)
def test_each_fault_is_found_and_told(spoil: Callable[[Engine], None]) -> None:
    bench = busy()
    spoil(bench.engine)
    with pytest.raises(InvariantError):
        check_invariants(bench.engine)
    assert bench.engine.report().fault
    counters = bench.engine.stats().counters
    assert counters["repartee_engine_checks_total"] == 1
    assert counters["repartee_engine_check_faults_total"] == 1


def test_sound_books_are_counted_as_sound() -> None:
    bench = busy()
    assert bench.engine.report().fault == ""
    counters = bench.engine.stats().counters
    assert counters["repartee_engine_checks_total"] == 1
    assert counters["repartee_engine_check_faults_total"] == 0


def test_books_that_trip_the_checker_do_not_take_the_engine_along() -> None:
    bench = busy()
    bench.engine.scheduler.running[0].block_table[0] = 10_000
    assert "checker failed" in bench.engine.report().fault


def test_it_works_without_assertions() -> None:
    script = (
        "from tests.engine.test_invariants import FAULTS, busy\n"
        "faults = []\n"
        "for spoil in FAULTS:\n"
        "    bench = busy()\n"
        "    spoil(bench.engine)\n"
        "    faults.append(bench.engine.report().fault)\n"
        "print(__debug__, all(faults))\n"
    )
    done = subprocess.run(
        [sys.executable, "-O", "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["False", "True"]
