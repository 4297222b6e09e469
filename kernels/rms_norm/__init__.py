"""RMSNorm alone, where no linear layer follows."""

from __future__ import annotations

import torch

from kernels.rms_norm import cpu


def rms_norm(x: torch.Tensor, norm: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) * norm over the last axis.

    Args:
        x: [T, K]; float32 on the CPU. Rows may be strided.
        norm: [K], float32 on the CPU.
        eps: Added to the mean of squares.

    Returns:
        A new tensor of x's shape and dtype.

    Raises:
        ValueError: Wrong shape or dtype.
    """
    if x.is_cpu:
        return cpu.rms_norm(x, norm, eps)
    from kernels.rms_norm import triton

    return triton.rms_norm(x, norm, eps)
