"""Matrices of one byte a value with scales beside them: INT8 and FP8 (e4m3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from engine.loading.huggingface.formats.reading import read_as, read_scale
from engine.loading.huggingface.tensors import TensorStore
from kernels.weights import Weight

_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


@dataclass(frozen=True, slots=True)
class ScaledBytes:
    """Reads `<layer>.weight` [rows, columns] and its scales; value = (q - zero) * scale.

    Attributes:
        name: For people.
        kind: Of the bytes.
        block: Rows and columns that share a scale; 0 is all of them.
        rounds_x: Whether activations are rounded to the same kind.
        scale_name: What the scales' tensor is called.
        input_scale_name: The same for the activations' fixed scale, which FP8 files may
            have; rows rounded with a scale of their own are nearer to what it approximates.
        symmetric: Whether zero is 0; else `<layer>.weight_zero_point` has it.
    """

    name: str
    kind: Literal["int8", "fp8"]
    block: tuple[int, int]
    rounds_x: bool
    scale_name: str = "weight_scale"
    input_scale_name: str = ""
    symmetric: bool = True

    def shapes(self, layer: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        high, wide = self.block
        if wide and columns % wide:
            raise ValueError(
                f"quantisation blocks of {wide} columns do not divide the {columns} columns of "
                f"{layer}"
            )
        scales = (-(-rows // high) if high else 1, columns // wide if wide else 1)
        # One scale for the whole matrix has one axis.
        shape = (1,) if self.block == (0, 0) else scales
        tensors = {f"{layer}.weight": (rows, columns), f"{layer}.{self.scale_name}": shape}
        if self.input_scale_name:
            tensors[f"{layer}.{self.input_scale_name}"] = (1,)
        if not self.symmetric:
            tensors[f"{layer}.weight_zero_point"] = shape
        return tensors

    def read(self, store: TensorStore, layer: str) -> Weight:
        data = read_as(store, f"{layer}.weight", _DTYPES[self.kind])
        scale = read_scale(store, f"{layer}.{self.scale_name}")
        minimum = None
        if not self.symmetric:
            zero = read_as(store, f"{layer}.weight_zero_point", torch.int8)
            scale = scale.float()
            minimum = self._spread(-scale * zero, len(data))
        columns = data.shape[1]
        return Weight(
            self.kind, data, self._spread(scale, len(data)), minimum, self.block[1] or columns,
            rounds_x=self.rounds_x,
        )  # fmt: skip

    def _spread(self, values: torch.Tensor, rows: int) -> torch.Tensor:
        """One row of scales for each row of the matrix."""
        if self.block == (0, 0):
            return values.reshape(1, 1).expand(rows, 1).contiguous()
        if self.block[0] == 1:
            return values
        return values.repeat_interleave(self.block[0] or rows, dim=0)[:rows].contiguous()
