"""One response's events and where they go."""

from __future__ import annotations

from bisect import bisect_right
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
        entry_ids: Where each event is in the log, from the response's first event on, those
            of earlier leases among them. Bytes, as `payloads` are: of so many objects the
            garbage collector need not look at any.
        payloads: The events as JSON.
        num_logged: Events that the log holds.
        num_notified: Events that the listeners were sent.
        ended_at: Monotonic time of its terminal event; None before.
    """

    __slots__ = (
        "end_ttl_s",
        "ended_at",
        "entry_ids",
        "epoch",
        "key",
        "listeners",
        "num_logged",
        "num_notified",
        "payloads",
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
        self.entry_ids = [keys.log_entry_id(*place).encode() for place, _ in made]
        self.payloads = [payload for _, payload in made]
        self.num_logged = self.num_notified = len(self.payloads)
        self.ended_at: float | None = None

    @property
    def next_seq(self) -> int:
        """The seq of the event that comes next."""
        return _place(self.entry_ids[-1]).seq + 1 if self.entry_ids else 0

    @property
    def is_settled(self) -> bool:
        """Whether all of it is written."""
        return self.num_logged == self.num_notified == len(self.payloads)

    def add(self, epoch: int, seq: int, payload: bytes) -> None:
        """One more event, in order."""
        self.entry_ids.append(b"%d-%d" % (epoch, seq))
        self.payloads.append(payload)

    def num_bytes(self, start: int, end: int) -> int:
        """Bytes of the events from `start` up to `end`."""
        return sum(map(len, self.payloads[start:end]))

    def num_before(self, seq: int) -> int:
        """How many events have a lower seq."""
        return sum(_place(entry_id).seq < seq for entry_id in self.entry_ids)

    def num_until(self, last: Cursor) -> int:
        """How many events are at `last` or before it."""
        return bisect_right(self.entry_ids, last, key=_place)


def _place(entry_id: bytes) -> Cursor:
    return keys.cursor_from_entry_id(entry_id.decode())
