"""Embedding lookup on the CPU."""

from __future__ import annotations

import torch

from kernels import fallback, native
from kernels.checks import expect
from kernels.pack.cpu import CpuWeight


def embedding(ids: torch.Tensor, table: CpuWeight) -> torch.Tensor:
    """See `kernels.embedding`."""
    expect("ids", ids, [None], [torch.int32, torch.int64])
    count = ids.shape[0]
    if count:
        low, high = torch.aminmax(ids)
        if low < 0 or high >= table.rows:
            raise ValueError(f"ids: expected 0 .. {table.rows - 1}, got {low} .. {high}")
    library = native.library()
    if library is None:
        return fallback.embedding(ids, table.parts)
    wide = ids.long()
    out = torch.empty(count, table.columns)
    for address, first_row, _ in table.segments:
        library.embedding(address, wide.data_ptr(), count, first_row, out.data_ptr())
    return out
