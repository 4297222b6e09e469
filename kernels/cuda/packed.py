"""A weight matrix in the layout the CUDA kernels read.

INT4 words. Four nibbles of an int16 word belong to four consecutive slices
("planes") of K, each `plane` columns wide, so a tile of 16 rows by 4 * plane
columns is 16 * plane words, and one mask turns a whole plane into operands. The
words of a tile are stored in the order in which the lanes of a warp hold the A
operand of a tensor-core product (m16, k16): 4 chunks of 32 lanes of `plane / 8`
words, so that every lane reads its words in whole vectors and a warp reads a tile
in one row. In bits, a word's place in its tile is, from the high end: K half, row
half, row (3), quad (2), step, pair; its column in the plane is K half, step, quad,
pair, where `step` is 2 bits for a plane of 64 and 1 bit for one of 32.
"""

from __future__ import annotations

from typing import Literal

import torch

from kernels.weights import PackedWeight, Weight

Kind = Literal["bf16", "int8", "fp8", "int4"]

ROW_TILE = 16
ROW_ALIGN = 64
# Columns that must share an 8-bit weight's scale.
BYTE_GROUP = 64


class CudaWeight(PackedWeight):
    """A packed matrix [rows, columns] = [outputs, inputs].

    Attributes:
        kind: bf16, int8, fp8 or int4.
        data: bf16, int8 and fp8: [rows, columns]. int4: int16 words, see above:
            [row tiles, K tiles, 16 * plane].
        scale: int4: int32 [row tiles, K tiles, groups a tile, 16], a float16 scale
            in the low half and a float16 minimum in the high one. int8, fp8: float32
            [columns / group, rows]. None for bf16.
        group: Columns that share a scale; 0 for bf16.
        plane: int4: columns a nibble plane covers, 64 or 32; else 0.
        dense: bf16 [rows, columns] copy of a quantised matrix, for row counts at which
            a library product on bf16 wins; None unless asked for.
        rounds_x: int8 and fp8: several rows of x are rounded to the weight's kind first.
    """

    __slots__ = ("data", "dense", "group", "kind", "plane", "rounds_x", "scale")

    def __init__(
        self,
        kind: Kind,
        rows: int,
        columns: int,
        data: torch.Tensor,
        scale: torch.Tensor | None = None,
        group: int = 0,
        plane: int = 0,
        dense: torch.Tensor | None = None,
        rounds_x: bool = False,
    ) -> None:
        held = [tensor for tensor in (data, scale, dense) if tensor is not None]
        super().__init__(rows, columns, data.device, sum(tensor.nbytes for tensor in held))
        self.kind = kind
        self.data = data
        self.scale = scale
        self.group = group
        self.plane = plane
        self.dense = dense
        self.rounds_x = rounds_x

    @property
    def matrix(self) -> torch.Tensor | None:
        """The bf16 [rows, columns] matrix, if there is one."""
        return self.data if self.kind == "bf16" else self.dense


def pack_weight(weight: Weight, device: torch.device, keep_dense: bool) -> CudaWeight:
    """Lay `weight` out for the CUDA kernels.

    Args:
        weight: The matrix as loaded.
        device: Where the packed tensors go.
        keep_dense: Whether INT4, and FP8 that meets precise activations, also keep a bf16
            copy; 8-bit weights that meet rounded ones have no use for it.

    Raises:
        ValueError: naming a group size that can't be packed.
    """
    if weight.kind == "dense":
        data = weight.data.to(device=device, dtype=torch.bfloat16).contiguous()
        return CudaWeight("bf16", weight.rows, weight.columns, data)
    keep_dense &= weight.kind != "int8" and not weight.rounds_x
    dense = weight.dequantize(torch.bfloat16).to(device).contiguous() if keep_dense else None
    if weight.kind == "int4":
        return _pack_int4(weight, device, dense)
    return _pack_bytes(weight, device, dense)


def _pack_bytes(weight: Weight, device: torch.device, dense: torch.Tensor | None) -> CudaWeight:
    """INT8 and FP8 with one scale a row or a group of 64 columns and more keep their bytes.

    In small groups (GGUF's Q8_0) the scales cost the kernel more than the bytes save, and
    minimums it doesn't have: these become bf16.
    """
    small = weight.group != weight.columns and weight.group % BYTE_GROUP
    if small or weight.minimum is not None:
        return pack_weight(Weight("dense", weight.dequantize()), device, keep_dense=False)
    assert weight.scale is not None
    scale = weight.scale.float().T.to(device).contiguous()
    data = weight.data.to(device).contiguous()
    kind: Kind = "int8" if weight.kind == "int8" else "fp8"
    return CudaWeight(
        kind, weight.rows, weight.columns, data, scale, weight.group, 0, dense, weight.rounds_x
    )


def _pack_int4(weight: Weight, device: torch.device, dense: torch.Tensor | None) -> CudaWeight:
    assert weight.scale is not None
    scale = weight.scale.to(device).half()
    minimum = weight.minimum
    minimum = torch.zeros_like(scale) if minimum is None else minimum.to(device).half()
    group = _kernel_group(weight.group)
    scale = scale.repeat_interleave(weight.group // group, dim=1)
    minimum = minimum.repeat_interleave(weight.group // group, dim=1)
    plane = 64 if group >= 64 else 32
    tile = 4 * plane
    rows = -(-weight.rows // ROW_ALIGN) * ROW_ALIGN
    columns = -(-weight.columns // tile) * tile
    words = pack_words(weight.data.to(device), rows, columns, plane)
    scales = _pad(_pair(scale, minimum), rows, columns // group)
    scales = scales.view(rows // ROW_TILE, ROW_TILE, columns // tile, tile // group)
    scales = scales.permute(0, 2, 3, 1).contiguous()
    return CudaWeight("int4", weight.rows, weight.columns, words, scales, group, plane, dense)


def _kernel_group(group: int) -> int:
    """The largest group of the kernels that divides `group`."""
    for candidate in (256, 128, 64, 32):
        if group % candidate == 0:
            return candidate
    raise ValueError(f"int4 group: expected a multiple of 32, got {group}")


def pack_words(nibbles: torch.Tensor, rows: int, columns: int, plane: int) -> torch.Tensor:
    """uint8 [., . / 2] nibble pairs to int16 [rows / 16, K tiles, 16 * plane]."""
    nibbles = _pad(nibbles, rows, columns // 2)
    q = torch.stack((nibbles & 15, nibbles >> 4), dim=-1).view(rows, columns)
    q = q.view(rows, -1, 4, plane).to(torch.int32)
    words = q[:, :, 0] | (q[:, :, 1] << 4) | (q[:, :, 2] << 8) | (q[:, :, 3] << 12)
    words = words.to(torch.int16)
    # [row tile, row half, row, K tile, K half, step, quad, pair]
    words = words.view(rows // ROW_TILE, 2, 8, -1, 2, plane // 16, 4, 2)
    words = words.permute(0, 3, 4, 1, 2, 6, 5, 7).contiguous()
    return words.view(rows // ROW_TILE, -1, ROW_TILE * plane)


def _pair(scale: torch.Tensor, minimum: torch.Tensor) -> torch.Tensor:
    low = scale.contiguous().view(torch.int16).to(torch.int32) & 0xFFFF
    high = minimum.contiguous().view(torch.int16).to(torch.int32) << 16
    return low | high


def _pad(matrix: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    missing = (0, columns - matrix.shape[1], 0, rows - matrix.shape[0])
    return torch.nn.functional.pad(matrix, missing) if any(missing) else matrix
