"""Whatever comes in: a command or one coded error, never an exception of another kind."""

from __future__ import annotations

import copy
import json
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from app.protocol.chat import read_chat_request
from app.protocol.fields import Fields
from app.protocol.json_codec import decode_object
from app.protocol.realtime.settings import SessionSettings
from app.protocol.realtime.wire import RealtimeWire, Received
from app.protocol.responses.commands import read_event, read_stream_id
from app.protocol.responses.queries import read_input_query, read_retrieve_query
from engine.contract import InvalidRequest
from tests.protocol.cards import CARD, card_of

ANYTHING = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(max_size=20),
        st.sampled_from(["inf", "auto", "none", "user", "message", "x\ud83d", "item_reference"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(st.text(max_size=8), st.sampled_from(["type", "id", "text", "role"])),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)
PART = {"type": "input_text", "text": "Hi"}
ITEM = {"type": "message", "role": "user", "content": [PART]}
EVENTS: list[dict[str, Any]] = [
    {"type": "session.update", "event_id": "e", "session": {"type": "realtime", "repartee": {}}},
    {"type": "conversation.item.create", "item": ITEM, "previous_item_id": "root"},
    {"type": "conversation.item.truncate", "item_id": "i", "repartee.text_end": 1},
    {"type": "response.cancel", "response_id": "r"},
    {"type": "repartee.conversation.truncate", "item_id": "i"},
    {
        "type": "response.create",
        "response": {
            "conversation": "none",
            "input": [ITEM, {"type": "item_reference", "id": "i"}],
            "metadata": {"a": "b"},
            "max_output_tokens": 5,
            "repartee": {"logit_bias": {"5": 1}, "stop": ["x"], "stop_token_ids": [2], "seed": 1},
        },
    },
]
CHAT: dict[str, Any] = {
    "model": CARD.id,
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "logit_bias": {"5": 1},
    "stop": ["x"],
    "stop_token_ids": [2],
    "temperature": 1,
    "tools": [],
    "n": 1,
}

RESPONSE: dict[str, Any] = {
    "type": "response.create",
    "stream_id": "a",
    "model": CARD.id,
    "input": [{"role": "user", "content": [PART]}, {"role": "assistant", "content": "Hi"}],
    "instructions": "be kind",
    "metadata": {"a": "b"},
    "text": {"format": {"type": "text"}},
    "stream_options": {"include_obfuscation": False},
    "logit_bias": {"5": 1},
    "stop": ["x"],
    "previous_response_id": "resp_1",
    "generate": True,
    "store": False,
    "background": False,
    "tools": [],
    "include": [],
}


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside a JSON value."""
    found: list[tuple[Any, Any]] = []
    keys = value if isinstance(value, dict) else range(len(value))
    for key in keys:
        found.append((value, key))
        if isinstance(value[key], dict | list):
            found += places(value[key])
    return found


def spoiled(original: dict[str, Any], data: st.DataObject) -> str:
    """`original` with one place replaced by anything, as JSON text."""
    value = copy.deepcopy(original)
    container, key = data.draw(st.sampled_from(places(value)))
    container[key] = data.draw(ANYTHING)
    return json.dumps(value)


def check(frame: str) -> None:
    answer = RealtimeWire("sess_1", SessionSettings(CARD.id), CARD).receive(frame)
    if not isinstance(answer, Received):
        error = orjson.loads(answer)["error"]
        assert error["message"]
        assert error["code"] != "engine_fault"


@given(st.one_of(st.text(), ANYTHING.map(json.dumps)))
def test_frm_02_any_frame(frame: str) -> None:
    check(frame)


@given(st.data())
@settings(max_examples=400)
def test_frm_02_any_event_with_one_wrong_place(data: st.DataObject) -> None:
    check(spoiled(data.draw(st.sampled_from(EVENTS)), data))


@given(st.one_of(st.binary(), ANYTHING.map(lambda value: json.dumps(value).encode())))
def test_any_body(body: bytes) -> None:
    try:
        read_chat_request(decode_object(body), card_of)
    except InvalidRequest as error:
        orjson.dumps(error.message)


@given(st.data())
@settings(max_examples=400)
def test_any_chat_request_with_one_wrong_place(data: st.DataObject) -> None:
    try:
        read_chat_request(decode_object(spoiled(CHAT, data)), card_of)
    except InvalidRequest as error:
        assert error.message
        orjson.dumps([error.message, error.param])


def check_response(frame: str | bytes) -> None:
    try:
        fields = Fields(decode_object(frame))
        read_event(fields, read_stream_id(fields), card_of)
    except InvalidRequest as error:
        assert error.message
        orjson.dumps([error.message, error.param])


@given(st.one_of(st.binary(), ANYTHING.map(lambda value: json.dumps(value).encode())))
def test_any_event_of_the_responses_socket(body: bytes) -> None:
    check_response(body)


@given(st.data())
@settings(max_examples=400)
def test_any_response_with_one_wrong_place(data: st.DataObject) -> None:
    check_response(spoiled(RESPONSE, data))


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=4))
def test_any_query(params: dict[str, str]) -> None:
    for known in (params, {**dict.fromkeys(("stream", "limit", "after"), "x"), **params}):
        for reader in (read_retrieve_query, read_input_query):
            try:
                reader(known)
            except InvalidRequest as error:
                assert error.param is not None
