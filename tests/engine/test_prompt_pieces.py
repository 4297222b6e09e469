"""Pieces of prompts: their sizes, their layers, and whose go first."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.contract import Tier
from engine.prompt_pieces import MIN_PIECE_TOKENS, piece_and_layers, prompt_pieces
from engine.sequence import Sequence
from engine.step import Work
from load_tests.measure import percentile
from tests.fakes.runner import Bench, text_of

LAYERS = 30


def prompts(*lengths: int, tiers: dict[int, Tier] | None = None) -> list[Sequence]:
    """Sequences of so many tokens, none computed, in order of arrival."""
    bench = Bench(window=16_384, num_blocks=8192, block_size=16)
    seqs = []
    for i, length in enumerate(lengths):
        tier = (tiers or {}).get(i, Tier.STANDARD)
        bench.add(f"r{i}", "x" * (length - 1), tier=tier)
        seq = bench.engine.sequences[f"r{i}"]
        seq.rank = seq.tier_rank
        seqs.append(seq)
    return seqs


def pieces(seqs: list[Sequence], budget: float) -> list[Work]:
    """A step's, taken as run."""
    work = prompt_pieces(seqs, budget, 16, LAYERS)
    for item in work:
        if item.finishes:
            item.sequence.num_computed += item.num_tokens
            item.sequence.partial = None
        else:
            assert item.layers is not None and item.sequence.partial is not None
            item.sequence.partial.num_layers = item.layers.stop
    return work


@given(
    budget=st.floats(0.01, 5000),
    num_left=st.integers(1, 10_000),
    num_layers=st.integers(2, 126),
)
def test_a_piece_and_its_layers_fit_and_leave_little_room(
    budget: float, num_left: int, num_layers: int
) -> None:
    size, layers = piece_and_layers(budget, num_left, num_layers)
    assert 1 <= layers <= num_layers
    assert min(MIN_PIECE_TOKENS, num_left) <= size <= num_left
    if layers > 1 or size > MIN_PIECE_TOKENS:
        assert size * layers / num_layers <= budget + 1e-3
    if 2 <= budget < 48 and num_left >= 64 and num_layers >= 24:
        num_steps = math.ceil(num_layers / layers)
        assert size / (num_steps * budget) > 0.75


def test_layers_follow_each_other_until_the_piece_is_done() -> None:
    (seq,) = prompts(100)
    seen: list[int] = []
    while seq.num_computed == 0:
        (item,) = pieces([seq], 4.0)
        assert item.layers is not None
        assert item.start == 0 and item.num_tokens >= MIN_PIECE_TOKENS
        assert item.num_tokens * item.share <= 4.0 * 1.1
        assert not item.samples
        seen += item.layers
    assert seen == list(range(LAYERS))
    assert seq.partial is None


def test_the_last_layers_of_the_last_piece_sample() -> None:
    (seq,) = prompts(16)
    work = [pieces([seq], 3.0)[0]]
    while not work[-1].finishes:
        work += pieces([seq], 3.0)
    assert [item.samples for item in work] == [False] * (len(work) - 1) + [True]
    assert work[-1].num_tokens == 16


def test_no_budget_at_all_still_computes_a_layer() -> None:
    (seq,) = prompts(500)
    for _ in range(LAYERS):
        (item,) = pieces([seq], 0.0)
        assert item.layers is not None and len(item.layers) == 1
    assert seq.num_computed == MIN_PIECE_TOKENS


def test_a_budget_that_changes_changes_the_layers_of_a_step() -> None:
    (seq,) = prompts(500)
    first = pieces([seq], 4.0)[0]
    size = first.num_tokens
    less = pieces([seq], 2.0)[0]
    assert less.num_tokens == size and len(less.layers or ()) < len(first.layers or ())
    rest = pieces([seq], 100.0)[0]
    assert rest.finishes and rest.num_tokens == size
    # With so much room whole pieces are computed, to the end of a block.
    whole = pieces([seq], 100.0)[0]
    assert whole.layers is None and seq.num_computed % 16 == 0


def test_who_has_begun_goes_on_before_who_comes() -> None:
    long, short = prompts(5000, 30)
    begun = pieces([long], 4.0)[0]
    work = pieces([long, short], 4.0)
    assert [item.sequence for item in work] == [long]
    assert work[0].num_tokens == begun.num_tokens
    while long.partial is not None:
        pieces([long, short], 4.0)
    # The next piece is shared, the shortest first; the oldest keeps a quarter.
    work = pieces([long, short], 4.0)
    assert [item.sequence for item in work] == [short, long]
    assert work[1].num_tokens >= sum(item.num_tokens for item in work) // 4
    assert work[0].layers == work[1].layers


def test_a_higher_tier_does_not_wait_for_a_piece_that_has_begun() -> None:
    long, vip = prompts(5000, 40, tiers={1: Tier.VIP})
    pieces([long], 4.0)
    began = long.partial.num_layers if long.partial else 0
    while vip.num_uncomputed:
        (item,) = pieces([long, vip][: 2 if vip.num_uncomputed else 1], 4.0)
        assert item.sequence is vip
    (item,) = pieces([long], 4.0)
    assert item.layers is not None and item.layers.start == began > 0


def test_a_suspended_piece_begins_anew() -> None:
    bench = Bench(block_size=16, num_blocks=64, runner={"piece_layers": LAYERS})
    bench.add("chat", "hi", max_tokens=500)
    for _ in range(5):
        bench.engine.step()
    bench.add("long", "x" * 300, max_tokens=3)
    long = bench.engine.sequences["long"]
    while long.partial is None:
        bench.engine.step()
    bench.engine.scheduler._suspension.suspend(long, bench.clock.now)
    assert long.partial is None
    assert text_of(bench.run(), "long")


def costs(context_ms: float) -> dict[str, Any]:
    return {
        "base_ms": 12.0,
        "token_ms": 0.8,
        "context_ms": context_ms,
        "piece_layers": LAYERS,
    }


@pytest.mark.parametrize("context_ms", [0.0, 0.5])
def test_gaps_stay_below_twice_whatever_the_context(context_ms: float) -> None:
    """A token of the prompt's end costs 4.3 ms: whole blocks would take 69."""
    bench = Bench(
        num_blocks=2048,
        window=10_000,
        block_size=16,
        runner=costs(context_ms),
        check_invariants=False,
    )
    for i in range(4):
        bench.add(f"chat{i}", f"chat {i}", max_tokens=5000)
    for _ in range(40):
        bench.engine.step()
    bench.add("long", "x" * 7000, max_tokens=1)
    gaps = []
    while "long" in bench.engine.sequences:
        before = bench.clock.now
        bench.engine.step()
        gaps.append(bench.clock.now - before)
    # The chats' own contexts have grown meanwhile.
    before = bench.clock.now
    bench.engine.step()
    alone_s = bench.clock.now - before
    # The first of all pieces is tried while nothing is known.
    assert percentile(gaps, 0.99) < 2 * alone_s
    # The prompt has four tenths of the time, and wastes little of it.
    work_s = sum((0.8 + context_ms * at / 1000) / 1000 for at in range(7000))
    assert sum(gaps) < 2.5 * work_s
