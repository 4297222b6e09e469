"""Input items: messages of text, read from a request and shown again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.protocol.content import read_content
from app.protocol.fields import Fields, join
from app.protocol.ids import MAX_ID_CHARS, new_id
from engine.contract import InvalidRequest, Message

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_PART_TYPES = {"assistant": ("output_text", "input_text")}
_INPUT_PART = ("input_text",)
# What the server shows may be sent back; `phase` labels an answer, and changes nothing.
_FIELDS = ("id", "type", "role", "content", "status", "phase")
MAX_INPUT_ITEMS = 5000


@dataclass(frozen=True, slots=True)
class InputItem:
    """One message; the role is as the client named it."""

    item_id: str
    role: str
    text: str

    @property
    def message(self) -> Message:
        """The turn as the engine reads it."""
        return Message(_ROLES[self.role], self.text)

    def to_wire(self) -> list[str]:
        """For the store."""
        return [self.item_id, self.role, self.text]

    @classmethod
    def from_wire(cls, wire: list[str]) -> InputItem:
        """Inverse of `to_wire`."""
        return cls(*wire)


def read_input(fields: Fields) -> tuple[InputItem, ...]:
    """`input`: a string, which is a user's message, or an array of messages.

    Raises:
        InvalidRequest: naming the item and its field.
    """
    value = fields.get("input")
    if value is None:
        return ()
    if isinstance(value, str):
        return (InputItem(new_id("msg_"), "user", value),)
    values = fields.array("input") or []
    if len(values) > MAX_INPUT_ITEMS:
        raise InvalidRequest(
            f"input holds at most {MAX_INPUT_ITEMS} items, got {len(values)}.", param="input"
        )
    path = fields.param("input")
    return tuple(_read_item(Fields.of(v, join(path, i))) for i, v in enumerate(values))


def _read_item(fields: Fields) -> InputItem:
    kind = fields.string("type")
    if kind not in (None, "message"):
        raise InvalidRequest(
            f"{fields.param('type')} must be 'message', got {kind[:40]!r}.",
            code="unsupported_item",
            param=fields.param("type"),
        )
    fields.only(_FIELDS)
    role = fields.required_string("role")
    if role not in _ROLES:
        raise InvalidRequest(
            f"{fields.param('role')} must be one of {', '.join(_ROLES)}, got {role[:40]!r}.",
            param=fields.param("role"),
        )
    part_types = _PART_TYPES.get(role, _INPUT_PART)
    text = read_content(fields.get("content"), fields.param("content"), part_types)
    return InputItem(fields.string("id", MAX_ID_CHARS) or new_id("msg_"), role, text)


def input_object(item: InputItem) -> dict[str, Any]:
    """An input item as the wire shows it."""
    if item.role == "assistant":
        return output_object(item.item_id, item.text, "completed")
    return {
        "id": item.item_id,
        "type": "message",
        "status": "completed",
        "role": item.role,
        "content": [{"type": "input_text", "text": item.text}],
    }


def output_object(item_id: str, text: str | None, status: str) -> dict[str, Any]:
    """An answer's item; None while it has no content yet."""
    return {
        "id": item_id,
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": [] if text is None else [text_part(text)],
    }


def text_part(text: str) -> dict[str, Any]:
    """A part of an answer."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
