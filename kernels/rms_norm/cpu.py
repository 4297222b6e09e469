"""RMSNorm on the CPU."""

from __future__ import annotations

import torch

from kernels import native
from kernels.checks import expect
from kernels.rms_norm import reference


def rms_norm(x: torch.Tensor, norm: torch.Tensor, eps: float) -> torch.Tensor:
    """See `kernels.rms_norm`."""
    expect("x", x, [None, None], [torch.float32], contiguous=False)
    rows, columns = x.shape
    expect("norm", norm, [columns], [torch.float32])
    library = native.library()
    if library is None:
        return reference.rms_norm(x, norm, eps)
    out = torch.empty(rows, columns)
    library.rms_norm(x.data_ptr(), x.stride(0), rows, columns, norm.data_ptr(), eps, out.data_ptr())
    return out
