"""RMSNorm, gate and up projections, SwiGLU."""

from __future__ import annotations

import torch

from kernels.norm_swiglu import cpu
from kernels.weights import PackedWeight


def norm_swiglu(
    x: torch.Tensor, norm: torch.Tensor | None, eps: float, gate_up: PackedWeight
) -> torch.Tensor:
    """silu(g) * u with [g, u] = RMSNorm(x) @ [gate; up]ᵀ.

    Args:
        x: [T, K]; float32 on the CPU. Rows may be strided.
        norm: [K], float32 on the CPU; None leaves the norm out.
        eps: Added to the mean of squares.
        gate_up: [2 F, K]: the gate's F rows, then the up projection's.

    Returns:
        A new tensor [T, F] of x's dtype.

    Raises:
        ValueError: Wrong shape or dtype.
    """
    x, norm = gate_up.arrange(x, norm)
    if x.is_cpu:
        return cpu.norm_swiglu(x, norm, eps, gate_up)
    from kernels.norm_swiglu import triton

    return triton.norm_swiglu(x, norm, eps, gate_up)
