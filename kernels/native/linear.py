"""Calls of the native linear layer, checked."""

from __future__ import annotations

import torch

from kernels.checks import expect
from kernels.native.library import Library
from kernels.pack.cpu import CpuWeight

_FLOAT32 = torch.float32


def check(
    x: torch.Tensor,
    norm: torch.Tensor | None,
    weight: CpuWeight,
    bias: torch.Tensor | None,
) -> None:
    """Check what all linear ops take.

    Raises:
        ValueError: Something differs.
    """
    # This runs some two hundred times a token: the cheap question first.
    if x.dtype is not _FLOAT32 or x.dim() != 2 or x.size(1) != weight.columns or x.stride(1) != 1:
        expect("x", x, [None, weight.columns], [_FLOAT32], contiguous=False)
    if norm is not None and (norm.dtype is not _FLOAT32 or norm.numel() != weight.columns):
        expect("norm", norm, [weight.columns], [_FLOAT32])
    if bias is not None and (bias.dtype is not _FLOAT32 or bias.numel() != weight.rows):
        expect("bias", bias, [weight.rows], [_FLOAT32])


def run(
    library: Library,
    x: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    weight: CpuWeight,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    epilogue: int,
) -> None:
    """out = epilogue(norm(x) @ Wᵀ + bias), each segment into its own columns."""
    # A step of prompt pieces alone wants no logits; the library can't split zero rows.
    if not x.size(0):
        return
    norm_address = None if norm is None else norm.data_ptr()
    bias_address = None if bias is None else bias.data_ptr()
    out_address = out.data_ptr()
    for address, first_row, _ in weight.segments:
        library.linear(
            address,
            x.data_ptr(),
            x.stride(0),
            x.size(0),
            norm_address,
            eps,
            None if bias_address is None else bias_address + 4 * first_row,
            out_address + 4 * first_row,
            out.stride(0),
            epilogue,
        )
