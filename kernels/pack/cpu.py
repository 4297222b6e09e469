"""Packed weights of the CPU kernels."""

from __future__ import annotations

import ctypes

import torch

from kernels import native
from kernels.native.library import (
    BFLOAT,
    BLOCK,
    FLOAT,
    FLOAT_ACTIVATIONS,
    HALF,
    INT4,
    INT8,
    INT8_ACTIVATIONS,
    INT16_ACTIVATIONS,
    TILE_ROWS,
    NativeWeight,
)
from kernels.weights import PackedWeight, Weight

# What activations meet quantised weights as.
COMPUTE = {
    "int16": INT16_ACTIVATIONS,
    "int8": INT8_ACTIVATIONS,
    "fp32": FLOAT_ACTIVATIONS,
}
DEFAULT_COMPUTE = "int16"

_DENSE_KINDS = {torch.float32: FLOAT, torch.bfloat16: BFLOAT, torch.float16: HALF}


class CpuWeight(PackedWeight):
    """One or more matrices stacked along the rows.

    Attributes:
        parts: The matrices as loaded, where the native kernels are not available;
            their quantised values are expanded a few rows at a time, for one product.
        segments: (address of a NativeWeight, first row, rows) of each matrix, where
            they are.
        address: Of the first segment's NativeWeight; 0 without native kernels.
    """

    __slots__ = ("_owned", "address", "parts", "segments")

    def __init__(
        self,
        parts: tuple[Weight, ...],
        natives: tuple[NativeWeight, ...],
        tensors: list[torch.Tensor],
    ) -> None:
        rows = sum(part.rows for part in parts)
        nbytes = sum(tensor.nbytes for tensor in tensors)
        super().__init__(rows, parts[0].columns, torch.device("cpu"), nbytes)
        self.parts = () if natives else parts
        # What the addresses below point into.
        self._owned = (natives, tensors)
        first_rows = [sum(part.rows for part in parts[:index]) for index in range(len(parts))]
        self.segments = tuple(
            (ctypes.addressof(weight), first, weight.rows)
            for weight, first in zip(natives, first_rows, strict=False)
        )
        self.address = self.segments[0][0] if natives else 0


def pack(weights: tuple[Weight, ...], compute: str) -> CpuWeight:
    """Pack for the CPU; see `kernels.pack`."""
    if compute not in COMPUTE:
        raise ValueError(
            f"compute: expected one of {', '.join(COMPUTE)} on the CPU, got {compute!r}"
        )
    if all(weight.layout == weights[0].layout for weight in weights):
        weights = (Weight.concatenate(weights),) if len(weights) > 1 else weights
    for weight in weights:
        _check_group(weight)
    if native.library() is None:
        kept = [t for w in weights for t in (w.data, w.scale, w.minimum) if t is not None]
        return CpuWeight(weights, (), kept)
    tensors: list[torch.Tensor] = []
    natives = tuple(_pack_one(weight, COMPUTE[compute], tensors) for weight in weights)
    return CpuWeight(weights, natives, tensors)


def _check_group(weight: Weight) -> None:
    if weight.kind not in ("int4", "int8"):
        return
    small = weight.kind == "int8" and weight.group == 16
    if weight.columns % BLOCK or (weight.group % BLOCK and not small):
        raise ValueError(
            f"{weight.kind} weight: expected a group and columns that are multiples of {BLOCK} "
            f"(INT8 also group 16), got group {weight.group}, {weight.columns} columns"
        )


def _pack_one(weight: Weight, activations: int, tensors: list[torch.Tensor]) -> NativeWeight:
    """Layout of src/weight.h; the tensors that hold it are added to `tensors`."""
    if weight.kind == "fp8":
        # No processor here multiplies fp8, and its values fit no smaller type with a scale.
        weight = Weight("dense", weight.dequantize())
    scale, minimum, zero = weight.scale, weight.minimum, 0
    if weight.kind == "dense":
        kind = _DENSE_KINDS[weight.data.dtype]
        data = _tiles(weight.data).transpose(1, 2)
    elif weight.kind == "int8":
        kind, zero = INT8, 128
        unsigned = weight.data.view(torch.uint8) ^ 0x80
        data = _tiles(unsigned).unflatten(2, (-1, 4)).transpose(1, 2)
    else:
        kind = INT4
        data = _nibble_tiles(weight.data)
        if minimum is not None and scale is not None and torch.equal(minimum, scale * -8):
            # A fixed zero point: no minimums to read.
            minimum, zero = None, 8
    held = [data.contiguous()]
    for values in (scale, minimum):
        held.append(
            torch.empty(0) if values is None else _tiles(values).transpose(1, 2).contiguous()
        )
    tensors.extend(held)
    return NativeWeight(
        kind=kind,
        scale_is_half=int(scale is not None and scale.dtype == torch.float16),
        zero=zero,
        activations=activations,
        rows=weight.rows,
        columns=weight.columns,
        group=weight.group,
        data=held[0].data_ptr(),
        scale=held[1].data_ptr() if scale is not None else None,
        minimum=held[2].data_ptr() if minimum is not None else None,
    )


def _tiles(matrix: torch.Tensor) -> torch.Tensor:
    """[rows, columns] to [tiles, 16, columns], zeros below the last row."""
    missing = -matrix.shape[0] % TILE_ROWS
    if missing:
        matrix = torch.cat((matrix, matrix.new_zeros(missing, matrix.shape[1])))
    return matrix.unflatten(0, (-1, TILE_ROWS))


def _nibble_tiles(packed: torch.Tensor) -> torch.Tensor:
    """[rows, columns / 2] to [tiles, blocks, 4 steps, 16 rows, 4 bytes].

    A byte holds column 4 * step + i of its block of 32 in the low nibble, that plus 16
    in the high one.
    """
    # [tiles, 16, blocks, half, 8 bytes of 2 columns]
    pairs = _tiles(packed).unflatten(2, (-1, 2, 8))
    low = torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(4)
    joined = low[:, :, :, 0] | (low[:, :, :, 1] << 4)
    return joined.unflatten(3, (4, 4)).permute(0, 2, 3, 1, 4)
