"""The caller, once known."""

from __future__ import annotations

from dataclasses import dataclass

from engine.contract import Tier


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request belongs to.

    Attributes:
        tenant: Owner of its conversations; callers of one tenant share a prefix cache.
        tier: Whose turn comes first.
    """

    tenant: str
    tier: Tier
