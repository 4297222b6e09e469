"""RMSNorm and a linear layer in plain fp32 PyTorch."""

from __future__ import annotations

import torch

from kernels.rms_norm.reference import rms_norm
from kernels.weights import Weight


def norm_linear(
    x: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    weight: Weight,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """RMSNorm(x) @ Wᵀ (+ bias): x [T, K] to float32 [T, N]."""
    out = rms_norm(x, norm, eps) @ weight.dequantize().T
    return out if bias is None else out + bias.float()
