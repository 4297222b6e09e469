"""Bookkeeping that disagrees with itself."""

from __future__ import annotations


class InvariantError(Exception):
    """The engine's books are wrong: a fault of its own, and no request's."""


def require(holds: bool, message: str) -> None:
    """Check one invariant, whatever the interpreter was told of assertions.

    Raises:
        InvariantError: `message`.
    """
    if not holds:
        raise InvariantError(message)
