"""Packed weights of the CUDA kernels."""

from __future__ import annotations

import torch

from kernels.cuda.packed import CudaWeight, pack_weight
from kernels.weights import Weight

COMPUTE = ("memory", "speed")


def pack(weights: tuple[Weight, ...], device: torch.device, compute: str | None) -> CudaWeight:
    """Pack for CUDA; see `kernels.pack`.

    Args:
        weights: Matrices whose rows are stacked; of differing layouts they become bf16.
        device: Where the packed weight lies.
        compute: "memory" keeps quantised weights alone; "speed", the default, adds a
            bf16 copy of them, which large row counts are multiplied with.

    Raises:
        ValueError: `compute` is unknown.
    """
    if compute not in (None, *COMPUTE):
        raise ValueError(f"compute: expected one of {COMPUTE} on CUDA, got {compute!r}")
    # Dequantising, stacking and laying out are the device's work: many times as fast.
    weights = tuple(weight.to(device) for weight in weights)
    if len({weight.layout for weight in weights}) > 1:
        dense = torch.cat([weight.dequantize(torch.bfloat16) for weight in weights])
        return pack_weight(Weight("dense", dense), device, keep_dense=False)
    whole = weights[0] if len(weights) == 1 else Weight.concatenate(weights)
    return pack_weight(whole, device, keep_dense=compute != "memory")
