"""Who waits, in which order."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from engine.config import EngineConfig
from engine.contract import Tier
from engine.fair_share import FairShare
from engine.sequence import Sequence, Status

# Ageing times by which each tier stands behind vip in the queue.
_TIER_AGES = {Tier.VIP: 0, Tier.STANDARD: 1, Tier.BATCH: 3}
# A request falls back behind other tenants' by at most this share of the ageing time.
_FAIR_SHARE_OF_AGEING = 0.5


class WaitingQueue:
    """Waiting sequences in order of their places.

    A sequence's place is its arrival, plus `ageing_ms` for standard and three times that
    for batch, so a higher tier passes a lower one, but not one that has waited so much
    longer. Within a tier, tenants take turns by `FairShare`; a tenant's own requests are
    first come, first served.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.ageing_s = config.ageing_ms / 1000
        self.shares = FairShare(self.ageing_s * _FAIR_SHARE_OF_AGEING)
        self.sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self.sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.sequences)

    def place(self, seq: Sequence) -> tuple[float, int]:
        """Sort key in the queue; constant for a sequence, whatever the time."""
        return (seq.place_at + _TIER_AGES[seq.request.tier] * self.ageing_s, seq.id)

    def before(self, seq: Sequence) -> Iterator[Sequence]:
        """Those that stand before a sequence, which need not be in the queue."""
        place = self.place(seq)
        for other in self.sequences:
            if self.place(other) > place:
                return
            yield other

    def due(self, now: float, share: float) -> list[Sequence]:
        """Standard requests without a start that have waited so long, oldest first.

        Args:
            now: Seconds on the engine's clock.
            share: Of the ageing time.
        """
        before = now - share * self.ageing_s
        due = [
            seq
            for seq in self.sequences
            if seq.arrived_at <= before
            and seq.started_at is None
            and seq.request.tier is Tier.STANDARD
        ]
        return sorted(due, key=lambda seq: seq.id)

    def insert(self, seq: Sequence) -> None:
        """Queue a sequence at its place."""
        seq.status = Status.WAITING
        insort(self.sequences, seq, key=self.place)

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out."""
        self.sequences.remove(seq)
