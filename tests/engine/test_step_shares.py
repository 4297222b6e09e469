"""Whose tokens a step computes while a VIP's prompt waits."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.contract import Tier
from engine.sequence import Sequence
from engine.step_budget import STRETCH, StepBudget
from engine.step_shares import num_step_tokens, share_step
from tests.fakes.runner import Bench

CONFIG = EngineConfig(num_blocks=64)


def measured(token_ms: float = 0.35) -> StepBudget:
    """Decodes of 12 ms and 1.2 ms each; a prompt's token takes `token_ms`."""
    budget = StepBudget()
    for count in (1, 2, 10, 40) * 5:
        budget.record(count, 0, 12 + 1.2 * count)
    for _ in range(5):
        budget.record(10, 200, 24 + 200 * token_ms)
    return budget


def running(num_decodes: int, vip_prompt: int, vip_decodes: int = 0) -> list[Sequence]:
    """Sequences as they stand in a batch."""
    bench = Bench(window=8192, num_blocks=4096)
    seqs = []
    for i in range(num_decodes + vip_decodes):
        tier = Tier.VIP if i < vip_decodes else Tier.STANDARD
        bench.add(f"r{i}", "hello", tier=tier)
        seq = bench.engine.sequences[f"r{i}"]
        seq.num_computed = len(seq.tokens) - 1
        seqs.append(seq)
    if vip_prompt:
        bench.add("vip", "x" * (vip_prompt - 1), tier=Tier.VIP)
        seqs.append(bench.engine.sequences["vip"])
    return seqs


def test_nobody_pauses_for_a_prompt_that_fits_beside_all() -> None:
    seqs = running(40, 150)
    shares = share_step(seqs, measured(), CONFIG, now=0.1)
    assert shares.num_paused == 0
    assert len(shares.decodes) == 40
    assert num_step_tokens(shares, measured(), CONFIG) >= 40 + 150


def test_a_long_prompt_of_a_vip_has_the_step_to_itself() -> None:
    seqs = running(38, 600, vip_decodes=2)
    shares = share_step(seqs, measured(), CONFIG, now=0.1)
    assert shares.num_paused == 38
    assert [seq.request.tier for seq in shares.decodes] == [Tier.VIP] * 2
    assert [seq.request_id for seq in shares.prefills] == ["vip"]


def test_a_step_with_paused_decodes_may_last_as_long_as_with_them() -> None:
    budget = measured()
    paused = num_step_tokens(share_step(running(38, 600, 2), budget, CONFIG, 0.1), budget, CONFIG)
    alone = num_step_tokens(share_step(running(0, 600, 2), budget, CONFIG, 0.1), budget, CONFIG)
    # What the decodes of 40 sequences take, 1.9 times, less those of the two.
    assert (paused - 2) * 0.35 == pytest.approx(STRETCH * 60 - 14.4, rel=0.1)
    assert paused > 4 * alone


def test_who_has_paused_long_enough_takes_part() -> None:
    seqs = running(38, 600, vip_decodes=2)
    seqs[-2].served_at = -CONFIG.max_pause_ms / 1000
    shares = share_step(seqs, measured(), CONFIG, now=0.1)
    assert shares.num_paused == 37
