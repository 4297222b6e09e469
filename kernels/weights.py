"""A weight matrix as loaded from a file, before any device's layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

WeightKind = Literal["dense", "int8", "int4", "fp8"]


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix of shape [rows, columns] = [outputs, inputs], exact to its file.

    value[r, c] = scale[r, c // group] * q[r, c] + minimum[r, c // group]

    Attributes:
        kind: How `data` is to be read.
        data: dense: float32, bfloat16 or float16 [rows, columns].
            int8: int8 [rows, columns].
            int4: uint8 [rows, columns / 2], q in 0..15; column 2j in the low
            nibble of byte j, column 2j + 1 in the high one.
            fp8: float8_e4m3fn [rows, columns].
        scale: [rows, columns / group], float16 or float32; None for dense.
        minimum: Same shape and dtype as scale; None means 0.
        group: Columns that share a scale; 0 for dense. `columns` is a multiple.
    """

    kind: WeightKind
    data: torch.Tensor
    scale: torch.Tensor | None = None
    minimum: torch.Tensor | None = None
    group: int = 0

    @property
    def rows(self) -> int:
        return self.data.shape[0]

    @property
    def columns(self) -> int:
        return self.data.shape[1] * (2 if self.kind == "int4" else 1)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The values, [rows, columns]."""
        if self.kind == "dense":
            return self.data.to(dtype)
        q = self.data
        if self.kind == "int4":
            q = torch.stack((q & 15, q >> 4), dim=-1).flatten(1)
        assert self.scale is not None
        values = q.float().unflatten(1, (-1, self.group)) * self.scale.float().unsqueeze(-1)
        if self.minimum is not None:
            values += self.minimum.float().unsqueeze(-1)
        return values.flatten(1).to(dtype)
