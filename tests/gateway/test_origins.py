"""Which pages may call."""

from __future__ import annotations

import pytest

from app.gateway.origins import OriginPolicy, host_name, is_loopback


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        (None, "chat.example", True),
        ("https://chat.example", "chat.example", True),
        ("http://chat.example:8080", "chat.example:8080", True),
        ("https://CHAT.example", "chat.EXAMPLE", True),
        ("https://app.example", "chat.example", True),
        ("https://app.example:444", "chat.example", False),
        ("http://app.example", "chat.example", False),
        ("https://evil.example", "chat.example", False),
        ("https://chat.example.evil.example", "chat.example", False),
        ("https://app.example.evil", "chat.example", False),
        ("http://localhost:3000", "chat.example", True),
        ("http://127.0.0.1", "chat.example", True),
        ("http://[::1]:5", "chat.example", True),
        ("http://localhost.evil.example", "chat.example", False),
        ("null", "chat.example", False),
        ("", "", False),
        ("file://", "chat.example", False),
        ("http://[::::]", "chat.example", False),
        ("http://[127.0.0.1]", "chat.example", False),
        ("https://chat.example/path", "chat.example/path", False),
    ],
)
def test_org_01_origins(origin: str | None, host: str, allowed: bool) -> None:
    assert OriginPolicy(["https://app.example/"]).allows(origin, host) is allowed


@pytest.mark.parametrize("entry", ["*", "app.example", "https://a.example/x", "", "ftp://a"])
def test_entries_must_be_origins(entry: str) -> None:
    with pytest.raises(ValueError, match="allowed origins"):
        OriginPolicy([entry])


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:8080", True),
        ("127.0.0.1", True),
        ("[::1]:8080", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
        ("[", False),
    ],
)
def test_a_gateway_without_keys_is_addressed_as_loopback(host: str, allowed: bool) -> None:
    assert OriginPolicy(needs_loopback_host=True).allows_host(host) is allowed
    assert OriginPolicy().allows_host(host)


def test_loopback_names() -> None:
    assert is_loopback("127.1.2.3")
    assert is_loopback("::1")
    assert not is_loopback("128.0.0.1")
    assert host_name("a.example:80") == "a.example"
