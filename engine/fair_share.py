"""Tenants take turns inside a tier, by the time that their requests take."""

from __future__ import annotations

from engine.contract import Tier
from engine.sequence import Sequence

# Remembered before those who are even with everybody are forgotten.
_MAX_TENANTS = 1024


class FairShare:
    """Places requests by virtual finishing times.

    Each tenant has a clock of its own for each tier. A request moves it on from now,
    or from where its tenant's last request left it, by its work times the number of
    tenants with requests in the tier: as if each had an equal part of the machine.
    So a tenant who asks for much queues behind itself, and one who asks for little
    passes it. No request falls back by more than `most_s` behind its arrival.

    Args:
        most_s: Seconds.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._until: dict[tuple[Tier, str], float] = {}
        self._num_live: dict[Tier, dict[str, int]] = {tier: {} for tier in Tier}

    def place(self, seq: Sequence) -> float:
        """Seconds at which a new request would stand in line."""
        now = seq.arrived_at
        start = self._until.get((seq.request.tier, seq.request.tenant), now)
        return min(max(start, now), now + self._most_s)

    def behind_s(self, seq: Sequence) -> float:
        """How long a placed request is held back for other tenants'."""
        others = self._num_live[seq.request.tier].keys() - {seq.request.tenant}
        return seq.place_at - seq.arrived_at if others else 0.0

    def add(self, seq: Sequence) -> None:
        """Count a new request in."""
        tier, tenant = seq.request.tier, seq.request.tenant
        live = self._num_live[tier]
        live[tenant] = live.get(tenant, 0) + 1
        now = seq.arrived_at
        start = max(self._until.get((tier, tenant), now), now)
        self._until[tier, tenant] = start + seq.work_s * len(live)
        if len(self._until) > _MAX_TENANTS:
            self._until = {key: until for key, until in self._until.items() if until > now}

    def remove(self, seq: Sequence) -> None:
        """A request that was counted in has ended."""
        tier, tenant = seq.request.tier, seq.request.tenant
        live = self._num_live[tier]
        live[tenant] -= 1
        if not live[tenant]:
            # Nothing of it is left: it starts even with the others.
            del live[tenant]
            self._until.pop((tier, tenant), None)
