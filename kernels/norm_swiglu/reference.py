"""RMSNorm, the gate and up projections and SwiGLU, in plain fp32 PyTorch."""

from __future__ import annotations

import torch

from kernels.norm_linear.reference import norm_linear
from kernels.weights import Weight


def norm_swiglu(
    x: torch.Tensor, norm: torch.Tensor | None, eps: float, gate_up: Weight
) -> torch.Tensor:
    """silu(g) * u with [g, u] = RMSNorm(x) @ [gate; up]ᵀ: x [T, K] to float32 [T, N / 2]."""
    gate, up = norm_linear(x, norm, eps, gate_up).chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up
