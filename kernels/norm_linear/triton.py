"""RMSNorm and a linear layer on CUDA."""

from __future__ import annotations

import torch

from kernels.cuda.linear import linear
from kernels.cuda.packed import CudaWeight


def norm_linear(
    x: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    weight: CudaWeight,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `kernels.norm_linear`."""
    return linear(x, norm, eps, weight, bias)
