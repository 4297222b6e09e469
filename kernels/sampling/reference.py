"""Sampling in plain PyTorch, one row after the other, the whole vocabulary each time."""

from __future__ import annotations

import numpy as np
import torch

from kernels.sampling.batch import SamplingBatch
from kernels.sampling.noise import gumbel_noise

NO_TOKEN = -1


def sample_reference(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """See `kernels.sampling.sample`."""
    tokens = [_sample_row(logits[i], batch, i) for i in range(len(batch))]
    return torch.tensor(tokens, dtype=torch.int64)


def adjust_row(logits: torch.Tensor, batch: SamplingBatch, i: int) -> torch.Tensor:
    """Row i's logits after bias, penalties and mask, all finite or -inf.

    Args:
        logits: float32 [V]; left as it is.
        batch: The rows.
        i: Which.

    Returns:
        float32 [V], a copy.
    """
    x = torch.from_numpy(np.nan_to_num(logits.numpy(), nan=-np.inf, neginf=-np.inf))
    biased = slice(*batch.bias_starts[i : i + 2].tolist())
    x.index_add_(0, batch.bias_ids[biased], batch.bias_values[biased])
    seen = slice(*batch.seen_starts[i : i + 2].tolist())
    ids, counts = batch.seen_ids[seen], batch.seen_counts[seen]
    values = x[ids]
    penalty = batch.repetition_penalty[i]
    values = torch.where(values > 0, values / penalty, values * penalty)
    values -= batch.frequency_penalty[i] * counts
    values -= batch.presence_penalty[i] * (counts > 0)
    x[ids] = values
    x[batch.masked_ids[slice(*batch.masked_starts[i : i + 2].tolist())]] = -torch.inf
    return x


def _sample_row(logits: torch.Tensor, batch: SamplingBatch, i: int) -> int:
    x = adjust_row(logits, batch, i)
    if torch.isneginf(x.max()):
        return NO_TOKEN
    temperature = batch.temperature[i]
    if temperature == 0:
        return int(x.argmax())
    # The likeliest token is at 0, so that no quotient overflows upwards.
    scaled = (x.double() - x.max().double()) / temperature
    # Stable: of equally likely tokens the lower id comes first.
    scaled, order = scaled.sort(descending=True, stable=True)
    keep = ~torch.isneginf(scaled)
    ranks = torch.arange(len(scaled))
    if batch.top_k[i] > 0:
        keep &= ranks < batch.top_k[i]
    if batch.top_p[i] < 1:
        weights = torch.where(keep, scaled.exp(), 0.0)
        before = weights.cumsum(0) - weights
        keep &= before < batch.top_p[i] * weights.sum()
    keep &= scaled.exp() >= batch.min_p[i]
    ids = order[keep]
    noise = gumbel_noise(ids.numpy(), int(batch.positions[i]), int(batch.seeds[i]))
    scores = scaled[keep] + torch.from_numpy(noise)
    return int(ids[scores == scores.max()].min())
