"""A response's events on the Realtime wire: order, shapes, cursor."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from app.protocol.ids import item_id_of
from app.protocol.realtime.response import ResponseView
from app.protocol.realtime.settings import SessionSettings
from app.protocol.realtime.wire import RealtimeWire
from engine.contract import (
    Cursor,
    EngineFault,
    Failed,
    Finished,
    FinishReason,
    Overloaded,
    Usage,
)
from tests.protocol.cards import CARD

USAGE = Usage(31, 5, 16)
ITEM_EVENTS = [
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
]
END_EVENTS = [
    "response.output_text.done",
    "response.content_part.done",
    "conversation.item.done",
    "response.output_item.done",
    "response.done",
]


def make_view(**options: Any) -> ResponseView:
    wire = RealtimeWire("sess_1", SessionSettings(CARD.id), CARD)
    options = {"in_conversation": True, "previous_item_id": "item_u", **options}
    return ResponseView(wire, "resp_1", **options)


def finished(reason: FinishReason = FinishReason.STOP) -> Finished:
    return Finished("resp_1", 2, 9, reason, USAGE)


def events_of(*frames: bytes) -> list[dict[str, Any]]:
    return [orjson.loads(frame) for frame in frames]


def test_a_turn_in_order() -> None:
    view = make_view(metadata={"a": "b"}, max_output_tokens=7)
    frames = [view.created(), *view.opening(), view.delta("He", Cursor(1, 1))]
    frames += [view.delta('l"\n🐕', Cursor(1, 2)), *view.ended(finished(), 'Hel"\n🐕')]
    events = events_of(*frames)
    delta = "response.output_text.delta"
    assert [event["type"] for event in events] == [
        "response.created",
        *ITEM_EVENTS,
        delta,
        delta,
        *END_EVENTS,
    ]
    assert len({event["event_id"] for event in events}) == len(events)
    created = events[0]["response"]
    assert (created["id"], created["status"], created["output"]) == ("resp_1", "in_progress", [])
    assert (created["metadata"], created["max_output_tokens"]) == ({"a": "b"}, 7)
    assert created["conversation_id"] == "conv_1"
    assert created["usage"] is None


def test_deltas_carry_place_and_cursor() -> None:
    (event,) = events_of(make_view().delta("x", Cursor(3, 14)))
    assert event == {
        "type": "response.output_text.delta",
        "event_id": event["event_id"],
        "response_id": "resp_1",
        "item_id": "item_1",
        "output_index": 0,
        "content_index": 0,
        "delta": "x",
        "repartee.cursor": {"epoch": 3, "seq": 14},
    }


def test_usg_02_done_has_the_item_and_the_counts() -> None:
    view = make_view()
    view.opening()
    text, part, added, item, done = events_of(*view.ended(finished(), "Hi"))
    whole = {
        "id": "item_1",
        "object": "realtime.item",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Hi"}],
    }
    assert text["text"] == "Hi"
    assert part["part"] == {"type": "text", "text": "Hi"}
    assert added["item"] == item["item"] == whole
    assert added["previous_item_id"] == "item_u"
    response = done["response"]
    assert (response["status"], response["status_details"]) == ("completed", None)
    assert response["output"] == [whole]
    assert response["usage"] == {
        "total_tokens": 36,
        "input_tokens": 31,
        "output_tokens": 5,
        "input_token_details": {"cached_tokens": 16, "text_tokens": 31, "audio_tokens": 0},
        "output_token_details": {"text_tokens": 5, "audio_tokens": 0},
    }
    assert done["repartee.cursor"] == {"epoch": 2, "seq": 9}


@pytest.mark.parametrize(
    ("event", "status", "details"),
    [
        (
            finished(FinishReason.LENGTH),
            "incomplete",
            {"type": "incomplete", "reason": "max_output_tokens"},
        ),
        (
            finished(FinishReason.CANCELLED),
            "cancelled",
            {"type": "cancelled", "reason": "client_cancelled"},
        ),
    ],
)
def test_ctx_04_other_ends(event: Finished, status: str, details: dict[str, str]) -> None:
    view = make_view()
    view.opening()
    done = events_of(*view.ended(event, "Hal"))[-1]
    assert done["response"]["status"] == status
    assert done["response"]["status_details"] == details
    assert done["response"]["output"][0]["status"] == "incomplete"


def test_a_failure_tells_what_it_may() -> None:
    view = make_view()
    view.opening()
    failed = Failed("resp_1", 1, 3, EngineFault("secret"), USAGE)
    done = events_of(*view.ended(failed, "Hal"))[-1]["response"]
    assert done["status"] == "failed"
    assert done["status_details"]["error"]["code"] == "engine_fault"
    assert "secret" not in str(done)
    assert done["output"][0]["content"][0]["text"] == "Hal"
    assert done["usage"]["output_tokens"] == 5


@pytest.mark.parametrize(
    "event", [Failed("resp_1", 1, 1, Overloaded("full")), finished(FinishReason.CANCELLED)]
)
def test_an_end_before_the_first_text_leaves_no_item(event: Finished | Failed) -> None:
    (done,) = events_of(*make_view().ended(event, ""))
    assert done["type"] == "response.done"
    assert done["response"]["output"] == []


def test_a_natural_end_without_text_has_an_empty_item() -> None:
    events = events_of(*make_view().ended(finished(), ""))
    assert [event["type"] for event in events] == [*ITEM_EVENTS, *END_EVENTS]
    assert events[-1]["response"]["output"][0]["content"] == [{"type": "output_text", "text": ""}]


def test_out_of_band_has_no_conversation() -> None:
    view = make_view(in_conversation=False)
    events = events_of(view.created(), *view.opening(), *view.ended(finished(), "x"))
    assert not [event for event in events if event["type"].startswith("conversation.")]
    assert events[0]["response"]["conversation_id"] is None


@pytest.mark.parametrize("text", ["so far", None])
def test_res_01_a_snapshot_precedes_the_tail(text: str | None) -> None:
    view = make_view()
    (event,) = events_of(view.resumed(text, Cursor(2, 7)))
    assert event["type"] == "repartee.response.resumed"
    assert (event["state"], event["item_id"], event["text"]) == ("live", "item_1", text)
    assert event["repartee.cursor"] == {"epoch": 2, "seq": 7}
    ended = events_of(*view.ended(finished(), "so far and on"))
    assert [e["type"] for e in ended] == END_EVENTS


def test_an_item_is_named_after_its_response() -> None:
    assert item_id_of("resp_abc") == "item_abc"
