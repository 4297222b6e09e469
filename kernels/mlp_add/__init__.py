"""The whole MLP of a layer: norm, gate and up, SwiGLU, down, added to the residual stream."""

from __future__ import annotations

import torch

from kernels.linear_add import linear_add
from kernels.norm_swiglu import norm_swiglu
from kernels.weights import PackedWeight


def mlp_add(
    x: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    gate_up: PackedWeight,
    down: PackedWeight,
) -> None:
    """`norm_swiglu`, then `linear_add` to x itself.

    On CUDA many rows of FP8 go from one product to the next in 8 bits.

    Args:
        x: [T, K], changed in place; see `kernels.norm_swiglu`.
        norm: [K] or None.
        eps: Of the norm.
        gate_up: [2 F, K].
        down: [K, F].

    Raises:
        ValueError: Wrong shape or dtype.
    """
    if not x.is_cpu:
        from kernels.mlp_add import triton

        if triton.fits(x, gate_up, down):
            triton.mlp_add(x, norm, eps, gate_up, down)
            return
    linear_add(norm_swiglu(x, norm, eps, gate_up), down, x)
