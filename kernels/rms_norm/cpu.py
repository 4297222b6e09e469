"""RMSNorm on the CPU."""

from __future__ import annotations

import torch

from kernels.checks import expect
from kernels.rms_norm import reference


def rms_norm(x: torch.Tensor, norm: torch.Tensor, eps: float) -> torch.Tensor:
    """See `kernels.rms_norm`."""
    expect("x", x, [None, None], [torch.float32], contiguous=False)
    expect("norm", norm, [x.shape[1]], [torch.float32])
    return reference.rms_norm(x, norm, eps)
