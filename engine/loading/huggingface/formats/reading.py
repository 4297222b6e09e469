"""What the quantised formats' tensors have in common: dtypes, words, scales with zero points."""

from __future__ import annotations

import torch

from engine.loading.errors import ModelFileError
from engine.loading.huggingface.tensors import TensorStore
from kernels.weights import Weight, WeightKind

SCALES = (torch.float16, torch.bfloat16, torch.float32)
WORD_BITS = 32


def read_as(store: TensorStore, name: str, *dtypes: torch.dtype) -> torch.Tensor:
    """The tensor, which must have one of the dtypes.

    Raises:
        ModelFileError: It has another.
    """
    tensor = store.read(name)
    if tensor.dtype not in dtypes:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ModelFileError(
            store.path(name), f"tensor {name!r:.80} is {tensor.dtype}, not {wanted}"
        )
    return tensor


def read_scale(store: TensorStore, name: str) -> torch.Tensor:
    """A tensor of scales: float16, or float32 where it was bfloat16 or float32.

    Raises:
        ModelFileError: Another dtype, or a value that is no finite number.
    """
    scale = read_as(store, name, *SCALES)
    if not bool(torch.isfinite(scale).all()):
        raise ModelFileError(store.path(name), f"tensor {name!r:.80} has a scale that is no number")
    return scale if scale.dtype == torch.float16 else scale.float()


def unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 words along the last axis, lowest bits first: uint8 [..., words * 32 / bits]."""
    parts = words.contiguous().view(torch.uint8)
    if bits == 8:
        return parts
    return torch.stack((parts & 15, parts >> 4), dim=-1).flatten(-2)


def pair_nibbles(q: torch.Tensor) -> torch.Tensor:
    """uint8 [rows, columns] below 16 to [rows, columns / 2], as `Weight` holds INT4."""
    return q[:, 0::2] | (q[:, 1::2] << 4)


def input_order(store: TensorStore, name: str, columns: int, group: int) -> torch.Tensor | None:
    """The inputs in the order of the groups that tensor `name` gives them.

    Returns:
        int64 [columns], or None where they are in that order already.

    Raises:
        ModelFileError: Not every group has `group` inputs.
    """
    members = read_as(store, name, torch.int32, torch.int64).long()
    order = torch.argsort(members, stable=True)
    plain = torch.arange(columns)
    if not torch.equal(members[order], plain // group):
        raise ModelFileError(
            store.path(name), f"tensor {name!r:.80} does not give each group {group} inputs"
        )
    return None if torch.equal(order, plain) else order


def affine(
    bits: int,
    data: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | int,
    group: int,
    order: torch.Tensor | None = None,
) -> Weight:
    """value = scale * (q - zero), without a rounding.

    Args:
        bits: 4 or 8.
        data: q, unsigned: 4 bits in pairs [rows, columns / 2], 8 bits [rows, columns].
        scale: float16 or float32 [rows, groups].
        zero: int [rows, groups], or one for all; 0 to 2 ** bits - 1.
        group: Columns that share a scale.
        order: The inputs that the columns multiply; see `Weight`.
    """
    kind: WeightKind = "int4"
    if bits == 8:
        kind, zero = "int8", zero - 128
        data = (data ^ 0x80).view(torch.int8)
    scale = scale.contiguous()
    exact = -(scale.float() * zero)
    if not bool(exact.count_nonzero()):
        return Weight(kind, data, scale, None, group, order=order)
    minimum = exact.to(scale.dtype)
    if not torch.equal(minimum.float(), exact):
        scale, minimum = scale.float(), exact
    return Weight(kind, data, scale, minimum.contiguous(), group, order=order)
