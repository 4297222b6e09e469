"""The MLP as one op."""

from __future__ import annotations

import pytest
import torch

import kernels
from kernels.linear_add import reference as linear_add_reference
from kernels.norm_swiglu import reference as norm_swiglu_reference
from tests.kernels.samples import assert_close, make_weight, random


@pytest.mark.parametrize("kind", ["int4", "float32"])
@pytest.mark.parametrize("num_tokens", [1, 5])
def test_mlp_add(kind: str, num_tokens: int) -> None:
    gate_up = [make_weight(kind, 96, 64, seed=seed) for seed in (1, 2)]
    down = make_weight(kind, 64, 96, seed=3)
    x, norm = random(num_tokens, 64), random(64, seed=4).abs()
    expected = x.clone()
    stacked = type(down).concatenate(gate_up)
    gated = norm_swiglu_reference.norm_swiglu(x, norm, 1e-5, stacked)
    linear_add_reference.linear_add(gated, down, expected)
    packed = kernels.pack(gate_up, "cpu", "fp32"), kernels.pack(down, "cpu", "fp32")
    kernels.mlp_add(x, norm, 1e-5, *packed)
    assert_close(x, expected, 1e-5)
    assert not torch.equal(x, random(num_tokens, 64))
