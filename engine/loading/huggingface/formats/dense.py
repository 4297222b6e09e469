"""Matrices as they are: float32, float16 or bfloat16."""

from __future__ import annotations

import torch

from engine.loading.errors import ModelFileError
from engine.loading.huggingface.tensors import TensorStore
from kernels.weights import Weight

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Dense:
    """One tensor `<layer>.weight`."""

    name = "dense"

    def shapes(self, layer: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {f"{layer}.weight": (rows, columns)}

    def read(self, store: TensorStore, layer: str) -> Weight:
        name = f"{layer}.weight"
        data = store.read(name)
        if data.dtype not in _DTYPES:
            raise ModelFileError(
                store.path(name), f"tensor {name!r} is {data.dtype}, not a float of 16 or 32 bits"
            )
        return Weight("dense", data)
