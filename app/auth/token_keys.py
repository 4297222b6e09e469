"""Keys that sign bearer tokens: a JSON Web Key Set (RFC 7517) in a file.

Two kinds are taken: Ed25519 (`kty` OKP, RFC 8037) for EdDSA and secrets (`kty` oct) for
HS256. The kind of a key decides its one algorithm; a token's own `alg` decides nothing.
A gateway needs only the public half of an Ed25519 key.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt import PyJWK, PyJWTError

EDDSA = "EdDSA"
HS256 = "HS256"
# RFC 7518, 3.2: at least as long as the hash.
MIN_SECRET_BYTES = 32
_KID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_ALGORITHMS = {"OKP": EDDSA, "oct": HS256}


@dataclass(frozen=True, slots=True)
class TokenKey:
    """One key of the set.

    Attributes:
        kid: Its name in a token's header.
        algorithm: The only one it is used with.
        jwk: The key itself.
        can_sign: Whether the private half is there.
    """

    kid: str
    algorithm: str
    jwk: PyJWK = field(repr=False)
    can_sign: bool


class TokenKeys:
    """A set of keys, oldest first."""

    def __init__(self, keys: Iterable[TokenKey]) -> None:
        self._keys = {key.kid: key for key in keys}

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, kid: str) -> TokenKey | None:
        """The key of that name."""
        return self._keys.get(kid)

    def signer(self, kid: str = "") -> TokenKey:
        """The key to sign with: the one named, or else the newest that can.

        Raises:
            ValueError: there is none.
        """
        named = [key for key in self._keys.values() if kid in ("", key.kid)]
        signers = [key for key in named if key.can_sign]
        if not signers:
            what = f"no key {kid!r:.140} that can sign" if kid else "no key that can sign"
            raise ValueError(f"it holds {what}")
        return signers[-1]


def parse_token_keys(text: str) -> TokenKeys:
    """Read a key set.

    Raises:
        ValueError: saying which key is wrong and why, never repeating key material.
    """
    keys = [_read_key(jwk, f"keys.{index}") for index, jwk in enumerate(read_key_set(text))]
    names = [key.kid for key in keys]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two keys have the kid {name!r}")
    if not keys:
        raise ValueError("it holds no key")
    return TokenKeys(keys)


def read_key_set(text: str) -> list[Any]:
    """The `keys` of a set, not looked at yet.

    Raises:
        ValueError: it is no key set.
    """
    try:
        decoded = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    keys = decoded.get("keys") if isinstance(decoded, dict) else None
    if not isinstance(keys, list):
        raise ValueError('it must be an object with an array "keys"')
    return keys


def new_key(kind: str) -> dict[str, str]:
    """A fresh key as a JSON Web Key, private half included.

    Args:
        kind: `eddsa` or `hs256`.
    """
    kid = secrets.token_hex(6)
    if kind == "hs256":
        secret = _encode(secrets.token_bytes(MIN_SECRET_BYTES))
        return {"kid": kid, "use": "sig", "alg": HS256, "kty": "oct", "k": secret}
    private = Ed25519PrivateKey.generate()
    return {
        "kid": kid,
        "use": "sig",
        "alg": EDDSA,
        "kty": "OKP",
        "crv": "Ed25519",
        "x": _encode(private.public_key().public_bytes_raw()),
        "d": _encode(private.private_bytes_raw()),
    }


def public_half(jwk: dict[str, str]) -> dict[str, str] | None:
    """A key without what signs; None for a secret, which is nothing else."""
    if jwk.get("kty") != "OKP":
        return None
    return {name: value for name, value in jwk.items() if name != "d"}


def _read_key(jwk: object, path: str) -> TokenKey:
    if not isinstance(jwk, dict):
        raise ValueError(f"{path} must be an object")
    kid = jwk.get("kid")
    if not isinstance(kid, str) or not _KID.fullmatch(kid):
        raise ValueError(f"{path}.kid must be 1 to 128 letters, digits, _ . : or -")
    kty = jwk.get("kty")
    algorithm = _ALGORITHMS.get(kty) if isinstance(kty, str) else None
    if algorithm is None:
        raise ValueError(f"{path}.kty must be OKP (Ed25519) or oct (a secret)")
    if algorithm == EDDSA and jwk.get("crv") != "Ed25519":
        raise ValueError(f"{path}.crv must be Ed25519")
    if jwk.get("alg", algorithm) != algorithm:
        raise ValueError(f"{path}.alg must be {algorithm} for a key of kty {kty}")
    if jwk.get("use", "sig") != "sig":
        raise ValueError(f"{path}.use must be sig")
    if algorithm == HS256 and len(_decode(jwk.get("k"))) < MIN_SECRET_BYTES:
        raise ValueError(f"{path}.k must be base64url of at least {MIN_SECRET_BYTES} bytes")
    try:
        key = PyJWK(jwk, algorithm)
    except (PyJWTError, ValueError, TypeError, binascii.Error):
        raise ValueError(f"{path} is not a sound key") from None
    return TokenKey(kid, algorithm, key, can_sign=algorithm == HS256 or "d" in jwk)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: object) -> bytes:
    """base64url; nothing for anything else."""
    if not isinstance(text, str):
        return b""
    try:
        return base64.b64decode(text.encode() + b"=" * (-len(text) % 4), b"-_", validate=True)
    except ValueError:
        return b""
