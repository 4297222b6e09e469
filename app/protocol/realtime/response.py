"""One response's engine events as Realtime server events.

The order for a turn: response.created; with the first text response.output_item.added,
conversation.item.added, response.content_part.added; then the deltas; at the end
response.output_text.done, response.content_part.done, conversation.item.done,
response.output_item.done, response.done. An answer that ends without a completed text
before its first character has no item: its `output` is empty. A response outside the
conversation has no conversation.item events.

Every delta and response.done carries `repartee.cursor {epoch, seq}`, the place in the
response's log after which to resume.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from app.protocol.errors import error_object
from app.protocol.ids import item_id_of
from app.protocol.realtime.items import item_object
from app.protocol.realtime.settings import limit_to_wire
from app.protocol.realtime.wire import RealtimeWire
from engine.contract import Cursor, Failed, Finished, FinishReason, Usage

_STATUS = {
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "incomplete",
    FinishReason.CANCELLED: "cancelled",
}
_REASONS: dict[str, str] = {
    FinishReason.LENGTH: "max_output_tokens",
    FinishReason.CANCELLED: "client_cancelled",
}
_FAILED = "failed"


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts in the shape of the Realtime API."""
    return {
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "input_token_details": {
            "cached_tokens": usage.cached_tokens,
            "text_tokens": usage.prompt_tokens,
            "audio_tokens": 0,
        },
        "output_token_details": {"text_tokens": usage.completion_tokens, "audio_tokens": 0},
    }


