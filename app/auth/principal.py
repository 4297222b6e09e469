"""The caller, once known, and what the caller may ask for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from engine.contract import Tier

MAX_ALLOWANCE = 10**12
TENANT = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Allowance:
    """Bounds of what a caller may ask for; None says nothing, 0 means no limit.

    Attributes:
        requests_per_min: Answers asked for.
        tokens_per_min: Of prompts and answers together.
        concurrent_responses: Answers under way.
        connections: Open sockets.
    """

    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    concurrent_responses: int | None = None
    connections: int | None = None

    @classmethod
    def read(cls, values: object) -> Allowance:
        """Read a decoded table or object.

        Raises:
            ValueError: naming the field.
        """
        if not isinstance(values, dict):
            raise ValueError("limits must be a table")
        known = [each.name for each in fields(cls)]
        for name, value in values.items():
            if name not in known:
                raise ValueError(f"{name!r:.40} is no limit; there are {', '.join(known)}")
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{name} must be a whole number")
            if not 0 <= value <= MAX_ALLOWANCE:
                raise ValueError(f"{name} must be from 0 to {MAX_ALLOWANCE}, got {value!r:.40}")
        return cls(**values)

    def over(self, base: Allowance) -> Allowance:
        """This one, and what it says nothing of from `base`."""
        return Allowance(
            _first(self.requests_per_min, base.requests_per_min),
            _first(self.tokens_per_min, base.tokens_per_min),
            _first(self.concurrent_responses, base.concurrent_responses),
            _first(self.connections, base.connections),
        )

    @property
    def bounds_anything(self) -> bool:
        """Whether there is any limit in it."""
        return bool(
            self.requests_per_min
            or self.tokens_per_min
            or self.concurrent_responses
            or self.connections
        )


def _first(value: int | None, other: int | None) -> int | None:
    return other if value is None else value


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request belongs to.

    Attributes:
        tenant: Whose limits and keys; callers of one tenant share a prefix cache.
        tier: Whose turn comes first.
        subject: Whom the tenant calls for; None where the credential does not say.
        expires_at: Unix seconds until which the credential is good; None for good.
        allowance: The credential's own, beside the tenant's.
        is_ephemeral: It came by a client secret or a ticket, which are for sockets only.
        session: Settings of the conversations that it begins, as the store keeps them.
        source: The key behind the credential, `key:` or `token:` and its name.
    """

    tenant: str
    tier: Tier
    subject: str | None = None
    expires_at: float | None = None
    allowance: Allowance | None = None
    is_ephemeral: bool = False
    session: Mapping[str, Any] | None = None
    source: str | None = field(default=None, compare=False)

    @property
    def owner(self) -> str:
        """To whom its conversations and responses belong: a subject has its own.

        A tenant's name holds no slash, so no subject is ever taken for a tenant.
        """
        if not self.subject or self.subject == self.tenant:
            return self.tenant
        digest = hashlib.blake2b(self.subject.encode(), digest_size=16).hexdigest()
        return f"{self.tenant}/{digest}"

    def to_wire(self) -> dict[str, Any]:
        """For the store of client secrets."""
        return {**asdict(self), "tier": self.tier.value}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Principal:
        """Read `to_wire`'s answer back."""
        allowance = wire["allowance"]
        read = Allowance(**allowance) if allowance is not None else None
        return cls(**{**wire, "tier": Tier(wire["tier"]), "allowance": read})


def check_tenant(tenant: object) -> str:
    """`tenant` if it may be one.

    Raises:
        ValueError: saying what a tenant looks like.
    """
    if not isinstance(tenant, str) or not TENANT.fullmatch(tenant):
        raise ValueError("its tenant must be 1 to 64 letters, digits, _ . or -")
    return tenant


def check_tier(tier: object) -> Tier:
    """`tier` as one.

    Raises:
        ValueError: naming those there are.
    """
    tiers = [known.value for known in Tier]
    if tier not in tiers:
        raise ValueError(f"its tier must be one of {', '.join(tiers)}")
    return Tier(tier)
