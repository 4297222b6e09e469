"""Rotary frequencies, with the scalings that models of the family use."""

from __future__ import annotations

import math

import torch

from engine.model.config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Radians a position for each rotated pair.

    Args:
        rope: The model's rotary embedding.
        head_dim: Width of a head.

    Returns:
        float32 [head_dim / 2].
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.scaling == "linear":
        return frequencies / rope.factor
    if rope.scaling == "factors":
        return frequencies / torch.tensor(rope.factors, dtype=torch.float32)
    if rope.scaling == "llama3":
        return _llama3(frequencies, rope)
    return frequencies


def _llama3(frequencies: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Long wavelengths stretched, short ones kept, those between blended."""
    wavelengths = 2 * math.pi / frequencies
    low, high = rope.low_freq_factor, rope.high_freq_factor
    kept = (rope.original_context / wavelengths - low) / (high - low)
    blended = (1 - kept) * frequencies / rope.factor + kept * frequencies
    stretched = torch.where(
        wavelengths > rope.original_context / low, frequencies / rope.factor, frequencies
    )
    between = (wavelengths >= rope.original_context / high) & (
        wavelengths <= rope.original_context / low
    )
    return torch.where(between, blended, stretched)
