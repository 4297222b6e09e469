"""Conversation items: messages of system, user and assistant, text only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.protocol.content import read_content
from app.protocol.fields import Fields
from app.protocol.ids import MAX_ID_CHARS
from engine.contract import InvalidRequest, Message

_PART_TYPES = {
    "system": ("input_text",),
    "user": ("input_text",),
    "assistant": ("output_text", "text"),
}
# What the server shows may be sent back.
_ITEM_FIELDS = ("id", "object", "type", "role", "content", "status", "repartee.reason")


@dataclass(frozen=True, slots=True)
class NewItem:
    """A message to put into a conversation; the server makes the id if it is None."""

    item_id: str | None
    role: str
    text: str

    @property
    def message(self) -> Message:
        """The turn as the engine reads it."""
        return Message(self.role, self.text)


@dataclass(frozen=True, slots=True)
class ItemReference:
    """An item of the conversation, by id."""

    item_id: str
    param: str


def read_item(fields: Fields) -> NewItem:
    """Read a message item.

    Raises:
        InvalidRequest: naming the field; items other than messages are not supported.
    """
    kind = fields.required_string("type")
    if kind != "message":
        raise InvalidRequest(
            f"{fields.param('type')} must be 'message', got {kind[:40]!r}.",
            code="unsupported_item",
            param=fields.param("type"),
        )
    fields.only(_ITEM_FIELDS)
    role = fields.required_string("role")
    if role not in _PART_TYPES:
        raise InvalidRequest(
            f"{fields.param('role')} must be one of {', '.join(_PART_TYPES)}, got {role[:40]!r}.",
            param=fields.param("role"),
        )
    item_id = fields.string("id", MAX_ID_CHARS)
    if item_id is not None and (item_id in ("", "root") or not item_id.isprintable()):
        raise InvalidRequest(
            f"{fields.param('id')} must be printable, not empty and not 'root'.",
            param=fields.param("id"),
        )
    text = read_content(fields.get("content"), fields.param("content"), _PART_TYPES[role])
    return NewItem(item_id, role, text)


def read_input(fields: Fields) -> NewItem | ItemReference:
    """Read one element of a response's `input`: a message, or a reference to an item."""
    if fields.get("type") != "item_reference":
        return read_item(fields)
    fields.only(("type", "id"))
    return ItemReference(fields.required_string("id", MAX_ID_CHARS), fields.param("id"))


def item_object(
    item_id: str, role: str, text: str | None, status: str, reason: str | None = None
) -> dict[str, Any]:
    """An item as the wire shows it.

    Args:
        item_id: Its id.
        role: system, user or assistant.
        text: Its text; None while an answer has no content yet.
        status: in_progress, completed or incomplete.
        reason: Why an answer is incomplete; the private field `repartee.reason`.
    """
    part_type = "output_text" if role == "assistant" else "input_text"
    item = {
        "id": item_id,
        "object": "realtime.item",
        "type": "message",
        "status": status,
        "role": role,
        "content": [] if text is None else [{"type": part_type, "text": text}],
    }
    if reason is not None:
        item["repartee.reason"] = reason
    return item
