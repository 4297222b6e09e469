"""Settings are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import EngineConfig


def test_defaults_are_valid() -> None:
    assert EngineConfig(num_blocks=100).num_kv_tokens == 1600


@pytest.mark.parametrize(
    "setting",
    [
        {"num_blocks": 0},
        {"block_size": 0},
        {"max_running": 0},
        {"standard_max_waiting": 0},
        {"max_step_tokens": 8},
        {"target_step_ms": 0.0},
        {"prefill_step_ms": -1.0},
        {"ageing_ms": 0.0},
        {"max_suspensions": -1},
        {"flush_ms": -1.0},
        {"speculation": "always"},
        {"max_draft_tokens": 0},
        {"max_draft_tokens": 65},
    ],
)
def test_bad_values_name_the_setting(setting: dict[str, Any]) -> None:
    ((name, value),) = setting.items()
    with pytest.raises(ValueError, match=f"{name} must be .* got {value!r}"):
        EngineConfig(**{"num_blocks": 100, **setting})
