"""Sampling: known answers, parameters at their edges, fast path against the reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.sampling import NO_TOKEN, SamplingBatch, SamplingRow, sample, sample_reference
from kernels.sampling.noise import NOISE_RANGE, gumbel_noise, philox

VOCAB = 97


def choose(logits: torch.Tensor, **row: object) -> int:
    """The one token chosen, by both implementations."""
    batch = SamplingBatch.from_rows([SamplingRow(**row)])
    chosen = sample(logits.unsqueeze(0), batch)
    assert torch.equal(chosen, sample_reference(logits.unsqueeze(0), batch))
    return int(chosen)


def drawn(count: int, logits: torch.Tensor, **row: object) -> set[int]:
    """What `count` seeds choose, by both implementations."""
    batch = SamplingBatch.from_rows([SamplingRow(seed=seed, **row) for seed in range(count)])
    repeated = logits.repeat(count, 1)
    chosen = sample(repeated, batch)
    assert torch.equal(chosen, sample_reference(repeated, batch))
    return set(chosen.tolist())


def some_logits(seed: int = 0, size: int = VOCAB) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 4


@pytest.mark.parametrize(
    ("counter", "seed", "expected"),
    [
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            0xFFFFFFFFFFFFFFFF,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(
    counter: tuple[int, ...], seed: int, expected: tuple[int, ...]
) -> None:
    words = philox(tuple(np.array([word], np.uint64) for word in counter), seed)
    assert tuple(int(word[0]) for word in words) == expected


def philox_by_hand(counter: list[int], key: list[int]) -> list[int]:
    """The paper's round function in Python's own integers."""
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * counter[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * counter[2], 2**32)
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
def test_noise_is_the_formula(token: int, position: int, seed: int) -> None:
    word = philox_by_hand([token, position, 0, 0], [seed % 2**32, seed >> 32])[0]
    expected = -math.log(-math.log(((word >> 8) + 0.5) * 2.0**-24))
    assert float(gumbel_noise(np.array([token]), position, seed)[0]) == pytest.approx(
        expected, rel=1e-12
    )


def test_noise_range_covers_the_extremes() -> None:
    low = -math.log(-math.log(0.5 * 2.0**-24))
    high = -math.log(-math.log((2**24 - 0.5) * 2.0**-24))
    assert high - low < NOISE_RANGE


def test_draws_follow_the_softmax() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0])
    counts = torch.zeros(4)
    rows = [SamplingRow(seed=5, position=position) for position in range(2000)]
    for token in sample(logits.repeat(2000, 1), SamplingBatch.from_rows(rows)).tolist():
        counts[token] += 1
    assert torch.allclose(counts / 2000, logits.softmax(0), atol=0.03)


def test_temperature_flattens() -> None:
    logits = torch.tensor([3.0, 0.0])
    rows = [SamplingRow(temperature=2.0, seed=5, position=i) for i in range(2000)]
    share = sample(logits.repeat(2000, 1), SamplingBatch.from_rows(rows)).float().mean()
    assert float(share) == pytest.approx(float((logits / 2).softmax(0)[1]), abs=0.03)


@pytest.mark.parametrize("temperature", [0.0, 1e-320, 1e-30, 1e-6, 1e-4])
def test_smp_01_tiny_temperature_is_greedy(temperature: float) -> None:
    for seed in range(50):
        logits = some_logits(seed)
        assert choose(logits, temperature=temperature, seed=seed) == int(logits.argmax())


def test_smp_01_tiny_top_p_is_greedy() -> None:
    for seed in range(50):
        logits = some_logits(seed)
        assert choose(logits, top_p=0.0001, seed=seed) == int(logits.argmax())


@pytest.mark.parametrize("top_k", [0, -1, VOCAB, VOCAB + 1, 9_999_999])
def test_smp_05_top_k_off(top_k: int) -> None:
    for seed in range(50):
        logits = some_logits(seed)
        assert choose(logits, top_k=top_k, seed=seed) == choose(logits, seed=seed)


def test_smp_05_top_k_one_and_top_p_zero_are_greedy() -> None:
    for seed in range(50):
        logits = some_logits(seed)
        assert choose(logits, top_k=1, seed=seed) == int(logits.argmax())
        assert choose(logits, top_p=0.0, seed=seed) == int(logits.argmax())


def test_top_k_keeps_exactly_k() -> None:
    # Ties at the border go to the lower ids.
    logits = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    assert drawn(100, logits, top_k=2) == {1, 3}


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    assert drawn(300, logits, top_p=0.6) == {3, 2}
    assert drawn(300, logits, top_p=0.75) == {3, 2, 1}
    # Of the three that top_k leaves, the first has 4/9 and the first two 7/9.
    assert drawn(300, logits, top_k=3, top_p=0.7) == {3, 2}


def test_min_p_is_relative_to_the_likeliest() -> None:
    logits = torch.tensor([0.1, 0.19, 0.31, 0.4]).log()
    assert drawn(300, logits, min_p=0.5) == {2, 3}
    assert drawn(300, logits, min_p=1.0) == {3}


def test_bias_moves_a_token_up_and_down() -> None:
    logits = some_logits()
    best = int(logits.argmax())
    assert choose(logits, temperature=0.0, bias=((3, 100.0),)) == 3
    assert choose(logits, temperature=0.0, bias=((best, -100.0),)) != best


def test_penalties() -> None:
    logits = torch.tensor([2.0, 1.5, -1.0])
    greedy = {"temperature": 0.0}
    assert choose(logits, **greedy, repetition_penalty=2.0, seen=((0, 0),)) == 1
    assert choose(logits, **greedy, frequency_penalty=0.2, seen=((0, 2),)) == 0
    assert choose(logits, **greedy, frequency_penalty=0.2, seen=((0, 3),)) == 1
    assert choose(logits, **greedy, presence_penalty=0.6, seen=((0, 9),)) == 1
    # Frequency and presence look at the answer alone, repetition at the prompt too.
    assert choose(logits, **greedy, presence_penalty=0.6, seen=((0, 0),)) == 0
    # A repetition penalty pushes a negative logit further down.
    low = torch.tensor([-1.0, -1.5])
    assert choose(low, **greedy, repetition_penalty=2.0, seen=((0, 1),)) == 1


def test_masked_tokens_are_never_chosen() -> None:
    logits = torch.zeros(4)
    masked = {"masked": (0, 2), "bias": ((0, 100.0),)}
    assert drawn(50, logits, **masked) == {1, 3}
    assert choose(logits, temperature=0.0, **masked) == 1


def test_nothing_left_to_choose() -> None:
    assert choose(torch.zeros(3), masked=(0, 1, 2)) == NO_TOKEN
    assert choose(torch.full((3,), -math.inf), temperature=0.0) == NO_TOKEN
    assert choose(torch.full((3,), math.nan)) == NO_TOKEN


def test_values_that_are_no_numbers_are_never_chosen() -> None:
    logits = torch.tensor([math.nan, 1.0, -math.inf, 1.5])
    assert choose(logits, temperature=0.0) == 3
    assert drawn(50, logits) == {1, 3}
    assert choose(torch.tensor([0.0, math.inf, 0.0])) == 1


def test_ties_go_to_the_lower_id() -> None:
    assert choose(torch.tensor([0.0, 2.0, 2.0]), temperature=0.0) == 1
    assert choose(torch.tensor([0.0, 2.0, 2.0]), top_p=0.0001) == 1


def test_rows_do_not_see_each_other() -> None:
    rows = [SamplingRow(temperature=t, seed=s, position=p) for t, s, p in _MIXED]
    logits = torch.stack([some_logits(i) for i in range(len(rows))])
    together = sample(logits, SamplingBatch.from_rows(rows))
    for i, row in enumerate(rows):
        alone = sample(logits[i : i + 1], SamplingBatch.from_rows([row]))
        assert int(alone) == int(together[i])


_MIXED = [(0.0, 1, 5), (1.0, 1, 5), (0.7, 2, 5), (0.0, 3, 9), (2.0, 2**63 - 1, 2**31)]

_rows = st.builds(
    SamplingRow,
    temperature=st.one_of(st.just(0.0), st.floats(0.0, 2.0)),
    top_k=st.integers(-1, VOCAB + 3),
    top_p=st.one_of(st.just(1.0), st.floats(0.0, 1.0)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
    repetition_penalty=st.floats(0.1, 10.0),
    frequency_penalty=st.floats(-2.0, 2.0),
    presence_penalty=st.floats(-2.0, 2.0),
    seed=st.integers(0, 2**63 - 1),
    position=st.integers(0, 2**31 - 1),
    bias=st.lists(st.tuples(st.integers(0, VOCAB - 1), st.floats(-100.0, 100.0)), max_size=4),
    seen=st.dictionaries(st.integers(0, VOCAB - 1), st.integers(0, 9), max_size=9).map(
        lambda counts: tuple(counts.items())
    ),
    masked=st.lists(st.integers(0, VOCAB - 1), max_size=5),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_rows, min_size=1, max_size=4), st.integers(0, 10_000), st.booleans())
def test_fast_path_equals_reference(rows: list[SamplingRow], seed: int, coarse: bool) -> None:
    logits = some_logits(seed, VOCAB * len(rows)).view(len(rows), VOCAB)
    if coarse:
        # Many exact ties.
        logits = logits.round()
    kept = logits.clone()
    batch = SamplingBatch.from_rows(rows)
    chosen = sample(logits, batch)
    assert torch.equal(chosen, sample_reference(logits, batch))
    assert ((chosen >= 0) & (chosen < VOCAB)).all()
    assert torch.equal(logits, kept)


def test_wrong_shapes_are_refused() -> None:
    batch = SamplingBatch.from_rows([SamplingRow()])
    with pytest.raises(ValueError, match=r"float32 \[1, any\], got float32 \[2, 5\]"):
        sample(torch.zeros(2, 5), batch)
    with pytest.raises(ValueError, match=r"got float64"):
        sample(torch.zeros(1, 5, dtype=torch.float64), batch)
