"""Capture and padding of the CUDA runner's graphs; off the card with a stand-in for a graph."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.model.llama import CausalLM
from engine.runner import CpuRunner
from engine.step import StepPlan, Work
from load_tests.gpu.shapes import SHAPES, RandomCheckpoint
from tests.kernels.triton.test_cuda_runner import (
    CONFIG,
    answer,
    make_runner,
    make_sequence,
    sequences,
)


class StandIn:
    """Replays by running the step again."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.replay = step


def captured(step: Callable[[], None], pool: object) -> StandIn:
    step()
    return StandIn(step)


@pytest.fixture
def runner(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> Any:
    torch.manual_seed(3)
    model = CausalLM(RandomCheckpoint(SHAPES["tiny"], "bf16", device=str(device)), device)
    made = make_runner(model, device, 3)
    made.model = model
    if device.type == "cpu":
        monkeypatch.setattr("engine.cuda_graph._captured", captured)
        # The CPU's own ops refuse rows of padding, which graphs are full of.
        for op in ("paged_attention", "rope_kv_write"):
            module = importlib.import_module(f"kernels.{op}.triton")
            used_by = importlib.import_module("kernels.rope_attention")
            monkeypatch.setattr(used_by, op, getattr(module, op))
        made.shelf.pool = (0, 0)
    return made


def test_capture_writes_no_kv(runner: Any) -> None:
    runner.warm_up([1, 5], [28])
    for cache in runner._caches:
        assert not cache.k.any()
        assert not cache.v.any()


def test_padded_graphs_give_the_same_tokens(runner: Any, device: torch.device) -> None:
    five = [*sequences()[:4], make_sequence(5, 6, 40, temperature=0.5)]
    tokens = answer(runner, five, 6, 3)
    # Five rows run in a graph of six.
    assert ("chunk", 6) in [key[:2] for key in runner.shelf]
    if device.type == "cpu":
        again = [*sequences()[:4], make_sequence(5, 6, 40, temperature=0.5)]
        assert tokens == answer(CpuRunner(runner.model, CONFIG), again, 6, 1)


def test_a_padded_piece_gives_the_same_token(runner: Any, device: torch.device) -> None:
    output = runner.run(StepPlan((Work(make_sequence(7, 28, 0), 0, 28, True),)))
    assert list(runner.shelf) == [("piece", 32)]
    if device.type == "cpu":
        whole = make_sequence(7, 28, 0)
        expected = CpuRunner(runner.model, CONFIG).run(StepPlan((Work(whole, 0, 28, True),)))
        assert output.tokens == expected.tokens


def test_a_warm_up_begins_with_the_small_and_ends_in_time(
    runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, int]] = []
    monkeypatch.setattr(runner.prompts, "piece", lambda length: made.append(("piece", length)))
    monkeypatch.setattr(runner.decoder, "chunk", lambda rows, _: made.append(("chunk", rows)))
    runner.warm_up([4, 1], [64, 32, 128], limit_s=-1.0)
    assert made == [("piece", 32), ("chunk", 1)]
    made.clear()
    runner.warm_up([4, 1], [64, 32, 128])
    assert sorted(made) == [
        ("chunk", 1), ("chunk", 4), ("piece", 32), ("piece", 64), ("piece", 128),
    ]  # fmt: skip
