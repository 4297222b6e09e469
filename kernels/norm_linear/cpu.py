"""RMSNorm and a linear layer on the CPU."""

from __future__ import annotations

import torch

from kernels import fallback
from kernels.checks import expect
from kernels.rms_norm import reference
from kernels.weights import PackedWeight


def norm_linear(
    x: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    weight: PackedWeight,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """See `kernels.norm_linear`."""
    expect("x", x, [None, weight.columns], [torch.float32], contiguous=False)
    if norm is not None:
        expect("norm", norm, [weight.columns], [torch.float32])
    if bias is not None:
        expect("bias", bias, [weight.rows], [torch.float32])
    return fallback.linear(reference.rms_norm(x, norm, eps), weight.parts, bias)
