"""RMSNorm and a linear layer."""

from __future__ import annotations

import torch

from kernels.norm_linear import cpu
from kernels.weights import PackedWeight


def norm_linear(
    x: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """RMSNorm(x) @ Wᵀ (+ bias).

    Args:
        x: [T, K]; float32 on the CPU. Rows may be strided.
        norm: [K], float32 on the CPU; None leaves the norm out.
        eps: Added to the mean of squares.
        weight: [N, K].
        bias: [N], float32 on the CPU.

    Returns:
        A new tensor [T, N] of x's dtype.

    Raises:
        ValueError: Wrong shape or dtype.
    """
    x, norm = weight.arrange(x, norm)
    if x.is_cpu:
        return cpu.norm_linear(x, norm, eps, weight, bias)
    from kernels.norm_linear import triton

    return triton.norm_linear(x, norm, eps, weight, bias)
