"""Runs the CUDA kernels in Triton's interpreter, or on the card where one is asked for."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

DEVICE = os.environ.get("REPARTEE_TEST_DEVICE", "cpu")

if DEVICE == "cpu":
    # Read when a kernel is decorated, so it must be set before the kernels are imported.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def device() -> torch.device:
    """Where the kernels run: the CPU (interpreted) unless REPARTEE_TEST_DEVICE says cuda."""
    torch.manual_seed(0)
    return torch.device(DEVICE)


@pytest.fixture
def dtype() -> torch.dtype:
    """Of activations. The interpreter gets bf16 conversions and products wrong."""
    return torch.float32 if DEVICE == "cpu" else torch.bfloat16


@pytest.fixture(autouse=True)
def poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill every new float tensor with NaN, so that what a kernel leaves out is seen."""
    empty = torch.empty

    def poisoned(*args: object, **kwargs: object) -> torch.Tensor:
        tensor = empty(*args, **kwargs)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", poisoned)


@pytest.fixture(scope="session")
def model() -> Any:
    """A model of two layers, random weights."""
    from engine.model.llama import CausalLM
    from load_tests.gpu.shapes import SHAPES, RandomCheckpoint

    torch.manual_seed(3)
    return CausalLM(RandomCheckpoint(SHAPES["tiny"], "bf16", device=DEVICE), DEVICE)
