"""RMSNorm, gate and up projections and SwiGLU on CUDA."""

from __future__ import annotations

import torch

from kernels.cuda.linear import linear
from kernels.cuda.packed import CudaWeight


def norm_swiglu(
    x: torch.Tensor, norm: torch.Tensor | None, eps: float, gate_up: CudaWeight
) -> torch.Tensor:
    """See `kernels.norm_swiglu`."""
    return linear(x, norm, eps, gate_up, gated=True)
