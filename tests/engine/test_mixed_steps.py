"""How long a step with prompts beside decodes may take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.mixed_steps import mixed_step_ms

CONFIG = EngineConfig(num_blocks=8, mixed_step_ms=50.0, prefill_step_ms=200.0)


def sequences(count: int, rank: int = 1) -> list[Any]:
    return [SimpleNamespace(rank=rank) for _ in range(count)]


@pytest.mark.parametrize(
    ("num_decodes", "num_prompts", "expected_ms"),
    [(4, 1, 50.0), (8, 8, 50.0), (8, 12, 75.0), (16, 48, 150.0), (4, 124, 200.0)],
)
def test_more_prompts_than_chats_stretch_a_step(
    num_decodes: int, num_prompts: int, expected_ms: float
) -> None:
    assert mixed_step_ms(sequences(num_decodes), sequences(num_prompts), CONFIG) == expected_ms


def test_a_vip_s_tokens_do_not_wait_for_a_crowd_below() -> None:
    decodes = [*sequences(3), *sequences(1, rank=0)]
    assert mixed_step_ms(decodes, sequences(100), CONFIG) == 50.0
    assert mixed_step_ms(decodes, sequences(12, rank=0), CONFIG) == 150.0


def test_without_a_least_time_nothing_is_stretched() -> None:
    config = EngineConfig(num_blocks=8)
    assert mixed_step_ms(sequences(1), sequences(100), config) == 0.0


def test_no_step_becomes_longer_than_one_of_prompts_but_by_choice() -> None:
    config = EngineConfig(num_blocks=8, mixed_step_ms=300.0, prefill_step_ms=200.0)
    assert mixed_step_ms(sequences(1), sequences(9), config) == 300.0
