"""`repartee token`: make keys, and sign tokens with them."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from app.auth.principal import check_tenant, check_tier
from app.auth.token_keys import TokenKeys, new_key, parse_token_keys, public_half, read_key_set
from app.auth.tokens import MAX_TOKEN_CHARS, mint
from app.settings import TokenSettings
from app.startup_error import StartupError

FILE_MODE = 0o600


def run_token(settings: TokenSettings) -> tuple[str, list[str]]:
    """Do what was asked.

    Returns:
        What belongs on standard output, empty but for a token, and lines for a person.

    Raises:
        StartupError: naming the setting or the file.
    """
    notes: list[str] = []
    file = settings.token_keys_file
    if settings.new_key:
        notes.append(f"added key {_add_key(file, settings.new_key)} to {file}")
    if settings.public_keys is not None:
        number = _write_public(file, settings.public_keys)
        notes.append(f"wrote {number} public keys to {settings.public_keys}")
    if settings.new_key or settings.public_keys is not None:
        return "", notes
    return _sign(settings), notes


def _sign(settings: TokenSettings) -> str:
    file = settings.token_keys_file
    keys = _read(file)
    try:
        key = keys.signer(settings.key_id)
    except ValueError as error:
        hint = "Make one with --new-key eddsa."
        raise StartupError(f"--token-keys-file {file}: {error}.", hint) from None
    for flag, check, value in (
        ("--tenant", check_tenant, settings.tenant),
        ("--tier", check_tier, settings.tier),
    ):
        try:
            check(value)
        except ValueError as error:
            raise StartupError(f"{flag}: {error}.") from None
    token = mint(
        key,
        tenant=settings.tenant,
        tier=check_tier(settings.tier),
        ttl_s=settings.ttl_s,
        audience=settings.token_audience,
        issuer=settings.token_issuer,
        subject=settings.subject,
    )
    if len(token) > MAX_TOKEN_CHARS:
        raise StartupError(f"The token would have {len(token)} characters, over {MAX_TOKEN_CHARS}.")
    return token


def _add_key(file: Path, kind: str) -> str:
    """Put a new key behind the others; its name."""
    jwks = read_key_set(file.read_text()) if file.exists() and _read(file) else []
    jwk = new_key(kind)
    _write(file, [*jwks, jwk], FILE_MODE)
    return jwk["kid"]


def _write_public(file: Path, target: Path) -> int:
    """Write the public halves for gateways; how many there are."""
    _read(file)
    halves = [public_half(jwk) for jwk in read_key_set(file.read_text())]
    public = [half for half in halves if half is not None]
    if not public:
        raise StartupError(
            f"--token-keys-file {file} holds no key with a public half.",
            "Only eddsa keys have one.",
        )
    _write(target, public, 0o644)
    return len(public)


def _read(file: Path) -> TokenKeys:
    try:
        return parse_token_keys(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StartupError(
            f"--token-keys-file {file} does not exist.", "Make it with --new-key eddsa."
        ) from None
    except OSError as error:
        raise StartupError(f"--token-keys-file {file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise StartupError(f"--token-keys-file {file} is not UTF-8.") from None
    except ValueError as error:
        raise StartupError(f"--token-keys-file {file}: {error}.") from None


def _write(file: Path, jwks: list[dict[str, str]], mode: int) -> None:
    """In one move, so that a gateway never reads half of it."""
    if file.exists():
        mode = file.stat().st_mode & 0o777
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(temporary, flags, mode), "w") as out:
            out.write(json.dumps({"keys": jwks}, indent=2) + "\n")
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StartupError(f"{file} cannot be written: {error.strerror}.") from None
