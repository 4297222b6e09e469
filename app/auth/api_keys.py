"""Static API keys, kept only as hashes."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass

from app.auth.principal import Principal, check_tenant, check_tier
from engine.contract import Tier

MIN_KEY_CHARS = 16
MAX_KEY_CHARS = 512
# What an HTTP token may hold, since a key also travels as a WebSocket subprotocol.
_KEY = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key's hash, and who holds the key."""

    digest: bytes
    principal: Principal


def hash_key(key: str) -> bytes:
    """SHA-256; keys are long and random, so a slow hash would add nothing."""
    return hashlib.sha256(key.encode()).digest()


class ApiKeys:
    """The keys that are valid.

    Args:
        keys: At least one for anybody to get in.
    """

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._keys = tuple(keys)
        self._sources = frozenset(key.principal.source for key in self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def has(self, source: str | None) -> bool:
        """Whether the key that a principal names as its source is there."""
        return source in self._sources

    def find(self, key: str) -> Principal | None:
        """Who holds `key`; takes the same time whichever key matches, or none."""
        digest = hash_key(key)
        found: Principal | None = None
        for known in self._keys:
            if hmac.compare_digest(known.digest, digest):
                found = known.principal
        return found


def parse_api_keys(text: str) -> ApiKeys:
    """Read keys from a file.

    Entries are separated by commas or line ends; `#` begins a comment line. An entry is
    `key`, `key:tenant` or `key:tenant:tier`; the tenant is `default` and the tier
    `standard` unless given.

    Raises:
        ValueError: saying which entry is wrong and why, never repeating a key; or that
            there is none.
    """
    keys: list[ApiKey] = []
    seen: set[bytes] = set()
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    entries = [entry.strip() for line in lines for entry in line.split(",")]
    for number, entry in enumerate(filter(None, entries), start=1):
        try:
            key = _parse_entry(entry)
        except ValueError as error:
            raise ValueError(f"API key {number}: {error}") from None
        if key.digest in seen:
            raise ValueError(f"API key {number}: the same key was given before")
        seen.add(key.digest)
        keys.append(key)
    if not keys:
        raise ValueError("it holds no key")
    return ApiKeys(keys)


def check_key(key: str) -> None:
    """Refuse what cannot be a key.

    Raises:
        ValueError: saying why, never repeating it.
    """
    if not MIN_KEY_CHARS <= len(key) <= MAX_KEY_CHARS:
        raise ValueError(f"must have {MIN_KEY_CHARS} to {MAX_KEY_CHARS} characters, has {len(key)}")
    if not _KEY.fullmatch(key):
        raise ValueError("may hold only letters, digits and !#$%&'*+.^_`|~-")


def _parse_entry(entry: str) -> ApiKey:
    key, _, rest = entry.partition(":")
    tenant, _, tier = rest.partition(":")
    check_key(key)
    digest = hash_key(key)
    principal = Principal(
        check_tenant(tenant or "default"),
        check_tier(tier or Tier.STANDARD),
        source=f"key:{digest[:8].hex()}",
    )
    return ApiKey(digest, principal)
