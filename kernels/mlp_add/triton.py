"""The MLP of many rows of FP8 on CUDA: SwiGLU leaves what the down projection takes."""

from __future__ import annotations

import torch

from kernels.checks import expect
from kernels.cuda.byte_linear import library_product, library_rows, rounding_of
from kernels.cuda.packed import CudaWeight
from kernels.cuda.quantize_rows import quantize_rows, swiglu_rows

FLOATS = (torch.bfloat16, torch.float32)


def fits(x: torch.Tensor, gate_up: CudaWeight, down: CudaWeight) -> bool:
    """Whether both products are the library's, of FP8 that meets FP8."""
    return (
        all(
            weight.kind == "fp8" and rounding_of(weight) == "fp8" and weight.order is None
            for weight in (gate_up, down)
        )
        and x.dim() == 2
        and len(x) >= max(library_rows(gate_up, True), library_rows(down, False))
    )


def mlp_add(
    x: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    gate_up: CudaWeight,
    down: CudaWeight,
) -> None:
    """See `kernels.mlp_add`."""
    expect("x", x, [None, gate_up.columns], FLOATS, contiguous=False)
    expect("x", x, [None, down.rows], FLOATS, contiguous=False)
    if down.columns * 2 != gate_up.rows:
        raise ValueError(f"down: expected {gate_up.rows // 2} columns, got {down.columns}")
    q, scale = quantize_rows(x, norm, eps, "fp8")
    q, scale = swiglu_rows(library_product(q, scale, gate_up))
    x += library_product(q, scale, down)
