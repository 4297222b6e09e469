"""RMSNorm and a linear layer on the CPU."""

from __future__ import annotations

import torch

from kernels import fallback, native
from kernels.native import linear
from kernels.native.library import STORE
from kernels.pack.cpu import CpuWeight
from kernels.rms_norm import reference


def norm_linear(
    x: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    weight: CpuWeight,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """See `kernels.norm_linear`."""
    linear.check(x, norm, weight, bias)
    library = native.library()
    if library is None:
        return fallback.linear(reference.rms_norm(x, norm, eps), weight.parts, bias)
    out = torch.empty(x.size(0), weight.rows)
    linear.run(library, x, norm, eps, weight, bias, out, STORE)
    return out
