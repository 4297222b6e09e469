"""An operator's limits reach the engine."""

from __future__ import annotations

import pytest

from app.options import OPTIONS
from engine.config import EngineConfig
from engine.contract import Overloaded, Tier
from engine.queue_limits import DEFAULT_WAITING, DEFAULT_WAITS_S, QueueLimits
from tests.engine.test_admission import busy, fill


def test_the_defaults_are_the_engines_and_the_options() -> None:
    config = EngineConfig(num_blocks=8)
    assert QueueLimits.parse().apply(config) == config
    options = {option.name: option.default for option in OPTIONS}
    assert options["max-wait"] == DEFAULT_WAITS_S
    assert options["max-waiting"] == DEFAULT_WAITING
    assert options["ageing"] == config.ageing_ms / 1000
    assert options["batch-wait"] == config.batch_wait_ms / 1000


def test_each_limit_is_its_tiers() -> None:
    limits = QueueLimits.parse("vip=1,standard=2,batch=3", "vip=4,standard=5,batch=6", 7.5, 0.05)
    config = limits.apply(EngineConfig(num_blocks=8))
    assert (config.vip_max_wait_ms, config.standard_max_wait_ms) == (1000, 2000)
    assert (config.batch_max_wait_ms, config.ageing_ms) == (3000, 7500)
    assert config.batch_wait_ms == 50
    assert (config.vip_max_waiting, config.standard_max_waiting) == (4, 5)
    assert config.batch_max_waiting == 6


@pytest.mark.parametrize("tier", [Tier.STANDARD, Tier.BATCH])
def test_a_full_queue_of_one_tier_is_full_for_that_tier_alone(tier: Tier) -> None:
    bench = busy(**{f"{tier.value}_max_waiting": 2})
    taken, refusal = fill(bench, tier)
    assert taken == 2
    assert f"2 {tier.value} requests wait" in refusal.message
    assert refusal.retryable
    assert refusal.retry_after_ms
    other = Tier.BATCH if tier is Tier.STANDARD else Tier.STANDARD
    for i in range(3):
        bench.add(f"other{i}", "x", tier=other)
    with pytest.raises(Overloaded):
        bench.add("one more", "x", tier=tier)
