"""Graphs that are kept, and the time that setting up takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from triton import knobs
from triton.knobs import CompileTimes

from engine import cuda_shelf
from engine.cuda_shelf import GraphShelf


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(cuda_shelf, "time", clock)
    return clock


def compile_for(clock: Clock, seconds: float) -> None:
    """As Triton's compiler tells of it."""
    clock.now += seconds
    times = CompileTimes(100_000, [("ttir", round(seconds * 1e6) - 150_000)], 50_000)
    knobs.compilation.listener(
        src=None, metadata={}, metadata_group={}, times=times, cache_hit=False
    )


def test_the_one_longest_out_of_use_makes_room() -> None:
    shelf = GraphShelf(torch.device("cpu"), most=2)
    made: list[str] = []

    def maker(name: str) -> Callable[[], str]:
        return lambda: (made.append(name), name)[1]

    for name in ("a", "b", "a", "c", "a", "b"):
        assert shelf.get(name, maker(name)) == name
    assert made == ["a", "b", "c", "b"]
    assert list(shelf) == ["a", "b"]


def test_setting_up_is_counted_once(clock: Clock) -> None:
    shelf = GraphShelf(torch.device("cpu"))

    def make() -> int:
        compile_for(clock, 2.0)
        clock.now += 0.5
        return 1

    compile_for(clock, 1.0)
    shelf.get("a", make)
    shelf.get("a", make)
    clock.now += 7.0
    compile_for(clock, 4.0)
    shelf.note_setup(0.25)
    assert shelf.take_setup_s() == pytest.approx(1.0 + 2.5 + 4.0 + 0.25)
    assert shelf.setup_s == 0.0
