"""Measured step costs and the token budget that follows from them."""

from __future__ import annotations

import pytest

from engine.step_costs import StepCosts


def fed(points: dict[int, float], times: int = 20) -> StepCosts:
    costs = StepCosts()
    for _ in range(times):
        for tokens, ms in points.items():
            costs.record(tokens, ms)
    return costs


def test_nothing_known_is_tried_out() -> None:
    assert StepCosts().predict_ms(8) is None
    assert StepCosts().tokens_within(80) == 128
    assert fed({1: 20, 8: 25}).tokens_within(80) == 128


def test_budget_lies_between_what_was_measured() -> None:
    costs = fed({1: 10, 32: 50, 128: 146})
    assert costs.tokens_within(98) == pytest.approx(80, abs=1)
    assert costs.predict_ms(80) == pytest.approx(98)
    assert costs.tokens_within(5) == 0


def test_budget_grows_in_bounded_leaps() -> None:
    assert fed({1: 10, 100: 11}).tokens_within(1000) == 400


def test_a_slow_first_try_is_cut_down() -> None:
    assert fed({128: 600}, times=1).tokens_within(200) == pytest.approx(42, abs=1)


def test_budget_settles_on_the_target() -> None:
    costs = StepCosts()
    for _ in range(30):
        tokens = max(costs.tokens_within(80), 16)
        elapsed = 12 + 0.31 * tokens
        costs.record(tokens, elapsed)
    assert elapsed == pytest.approx(80, rel=0.05)


def test_one_hiccup_is_forgotten() -> None:
    costs = fed({1: 10, 32: 20})
    costs.record(128, 5000)
    assert costs.tokens_within(80) < 40
    for _ in range(300):
        costs.record(1, 10)
        costs.record(32, 20)
    assert costs.tokens_within(80) == 128


def test_more_tokens_never_cost_less() -> None:
    costs = fed({8: 40, 32: 30, 64: 60})
    predicted = [costs.predict_ms(tokens) for tokens in range(1, 200)]
    assert predicted == sorted(predicted)
