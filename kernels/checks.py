"""Argument checks of the ops: each failure says what was expected and what came."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def describe(tensor: torch.Tensor) -> str:
    """Shape, dtype and device of `tensor`, for an error message."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype} {list(tensor.shape)} on {tensor.device}"


def expect(
    name: str,
    tensor: torch.Tensor,
    shape: Sequence[int | None],
    dtypes: Sequence[torch.dtype],
    *,
    contiguous: bool = True,
) -> None:
    """Check one tensor.

    Args:
        name: The argument's name in the message.
        tensor: The argument.
        shape: Expected sizes; None is any.
        dtypes: The dtypes allowed.
        contiguous: Whether all of it must be contiguous, or only its last axis.

    Raises:
        ValueError: Something differs.
    """
    fits = tensor.dim() == len(shape) and all(
        wanted is None or wanted == got for wanted, got in zip(shape, tensor.shape, strict=True)
    )
    if not fits or tensor.dtype not in dtypes:
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ValueError(f"{name}: expected {names} [{sizes}], got {describe(tensor)}")
    if contiguous and not tensor.is_contiguous():
        raise ValueError(f"{name}: expected a contiguous tensor, got strides {tensor.stride()}")
    if not contiguous and tensor.stride(-1) != 1 and tensor.shape[-1] != 1:
        raise ValueError(f"{name}: expected stride 1 on the last axis, got {tensor.stride()}")
