"""A linear layer added to the residual stream, on the CPU."""

from __future__ import annotations

import torch

from kernels import fallback, native
from kernels.checks import expect
from kernels.native import linear
from kernels.native.library import ADD
from kernels.pack.cpu import CpuWeight


def linear_add(
    x: torch.Tensor,
    weight: CpuWeight,
    residual: torch.Tensor,
    bias: torch.Tensor | None,
) -> None:
    """See `kernels.linear_add`."""
    linear.check(x, None, weight, bias)
    shape = (x.size(0), weight.rows)
    if residual.dtype is not torch.float32 or residual.shape != shape or residual.stride(1) != 1:
        expect("residual", residual, shape, [torch.float32], contiguous=False)
    library = native.library()
    if library is None:
        residual += fallback.linear(x, weight.parts, bias)
        return
    linear.run(library, x, None, 0.0, weight, bias, residual, ADD)
