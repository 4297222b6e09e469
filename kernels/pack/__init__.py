"""From a weight as loaded to the layout that its device's kernels want."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from kernels.weights import PackedWeight, Weight


def pack(
    weight: Weight | Sequence[Weight], device: torch.device | str, compute: str | None = None
) -> PackedWeight:
    """Pack `weight` once; the ops take only packed weights. INT4 stays INT4 in memory.

    Args:
        weight: A matrix [N, K], or several with the same K whose rows are stacked in
            order (q, k, v; gate, up). They may differ in kind and group.
        device: Where the packed weight lies.
        compute: How products are formed. On the CPU, INT4 and INT8 weights meet
            activations rounded to 16 bits ("int16") or 8 bits ("int8") by row and group
            of 32 columns, products and their sums over a group exact in int32; or, in
            "fp32", float32 activations and sums. Dense weights are computed as in
            "fp32" always. None is "int16". On CUDA see `kernels/pack/triton.py`.

    Returns:
        The packed weight; one buffer serves `embedding` and a tied output layer.

    Raises:
        ValueError: The weight's shapes, dtypes or group, or `compute`, are unsupported.
    """
    weights = (weight,) if isinstance(weight, Weight) else tuple(weight)
    if not weights:
        raise ValueError("weight: expected at least one matrix, got none")
    for part in weights:
        part.validate()
        if part.columns != weights[0].columns:
            raise ValueError(
                f"weight: expected {weights[0].columns} columns in each part, got {part.columns}"
            )
    device = torch.device(device)
    if all(part.order is None for part in weights):
        return _pack(weights, device, compute)
    if len({part.layout for part in weights}) > 1:
        # Inputs of one order can't serve columns of several.
        plain = (
            Weight("dense", part.dequantize()) if part.order is not None else part
            for part in weights
        )
        return _pack(tuple(plain), device, compute)
    packed = _pack(tuple(replace(part, order=None) for part in weights), device, compute)
    assert weights[0].order is not None
    packed.order = weights[0].order.to(device)
    return packed


def _pack(weights: tuple[Weight, ...], device: torch.device, compute: str | None) -> PackedWeight:
    if device.type == "cpu":
        from kernels.pack import cpu

        return cpu.pack(weights, compute or cpu.DEFAULT_COMPUTE)
    from kernels.pack import triton

    return triton.pack(weights, device, compute)
