"""The contract's errors on the wire; the only place that maps them.

| where | shape |
|---|---|
| HTTP | status of the error's class, `{"error": {message, type, param, code}}` |
| event stream | `data: {"error": {...}}` after the headers went out as 200 |
| socket | `{"type": "error", "error": {type, code, message, param, event_id}}` |

Where a retry is worth it, the inner object says when: `repartee.retry_after_ms`.

The text of an `EngineFault` and of anything outside the contract is ours: it is
logged where it happened and replaced here.
"""

from __future__ import annotations

import math
from typing import Any

from engine.contract import EngineFault, InvalidRequest, NotFound, ReparteeError

INTERNAL_MESSAGE = "Something went wrong on our side; the request may be tried again."


class RequestTooLarge(InvalidRequest):
    """The body is longer than the gateway reads."""

    default_code = "request_too_large"
    http_status = 413
    close_code = 1009


class RequestHeadTooLarge(InvalidRequest):
    """Request line and headers are longer than the gateway reads."""

    default_code = "request_head_too_large"
    http_status = 431


class UnknownRoute(NotFound):
    """Nothing is served at this path."""

    default_code = "unknown_url"


class WrongMethod(InvalidRequest):
    """The path is served, but not with this method."""

    default_code = "method_not_allowed"
    http_status = 405


class UpgradeRequired(InvalidRequest):
    """The path is served only as a WebSocket."""

    default_code = "upgrade_required"
    http_status = 426


def public(error: BaseException) -> ReparteeError:
    """What a client may be told of `error`."""
    if isinstance(error, ReparteeError) and type(error) not in (EngineFault, ReparteeError):
        return error
    code = error.code if isinstance(error, ReparteeError) else None
    return EngineFault(INTERNAL_MESSAGE, code=code)


def error_object(error: BaseException) -> dict[str, Any]:
    """The inner object of OpenAI's error JSON."""
    known = public(error)
    shown: dict[str, Any] = {
        "message": known.message,
        "type": known.type,
        "param": known.param,
        "code": known.code,
    }
    if known.retry_after_ms is not None:
        shown["repartee.retry_after_ms"] = known.retry_after_ms
    return shown


def error_body(error: BaseException) -> dict[str, Any]:
    """OpenAI's error JSON, for an HTTP answer or inside an event stream."""
    return {"error": error_object(error)}


def http_headers(error: BaseException) -> dict[str, str]:
    """When to retry, where the error says it: in whole seconds, and for the SDK in ms."""
    known = public(error)
    if known.retry_after_ms is None:
        return {}
    return {
        "retry-after": str(max(1, math.ceil(known.retry_after_ms / 1000))),
        "retry-after-ms": str(known.retry_after_ms),
    }


def error_event(
    error: BaseException, event_id: str, client_event_id: str | None = None
) -> dict[str, Any]:
    """The socket's `error` event.

    Args:
        error: What went wrong.
        event_id: Id of the event itself.
        client_event_id: Id of the client's event that caused it.
    """
    return {
        "type": "error",
        "event_id": event_id,
        "error": {**error_object(error), "event_id": client_event_id},
    }
