"""API keys: how they are written, found and never shown."""

from __future__ import annotations

import pytest

from app.auth import ApiKeys, Principal, parse_api_keys
from engine.contract import Tier

KEY = "sk-0123456789abcdef"


def test_keys_name_tenant_and_tier() -> None:
    keys = parse_api_keys(
        f"# ours\n{KEY}\n  {KEY}2:acme , {KEY}3:acme:vip\n\n{KEY}4::batch\n  # {KEY}5\n"
    )
    assert len(keys) == 4
    assert keys.find(KEY) == Principal("default", Tier.STANDARD)
    assert keys.find(KEY + "2") == Principal("acme", Tier.STANDARD)
    assert keys.find(KEY + "3") == Principal("acme", Tier.VIP)
    assert keys.find(KEY + "4") == Principal("default", Tier.BATCH)
    assert keys.find(KEY + "5") is None
    assert keys.find("") is None
    assert keys.find("ü" * 20) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("short", "16 to 512"),
        ("x" * 513, "16 to 512"),
        (f"{KEY} x", "letters"),
        (f"{KEY}ü", "letters"),
        (f"{KEY}:a b", "tenant"),
        (f"{KEY}:acme:gold", "tier must be one of vip, standard, batch"),
        (f"{KEY}:acme:vip:x", "tier"),
        (f"{KEY},{KEY}:acme", "given before"),
    ],
)
def test_wrong_entries_are_told_without_the_key(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        parse_api_keys(text)
    assert "API key" in str(caught.value)
    assert KEY not in str(caught.value)


def test_keys_are_not_kept() -> None:
    keys = parse_api_keys(KEY)
    assert KEY not in repr(vars(keys))


def test_a_file_without_keys_is_wrong() -> None:
    with pytest.raises(ValueError, match="no key"):
        parse_api_keys("# none yet\n")
    assert ApiKeys(()).find(KEY) is None
