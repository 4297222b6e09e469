"""One pipeline of a worker's writes: events to logs, and what logs hold to gateways.

An event goes to the gateways in the pipeline after the one that put it into its log.
Nobody hears what the log refused, so whoever took a response over knows from the log
all that was ever heard of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.contract import keys
from engine.worker.redis_client import Value
from engine.worker.route import Route

# Bytes in one entry of a gateway's stream.
MAX_ENTRY_BYTES = 256 * 1024


class Batch:
    """See the module.

    Args:
        worker_id: Whose writes.
        max_logged: How many events go to logs at most.
        max_notified: How many go to gateways at most.

    Attributes:
        logged: For each command from the first on: (route, index of its entry), or None
            for one that writes no event.
        notified: (route, number of its entries that the gateways then have).
    """

    def __init__(self, worker_id: str, max_logged: int, max_notified: int) -> None:
        self.logged: list[tuple[Route, int] | None] = []
        self.notified: list[tuple[Route, int]] = []
        self._owned = keys.owned(worker_id)
        self._log_room, self._gateway_room = max_logged, max_notified
        self._log_commands: list[tuple[Value, ...]] = []
        self._by_gateway: dict[str, list[bytes]] = {}
        self._ended: list[str] = []

    @property
    def is_owing(self) -> bool:
        """Whether, once it is written, logs hold what gateways have yet to hear."""
        return bool(self.logged) or self._gateway_room <= 0

    @property
    def is_full(self) -> bool:
        """Whether there's room for no further event, neither in logs nor to gateways."""
        return self._log_room <= 0 and self._gateway_room <= 0

    def add(self, route: Route) -> None:
        """As much of a route as is due and fits."""
        self._notify(route)
        if route.num_logged < len(route.payloads):
            self._log(route)

    def repeat(self, route: Route, gateway_id: str, first: int) -> None:
        """Send one gateway again what the log holds from entry `first` on."""
        payloads = route.payloads[first : route.num_logged]
        self._by_gateway.setdefault(gateway_id, []).extend(payloads)

    def commands(self) -> list[tuple[Value, ...]]:
        """The pipeline; empty if nothing is due."""
        commands = list(self._log_commands)
        for gateway_id, payloads in self._by_gateway.items():
            key = keys.gateway(gateway_id)
            for body in _bodies(payloads):
                commands.append(("XADD", key, "MAXLEN", "~", keys.GATEWAY_MAXLEN, "*", "b", body))
            commands.append(("EXPIRE", key, keys.GATEWAY_TTL_S))
        for request_id in self._ended:
            commands.append(("SREM", self._owned, request_id))
            commands.append(("DEL", keys.lease(request_id)))
        return commands

    def _log(self, route: Route) -> None:
        start = route.num_logged
        end = min(len(route.payloads), start + self._log_room)
        self._log_room -= end - start
        for index in range(start, end):
            entry = ("XADD", route.key, route.entry_ids[index], "e", route.payloads[index])
            self._log_commands.append(entry)
            self.logged.append((route, index))
            is_last = route.ended_at is not None and index == len(route.payloads) - 1
            if index == 0 or is_last:
                ttl_s = route.end_ttl_s if is_last else keys.LOG_TTL_S
                self._log_commands.append(("EXPIRE", route.key, ttl_s))
                self.logged.append(None)

    def _notify(self, route: Route) -> None:
        start = route.num_notified
        end = min(route.num_logged, start + self._gateway_room)
        self.notified.append((route, end))
        if end == start:
            return
        self._gateway_room -= end - start
        payloads = route.payloads[start:end]
        for gateway_id in route.listeners:
            self._by_gateway.setdefault(gateway_id, []).extend(payloads)
        if route.ended_at is not None and end == len(route.payloads):
            self._ended.append(route.request_id)


def _bodies(payloads: list[bytes]) -> Iterator[bytes]:
    """JSON lists of events, each within MAX_ENTRY_BYTES unless one event is larger."""
    part: list[bytes] = []
    size = 0
    for payload in payloads:
        if part and size + len(payload) > MAX_ENTRY_BYTES:
            yield b"[" + b",".join(part) + b"]"
            part, size = [], 0
        part.append(payload)
        size += len(payload) + 1
    if part:
        yield b"[" + b",".join(part) + b"]"
