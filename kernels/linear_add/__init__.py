"""A linear layer added to the residual stream."""

from __future__ import annotations

import torch

from kernels.linear_add import cpu
from kernels.weights import PackedWeight


def linear_add(
    x: torch.Tensor,
    weight: PackedWeight,
    residual: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> None:
    """residual += x @ Wᵀ (+ bias), in place.

    Args:
        x: [T, K]; float32 on the CPU. Rows may be strided.
        weight: [N, K].
        residual: [T, N] of x's dtype, changed in place. Rows may be strided.
        bias: [N], float32 on the CPU.

    Raises:
        ValueError: Wrong shape or dtype.
    """
    x, _ = weight.arrange(x)
    if x.is_cpu:
        cpu.linear_add(x, weight, residual, bias)
        return
    from kernels.linear_add import triton

    triton.linear_add(x, weight, residual, bias)
