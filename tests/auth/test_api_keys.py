"""Keys: how they are written, found and never shown."""

from __future__ import annotations

import pytest

from app.auth import (
    ApiKeys,
    KeyAuthenticator,
    OpenAuthenticator,
    Principal,
    credential_of,
    offered_subprotocols,
    parse_api_keys,
)
from engine.contract import AuthenticationFailed, Tier

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


@pytest.mark.parametrize(
    ("authorization", "subprotocols", "credential"),
    [
        (f"Bearer {KEY}", [], KEY),
        (f"bearer  {KEY} ", [], KEY),
        (f"Basic {KEY}", [], None),
        ("Bearer", [], None),
        ("", ["realtime", f"openai-insecure-api-key.{KEY}"], None),
        (None, ["realtime", f"openai-insecure-api-key.{KEY}"], KEY),
        (None, ["realtime", "openai-insecure-api-key."], None),
        (None, ["realtime"], None),
        (None, [], None),
    ],
)
def test_where_credentials_are(
    authorization: str | None, subprotocols: list[str], credential: str | None
) -> None:
    assert credential_of(authorization, subprotocols) == credential


def test_subprotocols_are_split() -> None:
    assert offered_subprotocols("realtime, a.b ,,c") == ["realtime", "a.b", "c"]
    assert offered_subprotocols(None) == []


def test_holders_get_in_and_nobody_else() -> None:
    authenticator = KeyAuthenticator(parse_api_keys(f"{KEY}:acme:vip"))
    assert authenticator.authenticate(KEY) == Principal("acme", Tier.VIP)
    texts = set()
    for wrong in (None, "", KEY[:-1], KEY + "x"):
        with pytest.raises(AuthenticationFailed) as caught:
            authenticator.authenticate(wrong)
        texts.add(caught.value.message)
    assert len(texts) == 1


def test_without_keys_anyone_gets_in() -> None:
    assert OpenAuthenticator().authenticate(None) == OpenAuthenticator().authenticate("x")
    assert ApiKeys(()).find(KEY) is None
