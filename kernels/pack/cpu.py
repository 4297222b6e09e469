"""Packed weights of the CPU kernels."""

from __future__ import annotations

import torch

from kernels.weights import PackedWeight, Weight

COMPUTE = ("int8", "fp32")


class CpuWeight(PackedWeight):
    """One or more matrices stacked along the rows.

    Attributes:
        parts: The matrices as loaded, where the native kernels are not available;
            their quantised values are expanded a few rows at a time, for one product.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Weight, ...]) -> None:
        tensors = [t for part in parts for t in (part.data, part.scale, part.minimum)]
        nbytes = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        rows = sum(part.rows for part in parts)
        super().__init__(rows, parts[0].columns, torch.device("cpu"), nbytes)
        self.parts = parts


def pack(weights: tuple[Weight, ...], compute: str) -> CpuWeight:
    """Pack for the CPU; see `kernels.pack`."""
    if compute not in COMPUTE:
        raise ValueError(f"compute: expected one of {COMPUTE} on the CPU, got {compute!r}")
    return CpuWeight(weights)
