"""Sampling by each CPU path against the reference, on a vocabulary of real size."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from kernels.native.library import Library
from kernels.sampling import SamplingBatch, SamplingRow, sample, sample_reference

VOCABULARY = 5003


def logits_of(rows: int, spread: float, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, VOCABULARY, generator=generator) * spread


@pytest.mark.parametrize("spread", [0.5, 4.0])
def test_every_combination_of_truncations(backend: str, spread: float) -> None:
    choices = itertools.product(
        (0.0, 0.3, 1.0, 3.0), (0, 1, 7, 4000, VOCABULARY), (0.0, 0.2, 0.95, 1.0), (0.0, 0.1)
    )
    rows = [
        SamplingRow(
            temperature=t, top_k=k, top_p=p, min_p=m, seed=2**63 - 1 - seed, position=seed * 70001
        )
        for seed, (t, k, p, m) in enumerate(choices)
    ]
    batch = SamplingBatch.from_rows(rows)
    logits = logits_of(len(rows), spread)
    assert torch.equal(sample(logits, batch), sample_reference(logits, batch))


def test_bias_penalties_and_masks(backend: str) -> None:
    rows = [
        SamplingRow(
            temperature=1.5,
            top_p=0.9,
            seed=seed,
            repetition_penalty=1.0 + seed % 3,
            frequency_penalty=0.5 * (seed % 2),
            presence_penalty=-0.5 * (seed % 5),
            bias=[(seed, 3.0), (seed, 2.0), (4999, -100.0)],
            seen=[(token, token % 4) for token in range(seed, VOCABULARY, 11)],
            masked=list(range(0, VOCABULARY, 7)),
        )
        for seed in range(40)
    ]
    batch, logits = SamplingBatch.from_rows(rows), logits_of(40, 2.0)
    chosen = sample(logits, batch)
    assert torch.equal(chosen, sample_reference(logits, batch))
    assert not (chosen % 7 == 0).any()


def test_infinities_and_nan(backend: str) -> None:
    logits = logits_of(6, 1.0)
    logits[0] = -torch.inf
    logits[1, 17], logits[1, 30] = torch.inf, torch.inf
    logits[2, 100:] = torch.nan
    logits[3], logits[3, 4321] = -torch.inf, -1e30
    logits[4] = 0.0
    logits[5] = torch.nan
    for temperature in (0.0, 1.0):
        batch = SamplingBatch.from_rows(
            [SamplingRow(temperature=temperature, seed=i) for i in range(6)]
        )
        chosen = sample(logits, batch)
        assert torch.equal(chosen, sample_reference(logits, batch))
        assert [chosen[0], chosen[3], chosen[5]] == [-1, 4321, -1]


def test_draws_follow_the_distribution(compiled: Library) -> None:
    count = 20000
    weights = torch.tensor([0.5, 0.3, 0.15, 0.05])
    batch = SamplingBatch.from_rows([SamplingRow(seed=9, position=i) for i in range(count)])
    chosen = sample(weights.log().expand(count, 4).contiguous(), batch)
    for token, weight in enumerate(weights.tolist()):
        share = float((chosen == token).double().mean())
        assert abs(share - weight) < 5 * math.sqrt(weight * (1 - weight) / count)


def test_a_row_is_chosen_alone(compiled: Library) -> None:
    rows = [SamplingRow(seed=seed, top_p=0.9) for seed in range(9)]
    logits = logits_of(9, 2.0)
    together = sample(logits, SamplingBatch.from_rows(rows))
    for i, row in enumerate(rows):
        assert sample(logits[i : i + 1], SamplingBatch.from_rows([row])) == together[i]


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_token_ids_out_of_range_are_refused(compiled: Library, token: int) -> None:
    logits = logits_of(2, 1.0)
    for row in (
        SamplingRow(bias=[(token, 1.0)]),
        SamplingRow(seen=[(token, 1)]),
        SamplingRow(masked=[token]),
    ):
        with pytest.raises(ValueError, match=r"token ids in 0 \.\. 5002"):
            sample(logits, SamplingBatch.from_rows([SamplingRow(), row]))
