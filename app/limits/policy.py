"""Which budgets a caller falls under.

A limits file (TOML) says it by field of `Allowance`, a tenant's table before its tier's,
a tier's before the default:

    [default]
    requests_per_min = 600
    [tiers.vip]
    tokens_per_min = 10000000
    [tenants.acme]
    connections = 50

Its table `storage` says what may be stored (`app/limits/storage.py`).

Each tenant has one budget a tier, so that its batch work never takes from its people. A
token with limits of its own has a second one, of the tenant and the token's subject.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from app.auth.principal import Allowance, Principal, check_tenant, check_tier
from app.limits.storage import DEFAULT_STORAGE, StoragePolicy, read_storage
from engine.contract import Tier

T = TypeVar("T")

# Beyond what people do, within what one caller may take from all others.
DEFAULTS: Mapping[Tier, Allowance] = {
    Tier.VIP: Allowance(12_000, 20_000_000, 2_000, 20_000),
    Tier.STANDARD: Allowance(6_000, 10_000_000, 1_000, 10_000),
    Tier.BATCH: Allowance(6_000, 10_000_000, 1_000, 1_000),
}
_TABLES = ("default", "tiers", "tenants", "storage")
NO_LIMITS: Mapping[Tier, Allowance] = {tier: Allowance() for tier in Tier}


@dataclass(frozen=True, slots=True)
class Budget:
    """One set of counters.

    Attributes:
        name: Of its keys in Redis; the tenant in braces puts all of them in one slot.
        allowance: Its bounds; 0 or None for none.
    """

    name: str
    allowance: Allowance


@dataclass(frozen=True, slots=True)
class LimitPolicy:
    """See the module.

    Attributes:
        base: By tier, what holds where the file says nothing.
        default: The file's `default`.
        tiers: The file's `tiers`.
        tenants: The file's `tenants`.
        storage: The file's `storage`.
    """

    base: Mapping[Tier, Allowance] = field(default_factory=lambda: DEFAULTS)
    default: Allowance = field(default_factory=Allowance)
    tiers: Mapping[Tier, Allowance] = field(default_factory=dict)
    tenants: Mapping[str, Allowance] = field(default_factory=dict)
    storage: StoragePolicy = DEFAULT_STORAGE

    def budgets(self, principal: Principal) -> tuple[Budget, ...]:
        """Those that a caller falls under and that bound anything."""
        tenant, tier = principal.tenant, principal.tier
        allowance = self.default.over(self.base[tier])
        for more in (self.tiers.get(tier), self.tenants.get(tenant)):
            allowance = allowance if more is None else more.over(allowance)
        prefix = f"rp:limit:{{{tenant}}}:"
        budgets = [Budget(f"{prefix}{tier.value}", allowance)]
        if principal.allowance is not None:
            subject = hashlib.blake2b((principal.subject or "").encode(), digest_size=12)
            budgets.append(Budget(f"{prefix}sub:{subject.hexdigest()}", principal.allowance))
        return tuple(budget for budget in budgets if budget.allowance.bounds_anything)


def parse_limits(
    text: str,
    base: Mapping[Tier, Allowance] = DEFAULTS,
    storage: StoragePolicy = DEFAULT_STORAGE,
) -> LimitPolicy:
    """Read a limits file.

    Args:
        text: The file's.
        base: By tier, what holds where the file says nothing.
        storage: What holds of storage where the file says nothing.

    Raises:
        ValueError: naming the table and the field.
    """
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"it is not TOML: {error}") from None
    for name in tables:
        if name not in _TABLES:
            raise ValueError(f"{name!r:.40} is no table; there are {', '.join(_TABLES)}")
    tiers = {}
    for tier, values in _table(tables, "tiers").items():
        tiers[_named(f"tiers.{tier:.40}", check_tier, tier)] = _read(f"tiers.{tier}", values)
    tenants = {}
    for tenant, values in _table(tables, "tenants").items():
        name = _named(f"tenants.{tenant:.40}", check_tenant, tenant)
        tenants[name] = _read(f"tenants.{tenant}", values)
    default = _read("default", tables.get("default", {}))
    stored = read_storage(tables.get("storage", {}), storage)
    return LimitPolicy(base, default, tiers, tenants, stored)


def _table(tables: Mapping[str, object], name: str) -> dict[str, object]:
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise ValueError(f"{name} must be a table of tables")
    return table


def _read(path: str, values: object) -> Allowance:
    return _named(path, Allowance.read, values)


def _named(path: str, check: Callable[[object], T], value: object) -> T:
    """`check(value)`, whose refusal names the table."""
    try:
        return check(value)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
