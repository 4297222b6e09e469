"""The CUDA sampler against the float64 reference."""

from __future__ import annotations

import itertools

import pytest
import torch

from kernels.sampling import NO_TOKEN, SamplingBatch, SamplingRow, sample_reference

VOCABULARY = 5003


def check(logits: torch.Tensor, rows: list[SamplingRow], device: torch.device) -> torch.Tensor:
    from kernels.sampling.triton import sample_triton

    batch = SamplingBatch.from_rows(rows)
    expected = sample_reference(logits, batch)
    actual = sample_triton(logits.to(device), batch).cpu()
    assert actual.tolist() == expected.tolist()
    return actual


def some_logits(rows: int, size: int = VOCABULARY) -> torch.Tensor:
    # Rounded, as a bf16 head gives them, so that ties are common.
    return (torch.randn(rows, size) * 3).bfloat16().float()


@pytest.mark.parametrize("size", [1, 7, 2048, 2049])
def test_greedy_and_plain_noise(device: torch.device, size: int) -> None:
    rows = [SamplingRow(temperature=0.0), *(SamplingRow(seed=s, position=s) for s in range(5))]
    check(some_logits(len(rows), size), rows, device)


def test_greedy_ties_go_to_the_lower_id(device: torch.device) -> None:
    logits = torch.zeros(2, VOCABULARY)
    logits[1, [4000, 2100, 2105]] = 1.0
    chosen = check(logits, [SamplingRow(temperature=0.0), SamplingRow(top_k=1)], device)
    assert chosen.tolist() == [0, 2100]


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [
        filters
        for filters in itertools.product((0, 2, 40, 6000), (1.0, 0.9, 0.2, 0.0), (0.0, 0.05))
        if filters != (0, 1.0, 0.0)
    ],
)
def test_filters(device: torch.device, top_k: int, top_p: float, min_p: float) -> None:
    rows = [
        SamplingRow(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed,
            position=seed % 1000,
        )
        for temperature, seed in ((0.3, 1), (1.0, 2**63 - 1), (2.0, 12345678901))
    ]  # fmt: skip
    check(some_logits(len(rows)), rows, device)


def test_rows_do_not_see_each_other(device: torch.device) -> None:
    logits = some_logits(6)
    rows = [
        SamplingRow(seed=1), SamplingRow(temperature=0.0), SamplingRow(top_p=0.5, seed=3),
        SamplingRow(top_k=3, seed=4), SamplingRow(min_p=0.3, seed=5), SamplingRow(seed=6),
    ]  # fmt: skip
    together = check(logits, rows, device)
    alone = [int(check(logits[i : i + 1], [row], device)) for i, row in enumerate(rows)]
    assert together.tolist() == alone


def test_bias_penalties_and_mask(device: torch.device) -> None:
    logits = some_logits(4)
    best = int(logits[0].argmax())
    rows = [
        SamplingRow(temperature=0.0, masked=(best,)),
        SamplingRow(temperature=0.0, bias=((17, 100.0), (17, -3.0), (9, 2.0))),
        SamplingRow(
            repetition_penalty=1.7, frequency_penalty=0.4, presence_penalty=-0.3, seed=9,
            seen=tuple((token, token % 3) for token in range(0, VOCABULARY, 7)),
        ),
        SamplingRow(seed=3, top_k=5, masked=tuple(range(0, VOCABULARY, 2))),
    ]  # fmt: skip
    chosen = check(logits, rows, device)
    assert chosen[1] == 17


def test_not_a_number_and_infinity(device: torch.device) -> None:
    logits = some_logits(4)
    logits[0, 100:] = float("nan")
    logits[1, 3000] = float("inf")
    logits[2] = float("-inf")
    logits[3, :-1] = float("-inf")
    rows = [
        SamplingRow(seed=1),
        SamplingRow(temperature=0.0),
        SamplingRow(),
        SamplingRow(top_p=0.5),
    ]
    chosen = check(logits, rows, device)
    assert chosen[2] == NO_TOKEN
    assert chosen[3] == VOCABULARY - 1


def test_noise_near_its_ends(device: torch.device) -> None:
    """Over many draws the fp32 noise picks what the fp64 noise picks."""
    rows = [SamplingRow(seed=seed, position=seed % 7) for seed in range(40)]
    check(torch.zeros(40, VOCABULARY), rows, device)
