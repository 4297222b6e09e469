"""Pieces of prompts beside decodes: bounded gaps, progress, and noise that changes nothing."""

from __future__ import annotations

import random

import pytest

from engine.prompt_pieces import MIN_PIECE_TOKENS
from engine.step_budget import STRETCH, StepBudget
from engine.step_shares import StepShares, num_step_tokens
from load_tests.measure import percentile
from tests.fakes.runner import Bench

CHATS = 4


def decode_ms(num_decodes: int) -> float:
    return 12.0 + 1.2 * num_decodes


def prompt_ms(num_tokens: int) -> float:
    return 0.35 * num_tokens


def gaps_and_steps(slowness: list[float], prompt_tokens: int = 2500) -> tuple[list[float], int]:
    """A prompt beside chats on a machine that is slower by a factor a step, in turn."""
    budget = StepBudget()
    for _ in range(20):
        budget.record(CHATS, 0, decode_ms(CHATS))
    gaps: list[float] = []
    left = prompt_tokens
    num_steps = 0
    while left > 0:
        factor = slowness[num_steps % len(slowness)]
        piece = 0 if budget.wants_plain_step() else min(int(budget.tokens_beside(CHATS)), left)
        elapsed_ms = factor * (decode_ms(CHATS) + prompt_ms(piece))
        budget.record(CHATS, piece, elapsed_ms)
        gaps.append(elapsed_ms / factor / decode_ms(CHATS))
        left -= piece
        num_steps += 1
    return gaps, num_steps


def test_gaps_stay_below_twice_the_unloaded_and_the_prompt_gets_on() -> None:
    gaps, num_steps = gaps_and_steps([1.0])
    assert percentile(gaps[5:], 0.99) < 2.0
    assert max(gaps[5:]) == pytest.approx(STRETCH, abs=0.1)
    # 44 tokens fit, and one step in 17 goes without.
    assert num_steps < 2500 / 44 * 1.15


@pytest.mark.parametrize("seed", range(5))
def test_noise_does_not_shrink_the_pieces(seed: int) -> None:
    rng = random.Random(seed)
    _, quiet = gaps_and_steps([1.0])
    noise = [rng.choice((0.9, 1.0, 1.1, 1.0, 4.0)) for _ in range(997)]
    gaps, noisy = gaps_and_steps(noise)
    assert noisy < 2.5 * quiet
    assert percentile(gaps[5:], 0.9) < 2.5


@pytest.mark.parametrize("factor", [3.0, 10.0, 0.3])
def test_a_slower_machine_leaves_the_pieces_as_they_are(factor: float) -> None:
    _, quiet = gaps_and_steps([1.0])
    _, slow = gaps_and_steps([1.0] * 10 + [factor] * 10_000)
    assert slow < 1.6 * quiet


def test_no_measurement_shrinks_a_piece_below_the_least() -> None:
    budget = StepBudget()
    budget.record(1, 0, 0.001)
    for _ in range(20):
        budget.record(1, 64, 10_000.0)
        budget.record(0, 64, 10_000.0)
    assert budget.tokens_alone(1.0) >= MIN_PIECE_TOKENS
    bench = Bench(window=8192, num_blocks=4096)
    bench.add("chat")
    bench.add("long", "x" * 1000)
    chat, long = bench.engine.sequences.values()
    shares = StepShares([chat], [long], 0)
    assert num_step_tokens(shares, budget, bench.config) == 1 + MIN_PIECE_TOKENS
    assert num_step_tokens(shares, budget, bench.config, 0.5) == 1.5


def test_pieces_grow_step_by_step_where_tokens_cost_nothing() -> None:
    budget = StepBudget()
    budget.record(1, 0, 5.0)
    sizes = []
    for _ in range(6):
        sizes.append(budget.tokens_beside(1))
        budget.record(1, sizes[-1], 5.0)
    assert sizes == sorted(sizes)
    assert sizes[1] <= 4 * sizes[0]
    assert sizes[-1] > 1000


def test_short_decodes_leave_pieces_the_time_a_step_may_always_take() -> None:
    budget = StepBudget()
    for _ in range(8):
        budget.record(8, 0, 2.0)
        budget.record(8, 1024, 2.0 + 1024 * 0.01)
    assert budget.tokens_beside(8) < 200
    assert 1700 < budget.tokens_beside(8, least_ms=20.0) < 1900


def test_a_long_prompt_beside_running_chats() -> None:
    bench = Bench(
        num_blocks=4096,
        window=16_384,
        block_size=16,
        runner={"base_ms": 16.0, "token_ms": 0.35},
        check_invariants=False,
    )
    for i in range(4):
        bench.add(f"chat{i}", f"chat {i}", max_tokens=3000)
    for _ in range(40):
        bench.engine.step()
    unloaded = bench.runner.plans
    before = bench.clock.now
    bench.engine.step()
    alone_s = bench.clock.now - before
    assert unloaded
    bench.add("long", "x" * 7000, max_tokens=1)
    gaps = []
    last = bench.clock.now
    while "long" in bench.engine.sequences:
        bench.engine.step()
        work = bench.runner.plans[-1].work
        assert sum(item.samples and item.num_tokens == 1 for item in work) >= 4
        gaps.append(bench.clock.now - last)
        last = bench.clock.now
    assert percentile(gaps, 0.99) < 2 * alone_s
    # More than a third of the machine is the long prompt's.
    assert sum(gaps) < 3 * 7000 * 0.35 / 1000
