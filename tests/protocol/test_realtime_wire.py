"""Client events of the Realtime API: right ones become commands, wrong ones one error each."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from app.protocol.realtime.commands import (
    CancelResponse,
    Command,
    CreateItem,
    CreateResponse,
    DeleteItem,
    Ping,
    RetrieveItem,
    TruncateItem,
    UpdateSession,
)
from app.protocol.realtime.items import ItemReference, NewItem
from app.protocol.realtime.settings import SessionSettings
from app.protocol.realtime.wire import (
    ITEMS_FRAME_BYTES,
    REMEMBERED_EVENTS,
    RealtimeWire,
    Received,
)
from engine.contract import InvalidRequest, SamplingParams
from tests.protocol.cards import CARD

PART = {"type": "input_text", "text": "Hi"}
ITEM = {"type": "message", "role": "user", "content": [PART]}


def make_wire(settings: SessionSettings | None = None) -> RealtimeWire:
    return RealtimeWire("sess_1", settings or SessionSettings(CARD.id), CARD)


def command(kind: str, *, settings: SessionSettings | None = None, **fields: Any) -> Command:
    received = make_wire(settings).receive(json.dumps({"type": kind, **fields}))
    assert isinstance(received, Received), received
    return received.command


def error(kind: str, **fields: Any) -> dict[str, Any]:
    frame = make_wire().receive(json.dumps({"type": kind, "event_id": "e-77", **fields}))
    assert isinstance(frame, bytes), frame
    event: dict[str, Any] = orjson.loads(frame)
    assert event["type"] == "error"
    assert event["error"]["event_id"] == "e-77"
    found: dict[str, Any] = event["error"]
    return found


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("", "invalid_json"),
        (" ", "invalid_json"),
        ("null", "invalid_json"),
        ("[]", "invalid_json"),
        ("5", "invalid_json"),
        ("{}", "missing_required_parameter"),
        ('{"type":5}', "invalid_type"),
        ('{"type":null}', "missing_required_parameter"),
        ('{"type":"no.such"}', "unknown_event_type"),
        ('{"type":"input_audio_buffer.append","audio":"x"}', "unknown_event_type"),
        ("[" * 20_000 + "]" * 20_000, "json_too_deep"),
        ('{"type":"repartee.ping","event_id":5}', "invalid_type"),
        ('{"type":"repartee.ping","event_id":"%s"}' % ("x" * 513), "invalid_value"),
        ('{"type":"repartee.ping","x":' + "[" * 300 + "]" * 300 + "}", "json_too_deep"),
        ('{"type":"repartee.ping","x":1}', "unknown_parameter"),
    ],
)
def test_frm_02_07_hostile_frames_get_one_coded_error(frame: str, code: str) -> None:
    answer = make_wire().receive(frame)
    assert isinstance(answer, bytes)
    event = orjson.loads(answer)
    assert (event["type"], event["error"]["code"]) == ("error", code)


@pytest.mark.parametrize("text", ["x\\ud83d", "\\ude00y"])
def test_frm_06_half_a_pair_names_the_field(text: str) -> None:
    frame = json.dumps({"type": "conversation.item.create", "item": ITEM}).replace("Hi", text)
    answer = make_wire().receive(frame)
    assert isinstance(answer, bytes)
    assert orjson.loads(answer)["error"]["param"] == "item.content.0.text"


@pytest.mark.parametrize(
    ("event_id", "named"), [("evt_1", "evt_1"), ("e" * 513, None), ("\ud83d", None), (5, None)]
)
def test_frm_11_half_a_pair_elsewhere_does_not_hide_the_event_id(
    event_id: object, named: str | None
) -> None:
    answer = make_wire().receive(json.dumps({"type": "x\ud83d", "event_id": event_id}))
    assert isinstance(answer, bytes)
    assert orjson.loads(answer)["error"]["event_id"] == named


def test_frm_09_an_event_is_applied_once() -> None:
    wire = make_wire()
    frame = '{"type":"repartee.ping","event_id":"same\\n"}'
    assert isinstance(wire.receive(frame), Received)
    again = wire.receive(frame)
    assert isinstance(again, bytes)
    assert orjson.loads(again)["error"]["code"] == "duplicate_event"
    for number in range(REMEMBERED_EVENTS):
        wire.receive(json.dumps({"type": "repartee.ping", "event_id": str(number)}))
    assert isinstance(wire.receive(frame), Received)


def test_frm_11_an_error_carries_the_client_event_id() -> None:
    assert error("response.create", response={"input": 5})["param"] == "response.input"


def test_events_without_an_id_may_repeat() -> None:
    wire = make_wire()
    assert isinstance(wire.receive('{"type":"repartee.ping"}'), Received)
    assert wire.receive('{"type":"repartee.ping"}') == Received(Ping(), None)


def test_items_are_created() -> None:
    assert command("conversation.item.create", item=ITEM) == CreateItem(
        NewItem(None, "user", "Hi"), None
    )
    item = {**ITEM, "id": "mine", "object": "realtime.item", "status": "completed"}
    assert command("conversation.item.create", item=item, previous_item_id="root") == CreateItem(
        NewItem("mine", "user", "Hi"), "root"
    )
    spoken = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "a"}, {"type": "text", "text": "b"}],
    }
    assert command("conversation.item.create", item=spoken) == CreateItem(
        NewItem(None, "assistant", "ab"), None
    )


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (None, "item"),
        (5, "item"),
        ({}, "item.type"),
        ({"type": "function_call"}, "item.type"),
        ({**ITEM, "role": None}, "item.role"),
        ({**ITEM, "role": "tool"}, "item.role"),
        ({**ITEM, "content": None}, "item.content"),
        ({**ITEM, "content": 5}, "item.content"),
        ({**ITEM, "content": [{"type": "input_audio", "audio": "x"}]}, "item.content.0"),
        ({**ITEM, "content": [{"type": "input_image"}]}, "item.content.0"),
        ({**ITEM, "content": [{"type": "output_text", "text": "x"}]}, "item.content.0"),
        ({**ITEM, "content": [{"type": "input_text"}]}, "item.content.0.text"),
        ({**ITEM, "id": "x" * 129}, "item.id"),
        ({**ITEM, "id": ""}, "item.id"),
        ({**ITEM, "id": "root"}, "item.id"),
        ({**ITEM, "id": "a\nb"}, "item.id"),
        ({**ITEM, "name": "x"}, "item.name"),
    ],
)
def test_tpl_01_02_wrong_items(item: object, param: str) -> None:
    assert error("conversation.item.create", item=item)["param"] == param


def test_ctx_05_a_hopeless_item_is_refused_by_size() -> None:
    item = {**ITEM, "content": "x" * (CARD.max_token_bytes * CARD.context_window)}
    assert error("conversation.item.create", item=item)["code"] == "context_length_exceeded"


def test_items_are_named() -> None:
    assert command("conversation.item.retrieve", item_id="i") == RetrieveItem("i")
    assert command("conversation.item.delete", item_id="i") == DeleteItem("i")
    fields = {"item_id": "i", "content_index": 0, "audio_end_ms": 5, "repartee.text_end": 3}
    assert command("conversation.item.truncate", **fields) == TruncateItem("i", 3, 5)
    assert command(
        "conversation.item.truncate", item_id="i", **{"repartee.text_end": 0}
    ) == TruncateItem("i", 0, 0)


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        ("conversation.item.retrieve", {}, "item_id"),
        ("conversation.item.delete", {"item_id": 5}, "item_id"),
        ("conversation.item.truncate", {"item_id": "i", "audio_end_ms": 5}, "repartee.text_end"),
        (
            "conversation.item.truncate",
            {"item_id": "i", "repartee.text_end": -1},
            "repartee.text_end",
        ),
        (
            "conversation.item.truncate",
            {"item_id": "i", "repartee.text_end": 1, "content_index": 1},
            "content_index",
        ),
        ("conversation.item.truncate", {"repartee.text_end": 1}, "item_id"),
        ("session.update", {}, "session"),
        ("response.cancel", {"response_id": 5}, "response_id"),
    ],
)
def test_wrong_fields(kind: str, fields: dict[str, Any], param: str) -> None:
    assert error(kind, **fields)["param"] == param


def update(session: dict[str, Any], settings: SessionSettings) -> SessionSettings:
    updated = command("session.update", settings=settings, session=session)
    assert isinstance(updated, UpdateSession)
    return updated.settings


def test_a_session_is_updated_field_by_field() -> None:
    before = SessionSettings(CARD.id, "old", 5, {"temperature": 0.5, "seed": 1})
    assert update({"type": "realtime"}, before) == before
    assert update({"instructions": "new"}, before).instructions == "new"
    assert update({"instructions": None}, before).instructions == ""
    assert update({"max_output_tokens": "inf"}, before).max_output_tokens is None
    assert update({"max_output_tokens": 9}, before).max_output_tokens == 9
    assert update({"repartee": {"seed": None, "top_k": 5}}, before).sampling == {
        "temperature": 0.5,
        "top_k": 5,
    }
    assert update({"repartee": None}, before).sampling == {}
    echo = {
        "id": "sess_1",
        "object": "realtime.session",
        "model": CARD.id,
        "output_modalities": ["text"],
        "audio": {"input": {}},
        "tools": [],
        "truncation": "disabled",
        "tool_choice": "auto",
    }
    assert update(echo, before) == before


@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"type": "transcription"}, "session.type"),
        ({"output_modalities": ["audio"]}, "session.output_modalities"),
        ({"output_modalities": "text"}, "session.output_modalities"),
        ({"model": "other"}, "session.model"),
        ({"instructions": 5}, "session.instructions"),
        ({"max_output_tokens": 0}, "session.max_output_tokens"),
        ({"max_output_tokens": "many"}, "session.max_output_tokens"),
        ({"max_output_tokens": True}, "session.max_output_tokens"),
        ({"tools": [{"type": "function"}]}, "session.tools"),
        ({"prompt": {"id": "x"}}, "session.prompt"),
        ({"reasoning": {"effort": "low"}}, "session.reasoning"),
        ({"truncation": "auto"}, "session.truncation"),
        ({"repartee": 5}, "session.repartee"),
        ({"repartee": {"temprature": 1}}, "session.repartee.temprature"),
        ({"repartee": {"temperature": 9}}, "session.repartee.temperature"),
        ({"repartee": {"stop": ""}}, "session.repartee.stop"),
        ({"repartee": {"logit_bias": {"x": 1}}}, "session.repartee.logit_bias"),
        ({"repartee": {"stop_token_ids": [99999]}}, "session.repartee.stop_token_ids"),
        ({"turn_detection": None}, "session.turn_detection"),
    ],
)
def test_wrong_settings(session: dict[str, Any], param: str) -> None:
    found = error("session.update", session=session)
    assert found["param"] == param
    assert param.rsplit(".", 1)[-1] in found["message"]


def create(settings: SessionSettings | None = None, **response: Any) -> CreateResponse:
    created = command("response.create", settings=settings, response=response)
    assert isinstance(created, CreateResponse)
    return created


def test_the_least_response() -> None:
    least = command("response.create")
    assert least == CreateResponse(True, None, "", SamplingParams(), None)
    assert create() == least
    assert create(conversation="auto", output_modalities=["text"], tools=[]) == least


def test_a_response_may_name_the_item_that_it_answers() -> None:
    named = command("response.create", **{"repartee.answers": "item_1"})
    assert named == CreateResponse(True, None, "", SamplingParams(), None, answers="item_1")
    assert error("response.create", **{"repartee.answers": 7})["param"] == "repartee.answers"


def test_a_response_takes_the_session_and_its_own_fields() -> None:
    settings = SessionSettings(CARD.id, "be brief", 50, {"temperature": 0.5, "seed": 1})
    plain = create(settings)
    assert plain.instructions == "be brief"
    assert plain.sampling == SamplingParams(temperature=0.5, seed=1, max_tokens=50)
    own = create(
        settings,
        instructions="",
        max_output_tokens="inf",
        repartee={"temperature": None, "top_k": 7, "stop": "END"},
        metadata={"topic": "x"},
    )
    assert own.instructions == ""
    assert own.sampling == SamplingParams(seed=1, top_k=7, stop=("END",))
    assert own.metadata == {"topic": "x"}
    assert create(settings, max_output_tokens=3).sampling.max_tokens == 3


def test_a_response_out_of_band() -> None:
    created = create(conversation="none", input=[ITEM, {"type": "item_reference", "id": "item_9"}])
    assert not created.in_conversation
    assert created.input == (
        NewItem(None, "user", "Hi"),
        ItemReference("item_9", "response.input.1.id"),
    )
    assert create(input=[]).input == ()


@pytest.mark.parametrize(
    ("response", "param"),
    [
        ({"conversation": "conv_1"}, "response.conversation"),
        ({"conversation": 5}, "response.conversation"),
        ({"input": ["x"]}, "response.input.0"),
        ({"input": [{"type": "item_reference"}]}, "response.input.0.id"),
        ({"input": [{"type": "item_reference", "id": "x", "y": 1}]}, "response.input.0.y"),
        ({"input": [{**ITEM, "role": "x"}]}, "response.input.0.role"),
        ({"instructions": 5}, "response.instructions"),
        ({"max_output_tokens": -1}, "response.max_output_tokens"),
        ({"output_modalities": ["audio"]}, "response.output_modalities"),
        ({"tools": [{}]}, "response.tools"),
        ({"metadata": {"a": 1}}, "response.metadata.a"),
        ({"metadata": {"a": None}}, "response.metadata.a"),
        ({"metadata": {"a" * 65: "x"}}, "response.metadata"),
        ({"metadata": {"a": "x" * 513}}, "response.metadata.a"),
        ({"metadata": {str(i): "x" for i in range(17)}}, "response.metadata"),
        ({"repartee": {"temperature": "0.7"}}, "response.repartee.temperature"),
        ({"repartee": {"min_tokens": 9}, "max_output_tokens": 3}, "response.repartee.min_tokens"),
        ({"temperature": 1}, "response.temperature"),
    ],
)
def test_wrong_responses(response: dict[str, Any], param: str) -> None:
    assert error("response.create", response=response)["param"] == param


def test_cancel() -> None:
    assert command("response.cancel") == CancelResponse(None)
    assert command("response.cancel", response_id="resp_1") == CancelResponse("resp_1")


def test_settings_survive_the_store() -> None:
    settings = SessionSettings(CARD.id, "x", 5, {"seed": 1})
    stored = orjson.loads(orjson.dumps(settings.to_dict()))
    assert SessionSettings.from_dict(stored) == settings


def test_the_greeting_shows_the_whole_session() -> None:
    wire = make_wire(SessionSettings(CARD.id, "be brief", 5, {"seed": 1}))
    (frame,) = wire.opened([], None)
    event = orjson.loads(frame)
    assert event["type"] == "session.created"
    assert event["session"]["id"] == "sess_1"
    assert event["session"]["output_modalities"] == ["text"]
    assert event["session"]["max_output_tokens"] == 5
    assert event["session"]["repartee"] == {"seed": 1}
    assert (event["repartee.items"], event["repartee.items_remaining"]) == ([], 0)
    updated = orjson.loads(wire.updated())
    assert updated["type"] == "session.updated"
    assert updated["session"] == event["session"]
    assert updated["event_id"] != event["event_id"]


def test_res_04_a_long_conversation_comes_in_bounded_frames() -> None:
    items = [{"id": f"item_{i}", "text": "x" * 60_000} for i in range(9)]
    items.insert(3, {"id": "big", "text": "x" * (ITEMS_FRAME_BYTES + 1)})
    events = [orjson.loads(frame) for frame in make_wire().opened(items, None)]
    assert [event["type"] for event in events] == ["session.created"] + ["repartee.items"] * 3
    assert [item for event in events for item in event["repartee.items"]] == items
    assert [event["repartee.items_remaining"] for event in events] == [7, 6, 2, 0]


def test_errors_outside_the_contract_are_covered() -> None:
    frame = make_wire().error(ValueError("secret"), None)
    assert b"secret" not in frame
    frame = make_wire().error(InvalidRequest("told", param="p"), "e")
    assert orjson.loads(frame)["error"]["message"] == "told"
