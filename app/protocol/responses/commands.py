"""Client events of `/v1/responses` as a WebSocket: response.create, and to end one.

A create carries the body of a POST, and may name a lane: `stream_id`, 1 to 256
letters, digits, dots, dashes and underscores. `response.cancel` is an extension; without
a `response_id` it means what runs on its lane.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from app.protocol.fields import Fields
from app.protocol.ids import MAX_ID_CHARS
from app.protocol.responses.request import ResponsesRequest, read_responses_request
from engine.contract import InvalidRequest, ModelCard

_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")


@dataclass(frozen=True, slots=True)
class Create:
    """Make a response on a lane; None is the lane without a name."""

    request: ResponsesRequest
    stream_id: str | None


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a response, or whatever runs on a lane."""

    response_id: str | None
    stream_id: str | None


def read_stream_id(fields: Fields) -> str | None:
    """The lane that an event names.

    Raises:
        InvalidRequest: it can't be one's name.
    """
    stream_id = fields.string("stream_id")
    if stream_id is not None and not _STREAM_ID.fullmatch(stream_id):
        raise InvalidRequest(
            "stream_id must have 1 to 256 letters, digits, dots, dashes or underscores.",
            code="invalid_stream_id",
            param="stream_id",
        )
    return stream_id


def read_event(
    fields: Fields, stream_id: str | None, card_of: Callable[[str | None], ModelCard]
) -> Create | Cancel:
    """Read a client event.

    Raises:
        InvalidRequest: for an unknown type, or naming the wrong field.
    """
    kind = fields.required_string("type")
    if kind == "response.cancel":
        fields.only(("type", "event_id", "response_id", "stream_id"))
        return Cancel(fields.string("response_id", MAX_ID_CHARS), stream_id)
    if kind != "response.create":
        raise InvalidRequest(
            f"Unknown event type: {kind[:64]!r}.", code="unknown_event_type", param="type"
        )
    envelope = ("type", "event_id", "stream_id", "stream")
    body = {name: value for name, value in fields.source.items() if name not in envelope}
    request = read_responses_request(Fields(body), card_of, is_socket=True)
    if request.is_background:
        raise InvalidRequest(
            "background is not for WebSockets: a stored response goes on without its socket.",
            code="unsupported_parameter",
            param="background",
        )
    return Create(request, stream_id)
