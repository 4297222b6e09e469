"""Identifiers made by the server: unguessable, unique for good, safe in any log."""

from __future__ import annotations

import secrets
from collections.abc import Callable

MAX_ID_CHARS = 128


def new_id(prefix: str) -> str:
    """`prefix`, an underscore or dash of its own, and 96 random bits in hex."""
    return prefix + secrets.token_hex(12)


def event_ids() -> Callable[[], str]:
    """A source of event ids: one random prefix a connection, then a count."""
    prefix = new_id("event_") + "_"
    count = 0

    def following() -> str:
        nonlocal count
        count += 1
        return f"{prefix}{count}"

    return following


def item_id_of(response_id: str) -> str:
    """The id of a response's one output item.

    It follows from the response's id, so every gateway that shows the response
    names its item alike.
    """
    return "item_" + response_id.removeprefix("resp_")
