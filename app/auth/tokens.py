"""Signed bearer tokens (JWT, RFC 7519): made and checked.

A token names its key; the key, not the token, says which algorithm checks it. Who the
caller is stands in `tenant` (or else `sub`), the tier in `tier`, limits of its own in
`limits`. Every token has an end.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

import jwt

from app.auth.principal import Allowance, Principal, check_tenant, check_tier
from app.auth.token_keys import TokenKey, TokenKeys
from engine.contract import Tier

MAX_TOKEN_CHARS = 4096
MAX_SUBJECT_CHARS = 256
# How far clocks may be apart.
LEEWAY_S = 30.0
SOURCE = "token:"
_REQUIRED = ["exp", "aud"]
# What the library lets through for a token that is not one, or whose numbers are not.
_FAULTS = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)


class TokenError(Exception):
    """Why a token does not count; for our log, and without anything of the token."""


class TokenVerifier:
    """Tells callers by their tokens.

    Args:
        keys: The keys as they stand now.
        audience: Must be (among) the token's `aud`.
        issuer: Must be the token's `iss`; empty does not ask.
        leeway_s: How much later or earlier than our clock says a token still counts.
    """

    def __init__(
        self,
        keys: Callable[[], TokenKeys],
        *,
        audience: str,
        issuer: str,
        leeway_s: float = LEEWAY_S,
    ) -> None:
        self._keys = keys
        self._audience = audience
        self._issuer = issuer
        self._leeway_s = leeway_s

    def verify(self, token: str) -> Principal:
        """Who a token stands for.

        Raises:
            TokenError: it is no token of ours, or not now.
        """
        if len(token) > MAX_TOKEN_CHARS or not token.isascii():
            raise TokenError("not a token")
        key = self._key_of(token)
        try:
            claims = jwt.decode(
                token,
                key.jwk,
                algorithms=[key.algorithm],
                audience=self._audience,
                issuer=self._issuer or None,
                leeway=self._leeway_s,
                options={"require": _REQUIRED},
            )
        except _FAULTS as error:
            raise TokenError(f"key {key.kid}: {type(error).__name__}") from None
        try:
            return _principal(claims, f"{SOURCE}{key.kid}")
        except ValueError as error:
            raise TokenError(f"key {key.kid}: {error}") from None

    def has(self, source: str | None) -> bool:
        """Whether the key that a principal names as its source is there."""
        if source is None or not source.startswith(SOURCE):
            return False
        return self._keys().find(source.removeprefix(SOURCE)) is not None

    def _key_of(self, token: str) -> TokenKey:
        try:
            header = jwt.get_unverified_header(token)
        except _FAULTS as error:
            raise TokenError(type(error).__name__) from None
        kid = header.get("kid")
        key = self._keys().find(kid) if isinstance(kid, str) else None
        if key is None:
            raise TokenError("no key of that name")
        if header.get("alg") != key.algorithm:
            raise TokenError(f"key {key.kid}: another algorithm than the key's")
        return key


def mint(
    key: TokenKey,
    *,
    tenant: str,
    tier: Tier,
    ttl_s: float,
    audience: str,
    issuer: str,
    subject: str = "",
    limits: dict[str, int] | None = None,
    now: float | None = None,
) -> str:
    """A signed token.

    Args:
        key: Must be able to sign.
        tenant: Whose.
        tier: Whose turn comes first.
        ttl_s: Seconds until it ends.
        audience: Who is to take it.
        issuer: Who gives it; empty leaves it out.
        subject: Whom the tenant gives it to; the tenant itself by default.
        limits: Fields of `Allowance`, beside the tenant's.
        now: Unix seconds.
    """
    now = time.time() if now is None else now
    claims: dict[str, Any] = {
        "aud": audience,
        "sub": subject or tenant,
        "tenant": tenant,
        "tier": tier.value,
        "iat": int(now),
        "exp": int(now + ttl_s),
        "jti": secrets.token_hex(8),
    }
    if issuer:
        claims["iss"] = issuer
    if limits:
        claims["limits"] = limits
    return jwt.encode(claims, key.jwk.key, algorithm=key.algorithm, headers={"kid": key.kid})


def _principal(claims: dict[str, Any], source: str) -> Principal:
    for name in ("exp", "nbf", "iat"):
        value = claims.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} must be a number")
    subject = claims.get("sub")
    if subject is not None and len(subject) > MAX_SUBJECT_CHARS:
        raise ValueError(f"sub must be at most {MAX_SUBJECT_CHARS} characters")
    limits = claims.get("limits")
    return Principal(
        tenant=check_tenant(claims.get("tenant", subject)),
        tier=check_tier(claims.get("tier", Tier.STANDARD.value)),
        subject=subject,
        expires_at=float(claims["exp"]),
        allowance=None if limits is None else Allowance.read(limits),
        source=source,
    )
