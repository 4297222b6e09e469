"""What a response was charged, and the refusal to charge it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.auth.principal import Allowance
from app.limits.policy import Budget
from app.limits.state import Standing
from engine.contract import Overloaded

# What a full house is told; nobody knows when somebody leaves.
BUSY_RETRY_MS = 1000


class RateLimited(Overloaded):
    """A budget is used up.

    Attributes:
        standing: Where the caller stands.
    """

    default_code = "rate_limit_exceeded"

    def __init__(self, message: str, retry_after_ms: int, standing: Standing) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms)
        self.standing = standing


@dataclass(frozen=True, slots=True)
class Charge:
    """What a response was charged.

    Attributes:
        response_id: Whose.
        tokens: As foreseen.
        budgets: Where it was charged; empty if nowhere.
        standing: What is left.
    """

    response_id: str
    tokens: int
    budgets: tuple[Budget, ...]
    standing: Standing

    def to_wire(self) -> dict[str, Any]:
        """What settling it takes."""
        return {
            "id": self.response_id,
            "tokens": self.tokens,
            "budgets": [[b.name, b.allowance.tokens_per_min] for b in self.budgets],
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Charge:
        """Read `to_wire`'s answer back."""
        budgets = [Budget(name, Allowance(tokens_per_min=n)) for name, n in wire["budgets"]]
        return cls(wire["id"], wire["tokens"], tuple(budgets), Standing())


def charge_key(response_id: str) -> str:
    """Where other gateways find a response's charge."""
    return f"rp:charge:{{{response_id}}}"
