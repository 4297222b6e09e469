"""Choosing tokens: logits and how each row is to be sampled in, token ids out."""

from __future__ import annotations

import torch

from kernels.checks import expect
from kernels.sampling.batch import GREEDY_TEMPERATURE, SamplingBatch, SamplingRow
from kernels.sampling.cpu import sample_cpu
from kernels.sampling.reference import NO_TOKEN, sample_reference

__all__ = [
    "GREEDY_TEMPERATURE",
    "NO_TOKEN",
    "SamplingBatch",
    "SamplingRow",
    "sample",
    "sample_reference",
]


def sample(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """One token a row.

    In this order: bias is added; the repetition penalty divides positive and
    multiplies other logits of seen tokens; the frequency penalty times the count and
    the presence penalty are subtracted; masked tokens are left out (all in float32).
    Then, in float64: x = (logit - largest logit) / temperature; the top_k likeliest
    stay; of these the fewest whose probability reaches top_p; of these the ones with
    at least min_p times the largest probability; and the largest x + noise wins
    (`kernels.sampling.noise`). A greedy row takes its largest adjusted logit.

    Ties go to the lower id everywhere: at the border of top_k and top_p, and at the
    end. NaN counts as -inf, +inf as the largest float32. A row is chosen by its own
    logits and parameters alone.

    Args:
        logits: float32 [R, V], left as they are.
        batch: R rows.

    Returns:
        int64 [R]; `NO_TOKEN` for a row in which no token is above -inf.

    Raises:
        ValueError: for logits of another shape or dtype.
    """
    expect("logits", logits, [len(batch), None], [torch.float32])
    return sample_cpu(logits, batch)
