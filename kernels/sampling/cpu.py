"""Sampling on the CPU: only tokens that noise could still lift to the top are looked at."""

from __future__ import annotations

import torch

from kernels.sampling.batch import SamplingBatch
from kernels.sampling.noise import NOISE_RANGE, gumbel_noise
from kernels.sampling.reference import NO_TOKEN, adjust_row


def sample_cpu(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """See `kernels.sampling.sample`."""
    tokens = logits.argmax(dim=-1)
    best = logits.gather(1, tokens.unsqueeze(1)).squeeze(1)
    # A NaN wins every argmax, so a finite best has none beside it.
    settled = batch.plain & torch.isfinite(best)
    for i in (~settled).nonzero().flatten().tolist():
        tokens[i] = _sample_row(logits[i], batch, i)
    return tokens


def _sample_row(logits: torch.Tensor, batch: SamplingBatch, i: int) -> int:
    x = adjust_row(logits, batch, i)
    best = float(x.max())
    if best == -torch.inf:
        return NO_TOKEN
    temperature = float(batch.temperature[i])
    if temperature == 0:
        return int(x.argmax())
    ids = (x >= best - NOISE_RANGE * temperature).nonzero().flatten()
    scaled = (x[ids].double() - best) / temperature
    top_k, top_p = int(batch.top_k[i]), float(batch.top_p[i])
    top_k = min(top_k, len(x)) or len(x)
    if top_k < len(ids) or top_p < 1:
        scaled, order = scaled.sort(descending=True, stable=True)
        scaled, ids = scaled[:top_k], ids[order[:top_k]]
    if top_p < 1:
        weights = scaled.exp()
        before = weights.cumsum(0) - weights
        keep = before < top_p * _total_weight(x, best, temperature, top_k)
        scaled, ids = scaled[keep], ids[keep]
    if batch.min_p[i] > 0:
        keep = scaled.exp() >= batch.min_p[i]
        scaled, ids = scaled[keep], ids[keep]
    scores = scaled + gumbel_noise(ids, int(batch.positions[i]), int(batch.seeds[i]))
    return int(ids[scores == scores.max()].min())


def _total_weight(x: torch.Tensor, best: float, temperature: float, top_k: int) -> float:
    """Sum of exp of the scaled logits of the `top_k` likeliest tokens."""
    kept = x if top_k == len(x) else x.topk(top_k).values
    return float(((kept.double() - best) / temperature).exp().sum())
