"""Linear layers over weights as loaded, in PyTorch: for machines without the native kernels.

Correct but slow, and not batch-invariant: PyTorch picks another order of summation for
another number of rows.
"""

from __future__ import annotations

import torch

from kernels.weights import Weight

# Bounds the float32 copy to a few MB, so that INT4 weights never exist twice.
_MAX_ELEMENTS = 1 << 20


def linear(x: torch.Tensor, parts: tuple[Weight, ...], bias: torch.Tensor | None) -> torch.Tensor:
    """x [T, K] @ Wᵀ (+ bias), W the rows of `parts` in order; float32 [T, N]."""
    out = torch.empty(x.shape[0], sum(part.rows for part in parts))
    column = 0
    for part in parts:
        step = max(1, _MAX_ELEMENTS // part.columns)
        for start in range(0, part.rows, step):
            values = _rows(part, slice(start, start + step)).dequantize()
            out[:, column : column + len(values)] = x @ values.T
            column += len(values)
    return out if bias is None else out.add_(bias)


def embedding(ids: torch.Tensor, parts: tuple[Weight, ...]) -> torch.Tensor:
    """Rows `ids` [T] of the stacked `parts`, float32 [T, K]."""
    out = torch.empty(len(ids), parts[0].columns)
    first = 0
    for part in parts:
        chosen = (ids >= first) & (ids < first + part.rows)
        out[chosen] = _rows(part, ids[chosen].long() - first).dequantize()
        first += part.rows
    return out


def _rows(weight: Weight, rows: slice | torch.Tensor) -> Weight:
    scale = None if weight.scale is None else weight.scale[rows]
    minimum = None if weight.minimum is None else weight.minimum[rows]
    return Weight(weight.kind, weight.data[rows], scale, minimum, weight.group)
