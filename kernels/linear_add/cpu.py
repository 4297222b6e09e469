"""A linear layer added to the residual stream, on the CPU."""

from __future__ import annotations

import torch

from kernels import fallback
from kernels.checks import expect
from kernels.weights import PackedWeight


def linear_add(
    x: torch.Tensor,
    weight: PackedWeight,
    residual: torch.Tensor,
    bias: torch.Tensor | None,
) -> None:
    """See `kernels.linear_add`."""
    expect("x", x, [None, weight.columns], [torch.float32], contiguous=False)
    expect("residual", residual, [x.shape[0], weight.rows], [torch.float32], contiguous=False)
    if bias is not None:
        expect("bias", bias, [weight.rows], [torch.float32])
    residual += fallback.linear(x, weight.parts, bias)
