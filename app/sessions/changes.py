"""What the scripts announce: each change of a conversation, with its version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from app.sessions.records import ActiveResponse, Item


@dataclass(frozen=True, slots=True)
class ItemAdded:
    """An item came; `item` is None if it is too long to be told."""

    item: Item | None
    previous_item_id: str | None
    title: str | None


@dataclass(frozen=True, slots=True)
class ItemDeleted:
    """An item was taken out; `previous_item_id` is what was before it."""

    item_id: str
    previous_item_id: str | None


@dataclass(frozen=True, slots=True)
class ItemCut:
    """Only the first `num_chars` characters of an answer stay."""

    item_id: str
    num_chars: int


@dataclass(frozen=True, slots=True)
class Truncated:
    """All after an item was taken out; None: everything."""

    item_id: str | None
    deleted_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """New settings; None if they are too long to be told."""

    settings: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ResponseBegan:
    """A response may write to the conversation now."""

    active: ActiveResponse


@dataclass(frozen=True, slots=True)
class ResponseEnded:
    """It is over, and its answer stored."""

    response_id: str


@dataclass(frozen=True, slots=True)
class Renamed:
    """It has a new title."""

    title: str


@dataclass(frozen=True, slots=True)
class SessionDeleted:
    """There is no such conversation any more."""


What = (
    ItemAdded
    | ItemDeleted
    | ItemCut
    | Truncated
    | SettingsChanged
    | ResponseBegan
    | ResponseEnded
    | Renamed
    | SessionDeleted
)


@dataclass(frozen=True, slots=True)
class Change:
    """One change.

    Attributes:
        version: The conversation's, afterwards; each change raises it by one.
        origin: Who made it, as it said; empty for nobody in particular.
        what: What happened.
    """

    version: int
    origin: str
    what: What


def read_change(data: bytes) -> Change:
    """One message of a conversation's channel.

    Raises:
        ValueError: it is none that this version knows.
    """
    wire = orjson.loads(data)
    try:
        return Change(int(wire["v"]), wire["o"], _read_what(wire))
    except (KeyError, TypeError) as error:
        raise ValueError(f"no change: {error!r}") from error


def _read_what(wire: Mapping[str, Any]) -> What:
    match wire["k"]:
        case "item":
            body = wire.get("body")
            item = None if body is None else Item.from_wire(orjson.loads(body))
            return ItemAdded(item, wire["after"] or None, wire.get("title"))
        case "deleted":
            return ItemDeleted(wire["id"], wire["after"] or None)
        case "cut":
            return ItemCut(wire["id"], int(wire["chars"]))
        case "truncated":
            last = wire["id"]
            return Truncated(None if last == "root" else last, tuple(wire.get("gone", ())))
        case "settings":
            settings = wire.get("settings")
            return SettingsChanged(None if settings is None else orjson.loads(settings))
        case "began":
            return ResponseBegan(
                ActiveResponse(
                    response_id=wire["id"],
                    item_id=wire["item"],
                    previous_item_id=wire["after"] or None,
                    deadline_at=float(wire["deadline"]),
                    asked=orjson.loads(wire["asked"]),
                )
            )
        case "ended":
            return ResponseEnded(wire["id"])
        case "title":
            return Renamed(wire["title"])
        case "gone":
            return SessionDeleted()
    raise ValueError(f"unknown change {wire['k']!r}")
