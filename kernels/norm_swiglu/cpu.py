"""RMSNorm, gate and up projections, SwiGLU on the CPU."""

from __future__ import annotations

import torch

from kernels import fallback, native
from kernels.native import linear
from kernels.native.library import STORE, SWIGLU, TILE_ROWS
from kernels.pack.cpu import CpuWeight
from kernels.rms_norm import reference


def norm_swiglu(
    x: torch.Tensor, norm: torch.Tensor | None, eps: float, gate_up: CpuWeight
) -> torch.Tensor:
    """See `kernels.norm_swiglu`."""
    linear.check(x, norm, gate_up, None)
    rows, width = x.size(0), gate_up.rows // 2
    if gate_up.rows % 2:
        raise ValueError(f"gate_up: expected an even number of rows, got {gate_up.rows}")
    library = native.library()
    if library is None:
        both = fallback.linear(reference.rms_norm(x, norm, eps), gate_up.parts, None)
        gate, up = both.chunk(2, dim=1)
        return torch.nn.functional.silu(gate) * up
    out = torch.empty(rows, width)
    if len(gate_up.segments) == 1 and width % TILE_ROWS == 0:
        linear.run(library, x, norm, eps, gate_up, None, out, SWIGLU)
    else:
        # Gate and up rows don't lie in matching tiles.
        both = torch.empty(rows, 2 * width)
        linear.run(library, x, norm, eps, gate_up, None, both, STORE)
        library.swiglu(both.data_ptr(), width, rows, out.data_ptr())
    return out
