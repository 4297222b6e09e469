"""Errors on the wire: shapes, and what never leaves."""

from __future__ import annotations

import pytest

from app.protocol.errors import (
    INTERNAL_MESSAGE,
    RequestTooLarge,
    error_body,
    error_event,
    http_headers,
    public,
)
from engine.contract import (
    EngineFault,
    InvalidRequest,
    NotFound,
    Overloaded,
    ReparteeError,
    Unavailable,
)


def test_a_known_error_keeps_its_text() -> None:
    error = InvalidRequest("top_p is wrong.", param="top_p")
    assert error_body(error) == {
        "error": {
            "message": "top_p is wrong.",
            "type": "invalid_request_error",
            "param": "top_p",
            "code": "invalid_value",
        }
    }


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("secret path /root/x"), "engine_fault"),
        (EngineFault("CUDA error at secret"), "engine_fault"),
        (EngineFault("secret", code="nan_logits"), "nan_logits"),
        (ReparteeError("secret"), "internal_error"),
    ],
)
def test_internal_detail_stays_inside(error: Exception, code: str) -> None:
    body = error_body(error)["error"]
    assert (body["message"], body["code"]) == (INTERNAL_MESSAGE, code)
    assert public(error).http_status == 500


def test_socket_errors_name_the_client_event() -> None:
    event = error_event(NotFound("No such item.", param="item_id"), "event_1", "mine")
    assert event["type"] == "error"
    assert event["event_id"] == "event_1"
    assert event["error"]["event_id"] == "mine"
    assert event["error"]["param"] == "item_id"


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (Unavailable("later"), {}),
        (Overloaded("full", retry_after_ms=200), {"retry-after": "1", "retry-after-ms": "200"}),
        (Overloaded("full", retry_after_ms=2001), {"retry-after": "3", "retry-after-ms": "2001"}),
    ],
)
def test_retry_after_is_whole_seconds(error: ReparteeError, headers: dict[str, str]) -> None:
    assert http_headers(error) == headers


def test_an_error_worth_a_retry_says_when() -> None:
    error = Overloaded("full", retry_after_ms=200)
    assert error_body(error)["error"]["repartee.retry_after_ms"] == 200
    assert error_event(error, "event_1")["error"]["repartee.retry_after_ms"] == 200


def test_statuses_of_the_edge() -> None:
    assert RequestTooLarge("long").http_status == 413
