"""How much each owner may store, as a limits file says it.

    [storage.default]
    stored_bytes = 536870912
    [storage.subjects]
    conversations = 10000
    stored_bytes = 67108864
    [storage.tenants.acme]
    stored_bytes = 4294967296

`default` holds for every tenant with all of its subjects, a tenant's own table before it;
`subjects` holds for each subject of any tenant besides. 0 is no limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.auth.principal import check_tenant
from app.sessions.quota import StorageLimits, StorageScope

MAX_LIMIT = 10**15
_FIELDS = ("conversations", "stored_bytes")
_TABLES = ("default", "subjects", "tenants")


@dataclass(frozen=True, slots=True)
class StoragePolicy:
    """See the module.

    Attributes:
        default: Of each tenant.
        subjects: Of each subject of a tenant.
        tenants: Of tenants with a table of their own.
    """

    default: StorageLimits = field(default_factory=StorageLimits)
    subjects: StorageLimits = field(default_factory=StorageLimits)
    tenants: Mapping[str, StorageLimits] = field(default_factory=dict)

    def scopes(self, owner: str) -> Sequence[StorageScope]:
        """The records that an owner's things count in, its own first.

        Args:
            owner: `Principal.owner`.
        """
        tenant, _, digest = owner.partition("/")
        # The braces put a tenant's records into one slot.
        key = f"rp:stored:{{{tenant}}}"
        scopes = [StorageScope(key, self.tenants.get(tenant, self.default), "tenant")]
        if digest:
            scopes.insert(0, StorageScope(f"{key}:{digest}", self.subjects, "subject"))
        return [scope for scope in scopes if scope.limits != StorageLimits()]


# What an answer every minute for a week comes to, many times over.
DEFAULT_STORAGE = StoragePolicy(
    default=StorageLimits(stored_bytes=512 * 1024 * 1024),
    subjects=StorageLimits(conversations=10_000, stored_bytes=64 * 1024 * 1024),
)
NO_STORAGE_LIMITS = StoragePolicy()


def read_storage(value: object, base: StoragePolicy) -> StoragePolicy:
    """Read the table `storage` of a limits file.

    Args:
        value: The decoded table.
        base: What holds where it says nothing.

    Raises:
        ValueError: naming the table and the field.
    """
    tables = _table(value, "storage")
    for name in tables:
        if name not in _TABLES:
            raise ValueError(f"storage.{name:.40} is no table; there are {', '.join(_TABLES)}")
    default = _read(tables.get("default", {}), "storage.default", base.default)
    tenants = {}
    for tenant, values in _table(tables.get("tenants", {}), "storage.tenants").items():
        path = f"storage.tenants.{tenant:.40}"
        try:
            name = check_tenant(tenant)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        tenants[name] = _read(values, path, default)
    subjects = _read(tables.get("subjects", {}), "storage.subjects", base.subjects)
    return StoragePolicy(default, subjects, tenants)


def _table(value: object, path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{path} must be a table")
    return value


def _read(value: object, path: str, base: StorageLimits) -> StorageLimits:
    values: dict[str, int] = {}
    for name, limit in _table(value, path).items():
        if name not in _FIELDS:
            raise ValueError(f"{path}: {name!r:.40} is no limit; there are {', '.join(_FIELDS)}")
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise ValueError(f"{path}: {name} must be a whole number")
        if not 0 <= limit <= MAX_LIMIT:
            raise ValueError(f"{path}: {name} must be from 0 to {MAX_LIMIT}, got {limit!r:.40}")
        values[name] = limit
    return replace(base, **values)
