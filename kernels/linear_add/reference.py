"""A linear layer added to the residual, in plain fp32 PyTorch."""

from __future__ import annotations

import torch

from kernels.weights import Weight


def linear_add(
    x: torch.Tensor,
    weight: Weight,
    residual: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> None:
    """residual [T, N] += x [T, K] @ Wᵀ (+ bias), in place."""
    out = x.float() @ weight.dequantize().T
    if bias is not None:
        out += bias.float()
    residual.copy_(residual.float() + out)
