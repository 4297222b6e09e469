"""RMSNorm, gate and up projections, SwiGLU on the CPU."""

from __future__ import annotations

import torch

from kernels import fallback
from kernels.checks import expect
from kernels.rms_norm import reference
from kernels.weights import PackedWeight


def norm_swiglu(
    x: torch.Tensor, norm: torch.Tensor | None, eps: float, gate_up: PackedWeight
) -> torch.Tensor:
    """See `kernels.norm_swiglu`."""
    expect("x", x, [None, gate_up.columns], [torch.float32], contiguous=False)
    if norm is not None:
        expect("norm", norm, [gate_up.columns], [torch.float32])
    if gate_up.rows % 2:
        raise ValueError(f"gate_up: expected an even number of rows, got {gate_up.rows}")
    out = fallback.linear(reference.rms_norm(x, norm, eps), gate_up.parts, None)
    gate, up = out.chunk(2, dim=1)
    return torch.nn.functional.silu(gate) * up
