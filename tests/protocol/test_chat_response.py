"""Chat answers: chunks in order, one end each, counts that agree."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from app.protocol.chat import DONE, HEARTBEAT, ChatAnswer, ChatStream
from app.protocol.models import model_list
from engine.contract import (
    Accepted,
    Delta,
    EngineFault,
    Event,
    Failed,
    Finished,
    FinishReason,
    Overloaded,
    ReparteeError,
    Usage,
)
from tests.protocol.cards import CARD

USAGE = Usage(31, 5, 16)
USAGE_OBJECT = {
    "prompt_tokens": 31,
    "completion_tokens": 5,
    "total_tokens": 36,
    "prompt_tokens_details": {"cached_tokens": 16},
}


def finished(reason: FinishReason = FinishReason.STOP) -> Finished:
    return Finished("chatcmpl-1", 1, 9, reason, USAGE)


def delta(text: str) -> Delta:
    return Delta("chatcmpl-1", 1, 1, text, 1)


def render(*events: Event, include_usage: bool = False) -> list[Any]:
    stream = ChatStream("chatcmpl-1", "test-model", 123, include_usage)
    data = b"".join(stream.render(event) for event in events)
    assert data.endswith(b"\n\n")
    lines = [line.removeprefix(b"data: ") for line in data[:-2].split(b"\n\n")]
    return [line.decode() if line == b"[DONE]" else orjson.loads(line) for line in lines]


def test_fin_01_finish_reason_is_null_until_the_last() -> None:
    *chunks, done = render(Accepted("r", 1, 0, 31), delta("He"), delta('l"\n'), finished())
    assert done == "[DONE]"
    assert [c["choices"][0]["delta"].get("content") for c in chunks] == ["", "He", 'l"\n', None]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, None, None, "stop"]
    for chunk in chunks:
        assert chunk["id"] == "chatcmpl-1"
        assert chunk["object"] == "chat.completion.chunk"
        assert (chunk["created"], chunk["model"]) == (123, "test-model")
        assert "usage" not in chunk


def test_fin_02_the_limit_is_length() -> None:
    chunks = render(finished(FinishReason.LENGTH))
    assert chunks[0]["choices"][0]["finish_reason"] == "length"


def test_usg_01_usage_comes_last_and_only_when_asked() -> None:
    *chunks, usage, done = render(delta("x"), finished(), include_usage=True)
    assert done == "[DONE]"
    assert [chunk["usage"] for chunk in chunks] == [None, None]
    assert (usage["choices"], usage["usage"]) == ([], USAGE_OBJECT)


def test_no_chunk_for_no_text() -> None:
    assert ChatStream("r", "m", 1, False).render(delta("")) == b""


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (Failed("r", 1, 2, Overloaded("full")), "overloaded"),
        (Failed("r", 1, 2, EngineFault("secret")), "engine_fault"),
        (finished(FinishReason.CANCELLED), "response_cancelled"),
    ],
)
def test_a_stream_that_fails_says_so(event: Event, code: str) -> None:
    _, error, done = render(delta("x"), event)
    assert error["error"]["code"] == code
    assert "secret" not in error["error"]["message"]
    assert done == "[DONE]"


def test_the_heartbeat_is_a_comment() -> None:
    assert HEARTBEAT.startswith(b": ")
    assert HEARTBEAT.endswith(b"\n\n")
    assert DONE == b"data: [DONE]\n\n"


def test_txt_01_a_plain_answer_is_the_deltas_joined() -> None:
    answer = ChatAnswer("chatcmpl-1", "test-model", 123)
    assert answer.add(Accepted("r", 1, 0, 31)) is None
    assert answer.add(delta("日")) is None
    assert answer.add(delta("本🐕")) is None
    assert answer.add(finished(FinishReason.LENGTH)) == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 123,
        "model": "test-model",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "日本🐕", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": USAGE_OBJECT,
    }


@pytest.mark.parametrize(
    "event", [Failed("r", 1, 2, Overloaded("full")), finished(FinishReason.CANCELLED)]
)
def test_a_plain_answer_that_fails_raises(event: Event) -> None:
    with pytest.raises(ReparteeError):
        ChatAnswer("r", "m", 1).add(event)


def test_models_are_listed() -> None:
    listed = model_list([CARD])
    assert listed["object"] == "list"
    assert listed["data"][0] == {
        "id": "test-model",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "repartee",
        "context_window": 8192,
        "quantization": "q4_1",
    }
