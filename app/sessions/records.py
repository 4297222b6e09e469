"""What the store hands out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from engine.contract import Event, Finished, FinishReason


@dataclass(frozen=True, slots=True)
class Item:
    """One message of a conversation.

    Attributes:
        item_id: Unique in its conversation.
        role: system, user or assistant.
        text: All of it.
        status: completed or incomplete.
        created_at: Unix seconds.
        response_id: The response that made it; None for a client's item.
        reason: Why an incomplete answer ended: a `FinishReason` or failed; None if it is
            complete or was cut later.
    """

    item_id: str
    role: str
    text: str
    status: str = "completed"
    created_at: float = 0.0
    response_id: str | None = None
    reason: str | None = None

    def to_wire(self) -> dict[str, Any]:
        return {
            "id": self.item_id,
            "role": self.role,
            "text": self.text,
            "status": self.status,
            "created_at": self.created_at,
            "response_id": self.response_id or "",
            "reason": self.reason or "",
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Item:
        return cls(
            item_id=wire["id"],
            role=wire["role"],
            text=wire["text"],
            status=wire["status"],
            created_at=wire["created_at"],
            response_id=wire["response_id"] or None,
            # Items stored by earlier versions have none.
            reason=wire.get("reason") or None,
        )


def end_reason(last: Event | None) -> str | None:
    """Why an answer that ends with this event is incomplete; None if it is not.

    Args:
        last: The last event there is; one that is not terminal ends nothing by itself.
    """
    if not isinstance(last, Finished):
        return "failed"
    return None if last.reason is FinishReason.STOP else last.reason.value


@dataclass(frozen=True, slots=True)
class AddedItem:
    """What became of an add.

    Attributes:
        item_id: The item's id; another than asked for if this send had made one before.
        previous_item_id: The item before it; None for the first.
        version: The conversation's, afterwards.
        created: False for a send that was repeated.
        title: The title that the conversation got with it; None if it has one, or none.
    """

    item_id: str
    previous_item_id: str | None
    version: int
    created: bool
    title: str | None = None


@dataclass(frozen=True, slots=True)
class ActiveResponse:
    """The response that may write to the conversation.

    Attributes:
        response_id: Its id, and its log's.
        item_id: The item that its answer becomes.
        previous_item_id: The item that the answer follows; None if there was none.
        deadline_at: Unix seconds.
        asked: What it was asked to be, as the edge stored it.
        began_at: Unix seconds.
    """

    response_id: str
    item_id: str
    previous_item_id: str | None
    deadline_at: float
    asked: Mapping[str, Any] = field(default_factory=dict)
    began_at: float = 0.0


@dataclass(frozen=True, slots=True)
class TurnBound:
    """The most that turns may take to be read.

    Attributes:
        text_bytes: All of them together.
        item_bytes: Each of them besides.
    """

    text_bytes: int
    item_bytes: int


@dataclass(frozen=True, slots=True)
class StoredTurns:
    """A conversation's turns as of one moment.

    Attributes:
        num_items: How many.
        num_bytes: As stored.
        items: First to last; None if they are beyond the bound.
    """

    num_items: int
    num_bytes: int
    items: tuple[Item, ...] | None

    @classmethod
    def of_reply(cls, reply: Sequence[Any]) -> StoredTurns:
        """Of what a script says: their number, their bytes, each as JSON."""
        num_items, num_bytes, bodies = reply
        if num_items > len(bodies):
            return cls(num_items, num_bytes, None)
        items = tuple(Item.from_wire(orjson.loads(body)) for body in bodies)
        return cls(num_items, num_bytes, items)


@dataclass(frozen=True, slots=True)
class Begun:
    """A response has become the one that may write.

    Attributes:
        previous_item_id: The item that the answer follows; None in an empty conversation.
        turns: What it answers.
    """

    previous_item_id: str | None
    turns: StoredTurns


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation as of one moment.

    Attributes:
        session_id: Its id.
        version: Rises with every change.
        tenant: Whose it is.
        settings: As the edge stored them.
        items: First to last.
        active: The running response, if any.
        created_at: Unix seconds.
        updated_at: Unix seconds.
        title: Given by a person, or made of the first message; None before that.
    """

    session_id: str
    version: int
    tenant: str
    settings: Mapping[str, Any]
    items: tuple[Item, ...]
    active: ActiveResponse | None
    created_at: float
    updated_at: float
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """Where a search found its words: an item, and the text around them."""

    item_id: str
    excerpt: str


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A conversation as a list shows it.

    Attributes:
        session_id: Its id.
        title: As `Session.title`.
        settings: As the edge stored them.
        num_items: How many it holds.
        is_running: Whether an answer is being made.
        created_at: Unix seconds.
        updated_at: Unix seconds.
        match: Where a search found its words, if not in the title.
    """

    session_id: str
    title: str | None
    settings: Mapping[str, Any]
    num_items: int
    is_running: bool
    created_at: float
    updated_at: float
    match: Match | None = None
