"""Round-to-nearest weight quantisation while loading, for files with dense weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from kernels.weights import Weight

WHOLE_ROW = -1


@dataclass(frozen=True, slots=True)
class Quantization:
    """What dense matrices are turned into.

    Embedding and head, which cost the most in quality, are never below INT8.

    Attributes:
        kind: int8 (symmetric) or int4 (with a minimum).
        group: Columns that share a scale; -1 means a whole row.
    """

    kind: Literal["int8", "int4"]
    group: int = 32

    def __post_init__(self) -> None:
        if self.kind not in ("int8", "int4"):
            raise ValueError(f"quantization must be int8 or int4, got {self.kind!r}")
        if self.group not in (WHOLE_ROW, 32, 64, 128):
            raise ValueError(f"quantization group must be 32, 64, 128 or -1, got {self.group}")

    @property
    def name(self) -> str:
        return self.kind if self.group == WHOLE_ROW else f"{self.kind}-g{self.group}"

    def for_tensor(self, name: str) -> Quantization:
        """What the tensor `name` is turned into."""
        is_vocabulary = any(part in name for part in ("embed", "token_embd", "lm_head"))
        if is_vocabulary or name.startswith("output."):
            return Quantization("int8", self.group)
        return self


def quantize(weight: Weight, to: Quantization) -> Weight:
    """The matrix in `to`'s kind, each value rounded to the nearest step.

    Raises:
        ValueError: when the group doesn't divide the width, or the matrix is
            quantised already.
    """
    if weight.kind != "dense":
        raise ValueError(f"is {weight.kind} already; only dense weights can be quantised")
    group = weight.columns if to.group == WHOLE_ROW else to.group
    if weight.columns % group:
        raise ValueError(f"group size {group} does not divide the width {weight.columns}")
    if to.kind == "int4" and weight.columns % 2:
        raise ValueError(f"int4 needs an even width, got {weight.columns}")
    values = weight.data.float().unflatten(1, (-1, group))
    return _int8(values, group) if to.kind == "int8" else _int4(values, group)


def _int8(values: torch.Tensor, group: int) -> Weight:
    scale = _storable(values.abs().amax(-1) / 127)
    q = (values / _divisor(scale)).round().clamp(-127, 127).to(torch.int8)
    return Weight("int8", q.flatten(1), scale, None, group)


def _int4(values: torch.Tensor, group: int) -> Weight:
    low, high = values.amin(-1), values.amax(-1)
    minimum = _storable(low)
    scale = _storable((high - low) / 15)
    q = (values - minimum.float().unsqueeze(-1)) / _divisor(scale)
    q = q.round().clamp(0, 15).to(torch.uint8).flatten(1)
    dtype = torch.promote_types(scale.dtype, minimum.dtype)
    packed = q[:, 0::2] | (q[:, 1::2] << 4)
    return Weight("int4", packed, scale.to(dtype), minimum.to(dtype), group)


def _divisor(scale: torch.Tensor) -> torch.Tensor:
    scale = scale.float()
    return torch.where(scale == 0, torch.ones_like(scale), scale).unsqueeze(-1)


def _storable(values: torch.Tensor) -> torch.Tensor:
    """In float16 where all of it is within that format's normal range, else in float32."""
    info = torch.finfo(torch.float16)
    size = values.abs()
    fits = ((size == 0) | ((size >= info.tiny) & (size <= info.max))).all()
    return values.to(torch.float16) if bool(fits) else values
