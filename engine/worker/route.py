"""One response's events and where they go."""

from __future__ import annotations

from collections.abc import Sequence

from engine.contract import Cursor, GenerateRequest, keys

# Gateways that listen to one response; the first to come is the first to go.
MAX_LISTENERS = 64


class Route:
    """See the module.

    Attributes:
        request_id: Whose.
        epoch: The lease under which it is written.
        request: What the lease is about; None for a request that could not be read.
        key: Its log.
        end_ttl_s: The log's lifetime after the end.
        listeners: Gateways that get its events.
        entries: (place, event as JSON), from the response's first event on, those of
            earlier leases among them.
        num_logged: Entries that the log holds.
        num_notified: Entries that the listeners were sent.
        ended_at: Monotonic time of its terminal event; None before.
    """

    __slots__ = (
        "end_ttl_s",
        "ended_at",
        "entries",
        "epoch",
        "key",
        "listeners",
        "num_logged",
        "num_notified",
        "request",
        "request_id",
    )

    def __init__(
        self,
        request_id: str,
        epoch: int,
        listeners: Sequence[str],
        *,
        request: GenerateRequest | None = None,
        made: Sequence[tuple[Cursor, bytes]] = (),
        end_ttl_s: int = keys.LOG_TTL_S,
    ) -> None:
        self.request_id = request_id
        self.epoch = epoch
        self.request = request
        self.key = keys.log(request_id)
        self.end_ttl_s = end_ttl_s
        self.listeners = list(listeners)
        self.entries = list(made)
        self.num_logged = self.num_notified = len(self.entries)
        self.ended_at: float | None = None

    @property
    def next_seq(self) -> int:
        """The seq of the event that comes next."""
        return self.entries[-1][0].seq + 1 if self.entries else 0

    @property
    def is_settled(self) -> bool:
        """Whether all of it is written."""
        return self.num_logged == self.num_notified == len(self.entries)