class ResponseView:
    """A response as one connection sees it.

    Args:
        wire: The connection; gives event ids.
        response_id: The response's id.
        in_conversation: Whether its item joins the default conversation.
        previous_item_id: The item before its own in the conversation.
        max_output_tokens: Shown in the response object.
        metadata: Given back in the response object.
    """

    def __init__(
        self,
        wire: RealtimeWire,
        response_id: str,
        *,
        in_conversation: bool,
        previous_item_id: str | None = None,
        max_output_tokens: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self._wire = wire
        self.response_id = response_id
        self.item_id = item_id_of(response_id)
        self._in_conversation = in_conversation
        self._previous_item_id = previous_item_id
        self._max_output_tokens = max_output_tokens
        self._metadata = metadata
        self.is_open = False
        ids = {"response_id": response_id, "item_id": self.item_id}
        self._place = {**ids, "output_index": 0, "content_index": 0}
        self._delta_head = (
            b'{"type":"response.output_text.delta",'
            + orjson.dumps(self._place)[1:-1]
            + b',"event_id":"'
        )

    def lose_previous(self, item_id: str, previous_item_id: str | None) -> None:
        """An item was deleted: if the answer was to follow it, it follows what was before."""
        if self._previous_item_id == item_id:
            self._previous_item_id = previous_item_id

    def created(self, num_ahead: int | None = None) -> bytes:
        """`response.created`.

        Args:
            num_ahead: Requests that wait before it, about; the private field `repartee.ahead`.
        """
        response = self._response("in_progress", None, [], None)
        if num_ahead is not None:
            response["repartee.ahead"] = num_ahead
        return self._wire.event("response.created", {"response": response})

    def opening(self) -> list[bytes]:
        """What precedes the first delta."""
        self.is_open = True
        item = item_object(self.item_id, "assistant", None, "in_progress")
        head = {"response_id": self.response_id, "output_index": 0, "item": item}
        frames = [self._wire.event("response.output_item.added", head)]
        if self._in_conversation:
            frames.append(self._wire.item("conversation.item.added", item, self._previous_item_id))
        part = {"type": "text", "text": ""}
        frames.append(
            self._wire.event("response.content_part.added", {**self._place, "part": part})
        )
        return frames

    def delta(self, text: str, cursor: Cursor) -> bytes:
        """`response.output_text.delta`; `cursor` is that of the last event in `text`."""
        return (
            self._delta_head
            + self._wire.next_event_id().encode()
            + b'","delta":'
            + orjson.dumps(text)
            + b',"repartee.cursor":{"epoch":%d,"seq":%d}}' % cursor
        )

    def resumed(self, text: str | None, cursor: Cursor) -> bytes:
        """The private event that precedes the tail of a response already running.

        Args:
            text: All text up to `cursor`; None if the client has it.
            cursor: The deltas that follow come after this place.
        """
        self.is_open = True
        return self._wire.event(
            "repartee.response.resumed",
            {
                "state": "live",
                "response": self._response("in_progress", None, [], None),
                "item_id": self.item_id,
                "previous_item_id": self._previous_item_id,
                "text": text,
                "repartee.cursor": cursor._asdict(),
            },
        )

    def ended(self, event: Finished | Failed, text: str) -> list[bytes]:
        """All frames of the end.

        Args:
            event: The terminal event.
            text: The whole answer.
        """
        frames: list[bytes] = []
        if self.has_item(event, text) and not self.is_open:
            frames += self.opening()
        status, details = _outcome(event)
        output: list[dict[str, Any]] = []
        if self.is_open:
            reason = item_reason(event.reason if isinstance(event, Finished) else _FAILED)
            item = item_object(self.item_id, "assistant", text, item_status(event), reason)
            output.append(item)
            frames += self._closing(item, text)
        response = self._response(status, details, output, event.usage)
        cursor = Cursor(event.epoch, event.seq)._asdict()
        done: dict[str, Any] = {"response": response, "repartee.cursor": cursor}
        if isinstance(event, Finished):
            done["repartee.queued_ms"] = event.queued_ms
        frames.append(self._wire.event("response.done", done))
        return frames

    @staticmethod
    def has_item(event: Finished | Failed, text: str) -> bool:
        """Whether the response leaves an item: any text, or a natural end without one."""
        return bool(text) or (
            isinstance(event, Finished) and event.reason is not FinishReason.CANCELLED
        )

    def _closing(self, item: dict[str, Any], text: str) -> list[bytes]:
        wire = self._wire
        part = {"type": "text", "text": text}
        frames = [
            wire.event("response.output_text.done", {**self._place, "text": text}),
            wire.event("response.content_part.done", {**self._place, "part": part}),
        ]
        if self._in_conversation:
            frames.append(wire.item("conversation.item.done", item, self._previous_item_id))
        head = {"response_id": self.response_id, "output_index": 0, "item": item}
        frames.append(wire.event("response.output_item.done", head))
        return frames

    def _response(
        self,
        status: str,
        details: dict[str, Any] | None,
        output: list[dict[str, Any]],
        usage: Usage | None,
    ) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "object": "realtime.response",
            "status": status,
            "status_details": details,
            "output": output,
            "output_modalities": ["text"],
            "conversation_id": self._wire.conversation_id if self._in_conversation else None,
            "max_output_tokens": limit_to_wire(self._max_output_tokens),
            "metadata": self._metadata,
            "usage": None if usage is None else usage_object(usage),
        }


def item_status(event: Finished | Failed) -> str:
    """Status of the item that a response leaves."""
    stopped = isinstance(event, Finished) and event.reason is FinishReason.STOP
    return "completed" if stopped else "incomplete"


def item_reason(ended_by: str | None) -> str | None:
    """`repartee.reason` of an answer's item; None for a complete one.

    Args:
        ended_by: The `FinishReason` that ended it, failed, or None.
    """
    return _FAILED if ended_by == _FAILED else _REASONS.get(ended_by or "")


def _outcome(event: Finished | Failed) -> tuple[str, dict[str, Any] | None]:
    """`status` and `status_details` of a response's end."""
    if isinstance(event, Failed):
        return "failed", {"type": "failed", "error": error_object(event.error)}
    status = _STATUS[event.reason]
    if event.reason is FinishReason.STOP:
        return status, None
    return status, {"type": status, "reason": _REASONS[event.reason]}
