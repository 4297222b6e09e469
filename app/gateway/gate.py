"""How many connections there may be, and how many of those from strangers.

A connection belongs to a stranger until one of its requests has shown a credential. One
address may hold a quarter of all places that way, so that nobody can take all of them
without being known.
"""

from __future__ import annotations

import resource
from collections import Counter

# File descriptors that are not connections: files, Redis, the listener.
RESERVED_FILES = 128
MIN_CONNECTIONS = 64
# Where nothing else says how many: about what a few GiB of memory hold.
MAX_CONNECTIONS = 100_000
STRANGERS_SHARE = 4


def raise_file_limit() -> None:
    """Let the process open as many files as it may; the usual limit is for others' sake."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections_by_files() -> int:
    """How many connections the process's limit of open files leaves room for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, max(MIN_CONNECTIONS, soft - RESERVED_FILES))


class Place:
    """One connection's place."""

    def __init__(self, gate: Gate, address: str) -> None:
        self._gate = gate
        self._address = address
        self._is_known = False
        self._is_left = False

    def prove(self) -> None:
        """A request of this connection has shown a credential."""
        if not self._is_known and not self._is_left:
            self._is_known = True
            self._gate.forget_stranger(self._address)

    def leave(self) -> None:
        """The connection is gone."""
        if not self._is_left:
            self.prove()
            self._is_left = True
            self._gate.num_connections -= 1


class Gate:
    """See the module.

    Args:
        max_connections: At once; 0 takes `connections_by_files`.
        minds_strangers: Whether callers have something to show.

    Attributes:
        num_connections: Now.
    """

    def __init__(self, max_connections: int, *, minds_strangers: bool) -> None:
        self.max_connections = max_connections or connections_by_files()
        most = max(1, self.max_connections // STRANGERS_SHARE)
        self.max_strangers = most if minds_strangers else self.max_connections
        self.num_connections = 0
        self._strangers: Counter[str] = Counter()

    def enter(self, address: str) -> Place | None:
        """A place for a connection from `address`; None if there is none."""
        if self.num_connections >= self.max_connections:
            return None
        if self._strangers[address] >= self.max_strangers:
            return None
        self.num_connections += 1
        self._strangers[address] += 1
        return Place(self, address)

    def forget_stranger(self, address: str) -> None:
        """A connection from there is known now, or gone."""
        self._strangers[address] -= 1
        if self._strangers[address] <= 0:
            del self._strangers[address]
