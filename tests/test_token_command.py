"""`repartee token`: keys into a file, a token onto standard output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.auth import TokenVerifier, parse_token_keys
from app.cli import main
from engine.contract import Tier


def run(file: Path, *options: str) -> int:
    return main(["token", "--token-keys-file", str(file), *options])


def verifier(file: Path, **names: str) -> TokenVerifier:
    keys = parse_token_keys(file.read_text())
    return TokenVerifier(lambda: keys, **{"audience": "repartee", "issuer": "repartee", **names})


def test_keys_then_a_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, public = tmp_path / "keys.json", tmp_path / "public.json"
    assert run(file, "--new-key", "hs256") == 0
    assert run(file, "--new-key", "eddsa") == 0
    assert run(file, "--public-keys", str(public)) == 0
    assert capsys.readouterr().out == ""
    assert file.stat().st_mode & 0o777 == 0o600
    assert [key["kty"] for key in json.loads(file.read_text())["keys"]] == ["oct", "OKP"]
    assert '"d"' not in public.read_text()
    assert run(file, "--tenant", "acme", "--tier", "vip", "--ttl", "60", "--subject", "ann") == 0
    out, err = capsys.readouterr()
    token = out.strip()
    assert out == f"{token}\n"
    assert token not in err
    principal = verifier(public).verify(token)
    assert (principal.tenant, principal.tier, principal.subject) == ("acme", Tier.VIP, "ann")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keys.json", "public.json"]


def test_a_key_can_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.json"
    run(file, "--new-key", "hs256")
    run(file, "--new-key", "eddsa")
    kid = json.loads(file.read_text())["keys"][0]["kid"]
    capsys.readouterr()
    assert run(file, "--key-id", kid, "--token-audience", "a", "--token-issuer", "") == 0
    token = capsys.readouterr().out.strip()
    assert verifier(file, audience="a", issuer="").verify(token).tenant == "default"


@pytest.mark.parametrize(
    ("content", "options", "reason"),
    [
        (None, (), "does not exist"),
        ("{}", (), "array"),
        ("\xff", (), "UTF-8"),
        ("new", ("--key-id", "other"), "no key 'other'"),
        ("new", ("--tenant", "a b"), "--tenant"),
        ("new", ("--tier", "gold"), "--tier takes one of"),
        ("new", ("--ttl", "0"), "--ttl takes"),
        ("new", ("--ttl", "٣"), "--ttl takes"),
        ("new", ("--new-key", "rsa"), "--new-key takes one of eddsa, hs256"),
        ("new", ("--public-keys", "p.json"), "public half"),
        ("new", ("--subject", "s" * 5000), "characters"),
        ("[]", ("--new-key", "eddsa"), "array"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
    options: tuple[str, ...],
    reason: str,
) -> None:
    file = tmp_path / "keys.json"
    if content == "new":
        run(file, "--new-key", "hs256")
    elif content is not None:
        file.write_text(content, encoding="latin-1")
    before = file.read_bytes() if file.exists() else None
    capsys.readouterr()
    assert run(file, *options) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert reason in err
    assert err.count("\n") == 1
    assert (file.read_bytes() if file.exists() else None) == before


def test_a_file_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token"]) == 2
    assert "--token-keys-file" in capsys.readouterr().err
