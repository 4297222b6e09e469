"""What a script's refusal means to a client."""

from __future__ import annotations

from typing import Any, NoReturn

from app.sessions import keys
from engine.contract import Conflict, InvalidRequest, NotFound


def refuse(reply: list[Any], session_id: str, item_id: str | None, after: str | None) -> NoReturn:
    """Raise what a script's outcome means."""
    match reply[0]:
        case "gone":
            raise no_session(session_id)
        case "no_item":
            raise no_item(item_id or "")
        case "no_answered":
            raise NotFound(
                f"repartee.answers {item_id!r:.100} is no item of this conversation.",
                code="item_not_found",
                param="repartee.answers",
            )
        case "no_previous":
            raise NotFound(
                f"previous_item_id {after!r:.100} is no item of this conversation.",
                code="item_not_found",
                param="previous_item_id",
            )
        case "taken":
            raise InvalidRequest(
                f"The item id {item_id!r:.100} is taken.", code="item_id_taken", param="item.id"
            )
        case "too_many":
            raise InvalidRequest(
                f"A conversation holds at most {keys.MAX_ITEMS} items, this one has {reply[1]}.",
                code="conversation_full",
                param="item",
            )
        case "too_large":
            raise InvalidRequest(
                f"A conversation's items hold at most {keys.MAX_ITEM_BYTES} bytes, with this "
                f"one they would have {reply[1]}.",
                code="conversation_full",
                param="item",
            )
        case "repeated":
            raise InvalidRequest(
                f"This event was answered before, by {reply[1]!r:.100}; it was not applied again.",
                code="duplicate_event",
                param="event_id",
            )
        case "stale":
            raise Conflict("The conversation has changed meanwhile.", code="version_conflict")
    raise AssertionError(f"unknown outcome {reply[0]!r}")


def no_session(session_id: str) -> NotFound:
    """There is no such conversation, or not for this tenant."""
    return NotFound(
        f"The session {session_id!r:.100} does not exist or has expired.",
        code="session_not_found",
        param="session_id",
    )


def no_item(item_id: str) -> NotFound:
    """The conversation has no such item."""
    return NotFound(
        f"The item {item_id!r:.100} does not exist.", code="item_not_found", param="item_id"
    )
