"""GGUF's block formats as `Weight`s, bit for bit.

Each function takes the tensor's bytes as uint8 [rows, blocks a row, bytes a block]
and returns a `Weight` whose `dequantize()` gives the very float32 values that the
format defines: quants stay integers, and a scale made of two factors is their
float32 product, which is the order of operations in the format's own arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from engine.loading.gguf.reader import BlockType
from kernels.weights import Weight


def read_weight(data: np.ndarray, block: BlockType, rows: int, columns: int) -> Weight:
    """A matrix from its bytes.

    Args:
        data: uint8 [bytes]; exactly the matrix.
        block: Its type, one of `reader.TENSOR_TYPES`.
        rows: Outputs.
        columns: Inputs; a multiple of the block.

    Returns:
        The matrix, in memory of its own.
    """
    if block.name in _DENSE:
        # A copy: `data` is a view of a mapping whose pages are given back.
        values = torch.frombuffer(bytearray(data), dtype=_DENSE[block.name])
        return Weight("dense", values.view(rows, columns))
    blocks = data.reshape(rows, columns // block.elements, block.size_bytes)
    # Damaged scales give infinities and NaN here; `has_finite_scales` finds them.
    with np.errstate(over="ignore", invalid="ignore"):
        return _QUANTIZED[block.name](blocks)


def has_finite_scales(weight: Weight) -> bool:
    """Whether no scale and no minimum is infinite or NaN."""
    tensors = (weight.scale, weight.minimum)
    return all(bool(torch.isfinite(t).all()) for t in tensors if t is not None)


def _half(blocks: np.ndarray, start: int) -> np.ndarray:
    """The float16 at byte `start` of each block, [rows, blocks]."""
    return np.ascontiguousarray(blocks[:, :, start : start + 2]).view("<f2")[:, :, 0]


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """[..., n] bytes to [..., 2n] values: all low nibbles, then all high ones."""
    return np.concatenate((packed & 15, packed >> 4), axis=-1)


def _high_bits(blocks: np.ndarray, start: int) -> np.ndarray:
    """The 32 bits at byte `start` of each block as 0 or 16, [rows, blocks, 32]."""
    return np.unpackbits(blocks[:, :, start : start + 4], axis=-1, bitorder="little") << 4


def _int4(q: np.ndarray, scale: np.ndarray, minimum: np.ndarray, group: int) -> Weight:
    q = q.reshape(q.shape[0], -1)
    packed = q[:, 0::2] | (q[:, 1::2] << 4)
    return Weight("int4", _tensor(packed), _tensor(scale), _tensor(minimum), group)


def _int8(q: np.ndarray, scale: np.ndarray, minimum: np.ndarray | None, group: int) -> Weight:
    q = q.reshape(q.shape[0], -1).view(np.int8)
    return Weight(
        "int8", _tensor(q), _tensor(scale), None if minimum is None else _tensor(minimum), group
    )


def _tensor(array: np.ndarray) -> torch.Tensor:
    array = array.reshape(array.shape[0], -1)
    return torch.from_numpy(array.copy() if array.base is not None else array)


def _q4_0(blocks: np.ndarray) -> Weight:
    # d * (q - 8) as d * q + (-8 d): both terms and the sum are exact in float32, and
    # -8 d is a float16 unless d is within a factor of 8 of the format's end.
    scale = _half(blocks, 0)
    minimum = scale.astype(np.float32) * -8
    if np.all(np.abs(minimum) <= np.finfo(np.float16).max):
        minimum = minimum.astype(np.float16)
    else:
        scale = scale.astype(np.float32)
    return _int4(_nibbles(blocks[:, :, 2:]), scale, minimum, 32)


def _q4_1(blocks: np.ndarray) -> Weight:
    return _int4(_nibbles(blocks[:, :, 4:]), _half(blocks, 0), _half(blocks, 2), 32)


def _q5_0(blocks: np.ndarray) -> Weight:
    q = _nibbles(blocks[:, :, 6:]) | _high_bits(blocks, 2)
    return _int8(q - np.uint8(16), _half(blocks, 0), None, 32)


def _q5_1(blocks: np.ndarray) -> Weight:
    q = _nibbles(blocks[:, :, 8:]) | _high_bits(blocks, 4)
    return _int8(q, _half(blocks, 0), _half(blocks, 2), 32)


def _q8_0(blocks: np.ndarray) -> Weight:
    return _int8(np.ascontiguousarray(blocks[:, :, 2:]), _half(blocks, 0), None, 32)


def _six_bit_pairs(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The eight (scale, minimum) pairs of a K block as float32, [rows, blocks, 8].

    Bytes 0 to 3 of the twelve hold the first four scales, 4 to 7 the first four
    minima, each with two high bits of a later one; 8 to 11 hold the later nibbles.
    """
    packed = blocks[:, :, 4:16]
    first, second, third = packed[:, :, :4], packed[:, :, 4:8], packed[:, :, 8:]
    scale = np.concatenate((first & 63, (third & 15) | ((first >> 6) << 4)), axis=-1)
    minimum = np.concatenate((second & 63, (third >> 4) | ((second >> 6) << 4)), axis=-1)
    d = _half(blocks, 0).astype(np.float32)[:, :, None]
    dmin = _half(blocks, 2).astype(np.float32)[:, :, None]
    return d * scale.astype(np.float32), -(dmin * minimum.astype(np.float32))


def _k_nibbles(blocks: np.ndarray, start: int) -> np.ndarray:
    """128 bytes of a K block to 256 values: by 32 bytes, low nibbles then high ones."""
    rows, count, _ = blocks.shape
    return _nibbles(blocks[:, :, start : start + 128].reshape(rows, count, 4, 32))


def _q4_k(blocks: np.ndarray) -> Weight:
    scale, minimum = _six_bit_pairs(blocks)
    return _int4(_k_nibbles(blocks, 16), scale, minimum, 32)


def _q5_k(blocks: np.ndarray) -> Weight:
    rows, count, _ = blocks.shape
    scale, minimum = _six_bit_pairs(blocks)
    # Bit j of high byte l is the fifth bit of element l of sub-block j.
    high = blocks[:, :, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    q = _k_nibbles(blocks, 48) | (high.reshape(rows, count, 4, 64) << 4)
    return _int8(q, scale, minimum, 32)


def _q6_k(blocks: np.ndarray) -> Weight:
    rows, count, _ = blocks.shape
    # By 128 elements: 64 bytes of low nibbles and 32 bytes of high bit pairs.
    low = _nibbles(blocks[:, :, :128].reshape(rows, count, 2, 64))
    pairs = blocks[:, :, 128:192].reshape(rows, count, 2, 1, 32)
    high = pairs >> np.array([[0], [2], [4], [6]], np.uint8) & 3
    q = low | (high.reshape(rows, count, 2, 128) << 4)
    sub = np.ascontiguousarray(blocks[:, :, 192:208]).view(np.int8)
    scale = _half(blocks, 208).astype(np.float32)[:, :, None] * sub.astype(np.float32)
    return _int8(q - np.uint8(32), scale, None, 16)


_DENSE = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_QUANTIZED: dict[str, Callable[[np.ndarray], Weight]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
