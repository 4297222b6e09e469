"""Settings of a gateway that stop it before it serves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.auth import Allowance, Principal
from app.gateway.config import GatewayConfig
from app.settings import GatewaySettings
from app.startup_error import StartupError
from engine.contract import Tier
from tests.auth.test_tokens import EDDSA, key_set

KEY = "sk-0123456789abcdef"
SETTINGS = GatewaySettings(
    host="127.0.0.1",
    port=0,
    redis_url="redis://127.0.0.1:6379/0",
    grace_s=3.0,
    api_keys_file=None,
    token_keys_file=None,
    token_audience="repartee",
    token_issuer="repartee",
    limits_file=None,
    max_connections=0,
    allowed_origins=(),
    log_level="info",
    log_format="text",
    otlp_endpoint="",
    ops_token_file=None,
)


def test_a_public_host_needs_keys(tmp_path: Path) -> None:
    with pytest.raises(StartupError) as caught:
        GatewayConfig.from_settings(replace(SETTINGS, host="0.0.0.0"))
    assert "--api-keys-file" in caught.value.line()
    file = tmp_path / "keys"
    file.write_text(f"{KEY}:acme:vip\n")
    config = GatewayConfig.from_settings(replace(SETTINGS, host="0.0.0.0", api_keys_file=file))
    assert config.needs_key
    assert config.origin_policy.allows_host("chat.example")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_loopback_hosts_need_none(host: str) -> None:
    config = GatewayConfig.from_settings(replace(SETTINGS, host=host))
    assert not config.needs_key
    assert config.grace_s == 3.0
    assert not config.origin_policy.allows_host("chat.example")


@pytest.mark.parametrize("text", ["", "# none\n", "short\n", f"{KEY}:a:gold", "\xff"])
def test_wrong_key_files_are_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(StartupError, match="--api-keys-file") as caught:
        GatewayConfig.from_settings(replace(SETTINGS, api_keys_file=file))
    assert KEY not in caught.value.line()


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="nowhere"):
        GatewayConfig.from_settings(replace(SETTINGS, api_keys_file=tmp_path / "nowhere"))


def test_tokens_keys_are_keys(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(key_set(EDDSA))
    config = GatewayConfig.from_settings(replace(SETTINGS, host="0.0.0.0", token_keys_file=file))
    assert config.needs_key
    assert config.takes_tokens
    assert [watched.path for watched in config.watched_files] == [file]
    file.write_text('{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}')
    with pytest.raises(StartupError, match="--token-keys-file") as caught:
        GatewayConfig.from_settings(replace(SETTINGS, token_keys_file=file))
    assert "c2VjcmV0" not in caught.value.line()


def test_built_in_limits_are_for_those_with_keys(tmp_path: Path) -> None:
    keys, limits = tmp_path / "keys", tmp_path / "limits.toml"
    keys.write_text(KEY)
    limits.write_text("[default]\nconnections = 7\n")
    caller = Principal("default", Tier.STANDARD)
    assert GatewayConfig.from_settings(SETTINGS).current_limits.budgets(caller) == ()
    opened = GatewayConfig.from_settings(replace(SETTINGS, limits_file=limits))
    (budget,) = opened.current_limits.budgets(caller)
    assert budget.allowance == Allowance(connections=7)
    keyed = GatewayConfig.from_settings(replace(SETTINGS, api_keys_file=keys, limits_file=limits))
    (budget,) = keyed.current_limits.budgets(caller)
    assert budget.allowance.connections == 7
    assert budget.allowance.requests_per_min
    keyed = GatewayConfig.from_settings(replace(SETTINGS, api_keys_file=keys))
    assert keyed.current_limits.budgets(caller)
    limits.write_text("[default]\nnothing = 7\n")
    with pytest.raises(StartupError, match=r"--limits-file .* 'nothing'"):
        GatewayConfig.from_settings(replace(SETTINGS, limits_file=limits))


def test_wrong_values_are_named() -> None:
    with pytest.raises(StartupError, match="allowed-origins"):
        GatewayConfig.from_settings(replace(SETTINGS, allowed_origins=("*",)))
    with pytest.raises(StartupError, match="max_body_bytes"):
        GatewayConfig(redis_url="redis://x", max_body_bytes=0)
