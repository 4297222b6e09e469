"""Embedding lookup on the CPU."""

from __future__ import annotations

import torch

from kernels import fallback
from kernels.checks import expect
from kernels.weights import PackedWeight


def embedding(ids: torch.Tensor, table: PackedWeight) -> torch.Tensor:
    """See `kernels.embedding`."""
    expect("ids", ids, [None], [torch.int32, torch.int64])
    if len(ids) and not (0 <= int(ids.min()) and int(ids.max()) < table.rows):
        raise ValueError(f"ids: expected 0 .. {table.rows - 1}, got {ids.min()} .. {ids.max()}")
    return fallback.embedding(ids, table.parts)
