"""Embedding rows in plain fp32 PyTorch."""

from __future__ import annotations

import torch

from kernels.weights import Weight


def embedding(ids: torch.Tensor, table: Weight) -> torch.Tensor:
    """Rows `ids` [T] of `table`, float32 [T, columns]."""
    return table.dequantize()[ids.long()]
