"""Sampling on the CPU: only tokens that noise could still lift to the top are looked at.

By the native kernels; without them by NumPy, since its operations on one row stay on one
thread: rows are too short to be worth waking others for.
"""

from __future__ import annotations

import numpy as np
import torch

from kernels import native
from kernels.sampling.batch import SamplingBatch
from kernels.sampling.native import sample_native
from kernels.sampling.noise import NOISE_RANGE, gumbel_noise
from kernels.sampling.reference import NO_TOKEN, adjust_row


def sample_cpu(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """See `kernels.sampling.sample`."""
    library = native.library()
    if library is not None:
        return sample_native(library, logits, batch)
    values = logits.numpy()
    tokens = values.argmax(axis=1)
    # A NaN wins every argmax, so a finite best has none beside it.
    settled = batch.plain.numpy() & np.isfinite(values[np.arange(len(tokens)), tokens])
    for i in np.flatnonzero(~settled).tolist():
        tokens[i] = _sample_row(adjust_row(logits[i], batch, i).numpy(), batch, i)
    return torch.from_numpy(tokens)


def _sample_row(x: np.ndarray, batch: SamplingBatch, i: int) -> int:
    first = int(x.argmax())
    best, temperature = x[first], float(batch.temperature[i])
    if best == -np.inf:
        return NO_TOKEN
    if temperature == 0:
        return first
    best = np.float64(best)
    ids = np.flatnonzero(x >= best - NOISE_RANGE * temperature)
    scaled = (x[ids] - best) / temperature
    top_k, top_p = int(batch.top_k[i]), float(batch.top_p[i])
    top_k = min(top_k, len(x)) or len(x)
    if top_k < len(ids) or top_p < 1:
        order = np.argsort(-scaled, kind="stable")[:top_k]
        scaled, ids = scaled[order], ids[order]
    if top_p < 1:
        weights = np.exp(scaled)
        before = weights.cumsum() - weights
        keep = before < top_p * _total_weight(x, best, temperature, top_k)
        scaled, ids = scaled[keep], ids[keep]
    min_p = float(batch.min_p[i])
    if min_p > 0:
        keep = np.exp(scaled) >= min_p
        scaled, ids = scaled[keep], ids[keep]
    scores = scaled + gumbel_noise(ids, int(batch.positions[i]), int(batch.seeds[i]))
    return int(ids[scores == scores.max()].min())


def _total_weight(x: np.ndarray, best: np.float64, temperature: float, top_k: int) -> float:
    """Sum of exp of the scaled logits of the `top_k` likeliest tokens."""
    kept = x if top_k == len(x) else np.partition(x, len(x) - top_k)[len(x) - top_k :]
    return float(np.exp((kept - best) / temperature).sum())
