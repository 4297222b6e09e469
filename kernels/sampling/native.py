"""Sampling by the native CPU kernels, rows shared out among threads."""

from __future__ import annotations

import ctypes

import torch

from kernels.native.library import SAMPLING_TENSORS, Library, NativeSamplingRows
from kernels.sampling.batch import SamplingBatch
from kernels.sampling.noise import NOISE_RANGE


def sample_native(library: Library, logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """See `kernels.sampling.sample`."""
    num_rows, vocabulary = logits.shape
    tokens = torch.empty(num_rows, dtype=torch.int64)
    addresses = [getattr(batch, name).data_ptr() for name in SAMPLING_TENSORS[1:-1]]
    rows = NativeSamplingRows(
        num_rows, vocabulary, logits.data_ptr(), *addresses, tokens.data_ptr(), NOISE_RANGE
    )
    if library.sample(ctypes.addressof(rows)):
        raise ValueError(
            f"batch: expected bias, seen and masked token ids in 0 .. {vocabulary - 1}"
        )
    return tokens
