"""Round-to-nearest: every value within half a step, odd widths refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.loading.quantize import Quantization, quantize
from kernels.weights import Weight


def values_of(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
    torch.manual_seed(rows * columns)
    return torch.randn(rows, columns) * scale


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e8])
@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_values_are_within_half_a_step(kind: Any, group: int, scale: float) -> None:
    values = values_of(7, 256, scale)
    weight = quantize(Weight("dense", values), Quantization(kind, group))
    weight.validate()
    assert weight.kind == kind
    assert weight.group == (256 if group < 0 else group)
    assert weight.scale is not None
    step = weight.scale.float().repeat_interleave(weight.group, 1)
    # Rounding the scale to float16 moves the outermost values a little more.
    assert ((weight.dequantize() - values).abs() <= 0.51 * step + 1e-3 * values.abs()).all()
    assert weight.scale.dtype == (torch.float16 if scale == 1.0 else torch.float32)


def test_constant_groups_and_zeros() -> None:
    for value in (0.0, 0.75, -2.0):
        for kind in ("int8", "int4"):
            weight = quantize(Weight("dense", torch.full((2, 64), value)), Quantization(kind, 32))
            torch.testing.assert_close(
                weight.dequantize(), torch.full((2, 64), value), atol=1e-6, rtol=1e-3
            )


def test_embedding_and_head_stay_at_eight_bits() -> None:
    four = Quantization("int4", 64)
    names = ("embed_tokens", "lm_head", "token_embd.weight", "output.weight")
    assert {four.for_tensor(name) for name in names} == {Quantization("int8", 64)}
    assert four.for_tensor("blk.0.attn_output.weight") == four
    assert four.for_tensor("model.layers.0.self_attn.q_proj") == four


def test_what_is_refused() -> None:
    dense = Weight("dense", values_of(2, 576))
    with pytest.raises(ValueError, match="group size 128 does not divide the width 576"):
        quantize(dense, Quantization("int4", 128))
    with pytest.raises(ValueError, match="is int8 already"):
        quantize(quantize(dense, Quantization("int8", 32)), Quantization("int8", 32))
    with pytest.raises(ValueError, match="32, 64, 128 or -1, got 48"):
        Quantization("int4", 48)
    with pytest.raises(ValueError, match="int8 or int4"):
        Quantization("int3")  # type: ignore[arg-type]
