"""One Realtime connection without its socket: frames in, commands and frames out.

It keeps what belongs to the connection alone: the settings that events are read
against, the ids of client events already applied, and the source of event ids.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.protocol.errors import error_event
from app.protocol.fields import Fields
from app.protocol.ids import event_ids
from app.protocol.json_codec import decode_object, encode, string_in
from app.protocol.realtime.commands import Command, read_command
from app.protocol.realtime.settings import SessionSettings, session_object
from engine.contract import InvalidRequest, ModelCard, ReparteeError

MAX_EVENT_ID_CHARS = 512
REMEMBERED_EVENTS = 1024
# One frame of a reopened conversation's items stays under this, or holds one item.
ITEMS_FRAME_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Received:
    """A client event that is to be carried out."""

    command: Command
    event_id: str | None


class RealtimeWire:
    """Reads client events and writes server events of one connection.

    Args:
        session_id: The session shown.
        settings: The session as it stands; `settings` is kept up by the owner.
        card: The session's model.
    """

    def __init__(self, session_id: str, settings: SessionSettings, card: ModelCard) -> None:
        self.session_id = session_id
        self.settings = settings
        self.card = card
        self.next_event_id = event_ids()
        self._seen: OrderedDict[str, None] = OrderedDict()

    def receive(self, text: str) -> Received | bytes:
        """Read one text frame.

        Returns:
            The command, or the `error` frame that answers the event.
        """
        try:
            fields = Fields(decode_object(text))
        except ReparteeError as error:
            named = string_in(text, "event_id")
            is_short = named is not None and len(named) <= MAX_EVENT_ID_CHARS
            return self.error(error, named if is_short else None)
        event_id: str | None = None
        try:
            event_id = fields.string("event_id", MAX_EVENT_ID_CHARS)
            kind = fields.required_string("type")
            self._check_new(event_id)
            return Received(read_command(kind, fields, self.settings, self.card), event_id)
        except ReparteeError as error:
            return self.error(error, event_id)

    def _check_new(self, event_id: str | None) -> None:
        """Refuse an event id seen before: a client that sends again applies nothing twice."""
        if event_id is None:
            return
        if event_id in self._seen:
            raise InvalidRequest(
                "An event with this event_id was received before; it was not applied again.",
                code="duplicate_event",
                param="event_id",
            )
        self._seen[event_id] = None
        if len(self._seen) > REMEMBERED_EVENTS:
            self._seen.popitem(last=False)

    def event(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        """A server event as JSON text."""
        return encode({"type": kind, "event_id": self.next_event_id(), **fields})

    def error(self, error: BaseException, event_id: str | None) -> bytes:
        """An `error` event; `event_id` is that of the client's event behind it."""
        return encode(error_event(error, self.next_event_id(), event_id))

    @property
    def conversation_id(self) -> str:
        """The default conversation; a session has one."""
        return "conv_" + self.session_id.removeprefix("sess_")

    def updated(self) -> bytes:
        """`session.updated` with the whole session."""
        return self.event(
            "session.updated", {"session": session_object(self.session_id, self.settings)}
        )

    def opened(
        self,
        items: list[dict[str, Any]],
        title: str | None,
        resume: str | None = None,
        tier: str | None = None,
    ) -> list[bytes]:
        """The greeting: `session.created`, which carries a reopened conversation's items.

        The private field `repartee.items` holds as many as fit ITEMS_FRAME_BYTES; the
        others follow in `repartee.items` events. `repartee.items_remaining` counts what
        is still to come.

        Args:
            items: The items.
            title: The conversation's, if it has one.
            resume: What became of the response that the client comes back for.
            tier: Whose turn it is when many ask.
        """
        private = {"repartee.resume": resume, "repartee.tier": tier}
        extra = {name: value for name, value in private.items() if value is not None}
        return self._whole("session.created", items, title, extra)

    def resynced(self, items: list[dict[str, Any]], title: str | None) -> list[bytes]:
        """The same under the name `repartee.resynced`: changes made elsewhere were missed,
        and this is all that holds now."""
        return self._whole("repartee.resynced", items, title, {})

    def _whole(
        self,
        kind: str,
        items: list[dict[str, Any]],
        title: str | None,
        extra: Mapping[str, Any],
    ) -> list[bytes]:
        session = session_object(self.session_id, self.settings)
        pages = _pages(items)
        remaining = len(items) - len(pages[0])
        frames = [
            self.event(
                kind,
                {
                    "session": session,
                    "repartee.title": title,
                    "repartee.items": pages[0],
                    "repartee.items_remaining": remaining,
                    **extra,
                },
            )
        ]
        for page in pages[1:]:
            remaining -= len(page)
            frames.append(
                self.event(
                    "repartee.items",
                    {"repartee.items": page, "repartee.items_remaining": remaining},
                )
            )
        return frames

    def truncated(self, item_id: str, text_end: int, audio_end_ms: int = 0) -> bytes:
        """`conversation.item.truncated`."""
        fields = {
            "item_id": item_id,
            "content_index": 0,
            "audio_end_ms": audio_end_ms,
            "repartee.text_end": text_end,
        }
        return self.event("conversation.item.truncated", fields)

    def conversation_truncated(self, item_id: str | None, deleted_ids: Sequence[str]) -> bytes:
        """`repartee.conversation.truncated`: nothing is left after this item."""
        fields = {"item_id": item_id or "root", "deleted_item_ids": list(deleted_ids)}
        return self.event("repartee.conversation.truncated", fields)

    def item(self, kind: str, item: dict[str, Any], previous_item_id: str | None) -> bytes:
        """`conversation.item.added` or `conversation.item.done`."""
        return self.event(kind, {"previous_item_id": previous_item_id, "item": item})

    def created_item(
        self, item: dict[str, Any], previous_item_id: str | None, title: str | None
    ) -> list[bytes]:
        """Both events of an item that a client made.

        Args:
            item: The item.
            previous_item_id: The one before it.
            title: The title that the conversation got with it; the private field
                `repartee.title` of the first event.
        """
        added: dict[str, Any] = {"previous_item_id": previous_item_id, "item": item}
        if title is not None:
            added["repartee.title"] = title
        return [
            self.event("conversation.item.added", added),
            self.item("conversation.item.done", item, previous_item_id),
        ]


def _pages(items: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """`items` in order, cut into at least one page of bounded size."""
    pages: list[list[dict[str, Any]]] = [[]]
    size = 0
    for item in items:
        item_bytes = len(encode(item))
        if pages[-1] and size + item_bytes > ITEMS_FRAME_BYTES:
            pages.append([])
            size = 0
        pages[-1].append(item)
        size += item_bytes
    return pages
