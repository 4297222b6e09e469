"""Limits files, the budgets that follow, and how they are shown."""

from __future__ import annotations

import pytest

from app.auth import Allowance, Principal
from app.limits import (
    NO_LIMITS,
    NO_STORAGE_LIMITS,
    LimitPolicy,
    RateLimit,
    Standing,
    foreseen_tokens,
    parse_limits,
)
from app.limits.policy import DEFAULTS
from app.limits.state import duration
from app.sessions.quota import StorageLimits
from engine.contract import Message, SamplingParams, Tier

FILE = """
[default]
requests_per_min = 60
connections = 5
[tiers.vip]
requests_per_min = 600
[tenants.acme]
connections = 50
tokens_per_min = 0
"""


def only(policy: LimitPolicy, tenant: str, tier: Tier) -> Allowance:
    (budget,) = policy.budgets(Principal(tenant, tier))
    return budget.allowance


def test_a_tenant_goes_before_its_tier_and_that_before_the_default() -> None:
    policy = parse_limits(FILE)
    base = DEFAULTS[Tier.STANDARD]
    assert only(policy, "x", Tier.STANDARD) == Allowance(
        60, base.tokens_per_min, base.concurrent_responses, 5
    )
    assert only(policy, "x", Tier.VIP).requests_per_min == 600
    acme = only(policy, "acme", Tier.VIP)
    assert (acme.requests_per_min, acme.connections, acme.tokens_per_min) == (600, 50, 0)


def test_a_budget_is_a_tenants_and_a_tiers_in_one_slot() -> None:
    names = {
        budget.name
        for tenant in ("a", "b")
        for tier in Tier
        for budget in LimitPolicy().budgets(Principal(tenant, tier))
    }
    assert len(names) == 6
    principal = Principal("a", Tier.VIP, subject="ann", allowance=Allowance(5))
    shared, own = LimitPolicy().budgets(principal)
    assert shared.name.split("}")[0] == own.name.split("}")[0] == "rp:limit:{a"
    assert own.allowance == Allowance(5)
    assert "ann" not in own.name


def test_without_limits_there_is_no_budget() -> None:
    principal = Principal("a", Tier.VIP, allowance=Allowance(0, 0, 0, 0))
    assert LimitPolicy(NO_LIMITS).budgets(principal) == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x", "not TOML"),
        ("x = 1", "'x' is no table"),
        ("[other]", "'other' is no table"),
        ("default = 1", "default: limits must be a table"),
        ("tiers = 1", "tiers must be a table"),
        ("[tiers.gold]", "tiers.gold: its tier"),
        ("[tenants.'a b']", "its tenant"),
        ("[tiers]\nvip = 1", "tiers.vip: limits must be a table"),
        ("[default]\nrequests = 1", "default: 'requests' is no limit"),
        ("[default]\nrequests_per_min = -1", "from 0 to"),
        ("[default]\nrequests_per_min = 1.5", "whole number"),
        ("[default]\nrequests_per_min = true", "whole number"),
        ("[default]\nrequests_per_min = '5'", "whole number"),
        ("[default]\nrequests_per_min = 99999999999999", "from 0 to"),
        ("a = " + "[" * 3000, "not TOML"),
    ],
)
def test_wrong_files_are_named(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_limits(text)


def test_of_two_limits_the_tighter_is_shown() -> None:
    loose = RateLimit("requests", 100, 50, 30_000)
    tight = RateLimit("requests", 10, 2, 48_000)
    standing = Standing.of([loose, tight, RateLimit("tokens", 5, 5, 0)])
    assert standing.headers() == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "48s",
        "x-ratelimit-limit-tokens": "5",
        "x-ratelimit-remaining-tokens": "5",
        "x-ratelimit-reset-tokens": "0ms",
    }
    assert standing.event_fields()["rate_limits"][0] == {
        "name": "requests",
        "limit": 10,
        "remaining": 2,
        "reset_seconds": 48.0,
    }


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0ms"), (999, "999ms"), (1500, "1.5s"), (60_000, "1m0s"), (125_250, "2m5.25s")],
)
def test_times_in_headers(milliseconds: int, text: str) -> None:
    assert duration(milliseconds) == text


def test_tokens_are_foreseen_from_bytes_and_bounds() -> None:
    turns = (Message("user", "x" * 400),)
    assert foreseen_tokens(turns, SamplingParams(max_tokens=50), 8192) == 4 + 100 + 50
    assert foreseen_tokens(turns, SamplingParams(), 8192) == 4 + 100 + 1024
    assert foreseen_tokens(turns, SamplingParams(max_tokens=2**31 - 1), 8192) == 8192
    assert foreseen_tokens((Message("user", "\ud800"),), SamplingParams(max_tokens=1), 9) == 5


STORAGE = """
[storage.default]
stored_bytes = 1000
[storage.subjects]
conversations = 3
[storage.tenants.acme]
conversations = 7
"""


def test_storage_is_bounded_by_tenant_and_by_subject_in_one_slot() -> None:
    policy = parse_limits(STORAGE).storage
    (tenant,) = policy.scopes("x")
    assert (tenant.key, tenant.limits) == ("rp:stored:{x}", StorageLimits(0, 1000))
    (acme,) = policy.scopes("acme")
    assert acme.limits == StorageLimits(7, 1000)
    subject, tenant = policy.scopes("x/abc")
    assert (subject.key, subject.whose) == ("rp:stored:{x}:abc", "subject")
    # What the file says nothing of is as without it.
    assert subject.limits == StorageLimits(3, LimitPolicy().storage.subjects.stored_bytes)
    assert tenant.key == "rp:stored:{x}"


def test_without_limits_storage_has_no_record() -> None:
    assert NO_STORAGE_LIMITS.scopes("x/abc") == []
    assert parse_limits("", NO_LIMITS, NO_STORAGE_LIMITS).storage.scopes("x") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("storage = 1", "storage must be a table"),
        ("[storage.tiers]", "storage.tiers is no table"),
        ("[storage]\ndefault = 1", "storage.default must be a table"),
        ("[storage.default]\nconnections = 1", "storage.default: 'connections' is no limit"),
        ("[storage.default]\nstored_bytes = -1", "stored_bytes must be from 0 to"),
        ("[storage.subjects]\nstored_bytes = true", "stored_bytes must be a whole number"),
        ("[storage.subjects]\nconversations = 1.5", "conversations must be a whole number"),
        ("[storage.tenants.'a b']\nconversations = 1", r"storage.tenants.a b: its tenant"),
        ("[storage.tenants]\nacme = 1", "storage.tenants.acme must be a table"),
    ],
)
def test_wrong_storage_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_limits(text)
