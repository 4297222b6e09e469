"""A weight matrix as loaded from a file, before any device's layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

WeightKind = Literal["dense", "int8", "int4", "fp8"]

_DATA_DTYPES: dict[str, tuple[torch.dtype, ...]] = {
    "dense": (torch.float32, torch.bfloat16, torch.float16),
    "int8": (torch.int8,),
    "int4": (torch.uint8,),
    "fp8": (torch.float8_e4m3fn,),
}
_SCALE_DTYPES = (torch.float16, torch.float32)


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
        rounds_x: int8 and fp8: the weight was made to meet activations of its own kind,
            rounded with one scale a row. A kernel may do so or keep them precise.
        order: int64 [columns] on the CPU: the input that each column multiplies, where
            groups hold inputs that are no neighbours; None means 0, 1, 2, ...
    """

    kind: WeightKind
    data: torch.Tensor
    scale: torch.Tensor | None = None
    minimum: torch.Tensor | None = None
    group: int = 0
    rounds_x: bool = False
    order: torch.Tensor | None = None

    def validate(self) -> None:
        """Check shapes and dtypes against the class's own description.

        Raises:
            ValueError: Something differs.
        """
        dtypes = _DATA_DTYPES.get(self.kind)
        if dtypes is None:
            raise ValueError(f"kind: expected one of {sorted(_DATA_DTYPES)}, got {self.kind!r}")
        if self.data.dim() != 2 or self.data.dtype not in dtypes:
            raise ValueError(
                f"{self.kind} data: expected two axes of {dtypes}, "
                f"got {self.data.dtype} {list(self.data.shape)}"
            )
        if self.rounds_x and self.kind not in ("int8", "fp8"):
            raise ValueError(f"{self.kind} weight: expected rounds_x to be False")
        if self.kind == "dense":
            if (
                any(each is not None for each in (self.scale, self.minimum, self.order))
                or self.group
            ):
                raise ValueError("dense weight: expected no scale, minimum, group or order")
            return
        if self.order is not None and (
            self.order.dtype != torch.int64
            or not torch.equal(self.order.sort().values, torch.arange(self.columns))
        ):
            raise ValueError(f"order: expected 0 to {self.columns - 1}, each once, as int64")
        if self.group < 1 or self.columns % self.group:
            raise ValueError(f"group: expected a divisor of {self.columns}, got {self.group}")
        if self.scale is None:
            raise ValueError(f"{self.kind} weight: expected a scale, got None")
        wanted = (self.rows, self.columns // self.group)
        for name, tensor in (("scale", self.scale), ("minimum", self.minimum)):
            if tensor is None:
                continue
            if tuple(tensor.shape) != wanted or tensor.dtype not in _SCALE_DTYPES:
                raise ValueError(
                    f"{name}: expected float16 or float32 {list(wanted)}, "
                    f"got {tensor.dtype} {list(tensor.shape)}"
                )
        if self.minimum is not None and self.minimum.dtype != self.scale.dtype:
            raise ValueError(f"minimum: expected {self.scale.dtype}, got {self.minimum.dtype}")

    @property
    def rows(self) -> int:
        return self.data.shape[0]

    @property
    def columns(self) -> int:
        return self.data.shape[1] * (2 if self.kind == "int4" else 1)

    def to(self, device: torch.device) -> Weight:
        """The same weight on `device`."""

        def moved(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else tensor.to(device)

        return replace(
            self,
            data=self.data.to(device),
            scale=moved(self.scale),
            minimum=moved(self.minimum),
        )

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The values, [rows, columns], columns in the order of the inputs."""
        if self.kind == "dense":
            return self.data.to(dtype)
        q = self.data
        if self.kind == "int4":
            q = torch.stack((q & 15, q >> 4), dim=-1).flatten(1)
        assert self.scale is not None
        values = q.float().unflatten(1, (-1, self.group)) * self.scale.float().unsqueeze(-1)
        if self.minimum is not None:
            values += self.minimum.float().unsqueeze(-1)
        values = values.flatten(1).to(dtype)
        return values if self.order is None else values[:, torch.argsort(self.order)]

    @staticmethod
    def concatenate(weights: Sequence[Weight]) -> Weight:
        """One matrix of the rows of `weights`, in order.

        Raises:
            ValueError: The weights differ in kind, columns, group, dtype, minimum or order.
        """
        first = weights[0]
        if any(weight.layout != first.layout for weight in weights):
            layouts = ", ".join(str(weight.layout) for weight in weights)
            raise ValueError(f"expected weights of one layout, got {layouts}")

        def rows_of(name: str) -> torch.Tensor | None:
            parts = [getattr(weight, name) for weight in weights]
            return None if parts[0] is None else torch.cat(parts)

        data = rows_of("data")
        assert data is not None
        return replace(first, data=data, scale=rows_of("scale"), minimum=rows_of("minimum"))

    @property
    def layout(self) -> tuple[object, ...]:
        """What two weights must share for their rows to lie in one matrix."""
        scale_dtype = None if self.scale is None else self.scale.dtype
        order = None if self.order is None else hash(self.order.numpy().tobytes())
        return (
            self.kind, self.columns, self.group, self.data.dtype, scale_dtype,
            self.minimum is not None, self.rounds_x, order,
        )  # fmt: skip


class PackedWeight:
    """A weight in the layout of one device's kernels; made by `kernels.pack`.

    Attributes:
        rows: Outputs N.
        columns: Inputs K.
        device: Where it lies.
        nbytes: Memory held, in bytes.
        order: As in `Weight`, on the device; the ops put the inputs into it.
    """

    __slots__ = ("columns", "device", "nbytes", "order", "rows")

    def __init__(self, rows: int, columns: int, device: torch.device, nbytes: int) -> None:
        self.rows = rows
        self.columns = columns
        self.device = device
        self.nbytes = nbytes
        self.order: torch.Tensor | None = None

    def arrange(
        self, x: torch.Tensor, norm: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """x [T, columns] and the norm's weights [columns] in the order of the columns."""
        if self.order is None:
            return x, norm
        return x[:, self.order], None if norm is None else norm[self.order]
