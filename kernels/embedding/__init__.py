"""Embedding lookup."""

from __future__ import annotations

import torch

from kernels.embedding import cpu
from kernels.weights import PackedWeight


def embedding(ids: torch.Tensor, table: PackedWeight) -> torch.Tensor:
    """Rows of the table.

    Args:
        ids: int32 or int64 [T], each in 0 .. table.rows - 1.
        table: [vocabulary, K], any kind.

    Returns:
        [T, K]; float32 on the CPU, the table's activation dtype on CUDA.

    Raises:
        ValueError: Wrong shape or dtype or, on the CPU, an id out of range.
    """
    if ids.is_cpu:
        return cpu.embedding(ids, table)
    from kernels.embedding import triton

    return triton.embedding(ids, table)
