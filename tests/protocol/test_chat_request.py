"""Chat completion requests: every field's right, wrong and neutral values."""

from __future__ import annotations

from typing import Any

import pytest

from app.protocol.chat import ChatRequest, read_chat_request
from app.protocol.content import check_size
from engine.contract import ContextLengthExceeded, InvalidRequest, Message, NotFound
from tests.protocol.cards import CARD, card_of

USER = {"role": "user", "content": "Hi"}


def read(**fields: Any) -> ChatRequest:
    return read_chat_request({"messages": [USER], **fields}, card_of)


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read(**fields)
    return caught.value


def test_the_least_request() -> None:
    request = read()
    assert request.card is CARD
    assert request.messages == (Message("user", "Hi"),)
    assert not request.stream
    assert request.sampling.max_tokens is None


def test_every_honoured_field_arrives() -> None:
    request = read(
        model="test-model",
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
        max_completion_tokens=7,
        temperature=0.5,
        top_p=0.9,
        seed=42,
        stop=["a", "b"],
        logit_bias={"5": -100, "6": 1.5},
        frequency_penalty=1,
        presence_penalty=-1,
        top_k=40,
        min_p=0.1,
        repetition_penalty=1.1,
        stop_token_ids=[2],
        min_tokens=3,
        ignore_eos=True,
    )
    sampling = request.sampling
    assert (request.stream, request.include_usage) == (True, True)
    assert sampling.to_wire() == {
        "temperature": 0.5,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "frequency_penalty": 1,
        "presence_penalty": -1,
        "logit_bias": ((5, -100), (6, 1.5)),
        "seed": 42,
        "stop": ("a", "b"),
        "stop_token_ids": (2,),
        "max_tokens": 7,
        "min_tokens": 3,
        "ignore_eos": True,
    }


def test_null_is_absent() -> None:
    names = [
        *("temperature", "top_p", "seed", "stop", "logit_bias", "max_tokens", "stream", "n"),
        *("stop_token_ids", "stream_options", "tools", "model", "top_k", "ignore_eos", "logprobs"),
    ]
    assert read(**dict.fromkeys(names)) == read()


def test_smp_09_new_limit_wins_and_both_are_checked() -> None:
    assert read(max_tokens=5, max_completion_tokens=9).sampling.max_tokens == 9
    assert read(max_tokens=5).sampling.max_tokens == 5
    assert refusal(max_tokens=0, max_completion_tokens=9).param == "max_tokens"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -5, 1.5, "10", 10**12, True, [1]])
def test_smp_09_limits(name: str, value: object) -> None:
    error = refusal(**{name: value})
    assert error.param == name
    assert name in error.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", 2.1),
        ("temperature", "0.7"),
        ("temperature", True),
        ("temperature", 10**400),
        ("top_p", 1.0001),
        ("top_p", -0.1),
        ("top_p", False),
        ("min_p", 2),
        ("frequency_penalty", 3),
        ("presence_penalty", "x"),
        ("repetition_penalty", 0),
        ("repetition_penalty", True),
        ("top_k", 1.5),
        ("top_k", -2),
        ("top_k", True),
        ("seed", -1),
        ("seed", 2**63),
        ("seed", 1.0),
        ("seed", False),
        ("min_tokens", -1),
        ("ignore_eos", 1),
        ("ignore_eos", "yes"),
    ],
)
def test_smp_02_wrong_numbers_name_their_field(name: str, value: object) -> None:
    error = refusal(**{name: value})
    assert error.param == name
    assert name in error.message


@pytest.mark.parametrize("key", ["49152", "-1", "abc", "1.5", "", " 5", "५", "5\n", "99999999999"])
def test_smp_03_logit_bias_keys(key: str) -> None:
    assert refusal(logit_bias={key: 1}).param == "logit_bias"


@pytest.mark.parametrize("value", [1e308, None, "1", True, 101, -101, []])
def test_smp_03_logit_bias_values(value: object) -> None:
    assert refusal(logit_bias={"5": value}).param == "logit_bias"


def test_smp_03_logit_bias_size() -> None:
    assert refusal(logit_bias={str(i): 1 for i in range(5000)}).param == "logit_bias"
    assert refusal(logit_bias=[1]).param == "logit_bias"


@pytest.mark.parametrize("ids", [[49152], [-1], [2147483648], ["2"], [True], "2", [1.0], [None]])
def test_smp_04_stop_token_ids(ids: object) -> None:
    assert refusal(stop_token_ids=ids, min_tokens=5).param == "stop_token_ids"


@pytest.mark.parametrize("top_k", [0, -1, 1, 49152, 49153, 9999999])
def test_smp_05_top_k_may_pass_the_vocabulary(top_k: int) -> None:
    assert read(top_k=top_k).sampling.top_k == top_k
    assert read(top_p=0).sampling.is_greedy


@pytest.mark.parametrize(
    "stop", ["", [""], [1], {"a": 1}, 5, ["a"] * 5, ["ok", None], "x" * 1025, True]
)
def test_stp_04_wrong_stops(stop: object) -> None:
    assert refusal(stop=stop).param == "stop"


@pytest.mark.parametrize(
    ("stop", "read_as"), [([], ()), (None, ()), ("a", ("a",)), (["a"], ("a",))]
)
def test_stp_04_right_stops(stop: object, read_as: tuple[str, ...]) -> None:
    assert read(stop=stop).sampling.stop == read_as


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2),
        ("n", 0),
        ("n", "1"),
        ("n", True),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function"}),
        ("functions", [{}]),
        ("function_call", {"name": "f"}),
        ("response_format", {"type": "json_object"}),
        ("audio", {"voice": "x"}),
        ("modalities", ["text", "audio"]),
        ("prediction", {"type": "content"}),
        ("web_search_options", {}),
    ],
)
def test_smp_11_what_is_not_supported_is_refused(name: str, value: object) -> None:
    error = refusal(**{name: value})
    assert (error.param, error.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 1),
        ("logprobs", False),
        ("top_logprobs", 0),
        ("tools", []),
        ("tool_choice", "auto"),
        ("response_format", {"type": "text"}),
        ("modalities", ["text"]),
        ("user", "u"),
        ("metadata", {"a": "b"}),
        ("store", True),
        ("service_tier", "priority"),
        ("parallel_tool_calls", True),
        ("reasoning_effort", "low"),
    ],
)
def test_neutral_and_harmless_fields_pass(name: str, value: object) -> None:
    assert read(**{name: value}) == read()


def test_unknown_fields_are_refused() -> None:
    error = refusal(best_of=3)
    assert (error.param, error.code) == ("best_of", "unknown_parameter")
    assert len(refusal(**{"x" * 1000: 1}).message) < 200


def test_stream_options_need_a_stream() -> None:
    assert refusal(stream_options={"include_usage": True}).param == "stream_options"
    assert refusal(stream=True, stream_options={"x": 1}).param == "stream_options.x"
    assert refusal(stream="yes").param == "stream"
    assert not read(stream=True).include_usage


def test_model_is_looked_up() -> None:
    with pytest.raises(NotFound):
        read(model="gpt-9")
    assert refusal(model=5).param == "model"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ({}, "messages"),
        (["hi"], "messages.0"),
        ([USER, {"content": "x"}], "messages.1.role"),
        ([{"role": "tool", "content": "x"}], "messages.0.role"),
        ([{"role": 5, "content": "x"}], "messages.0.role"),
        ([{"role": "user", "content": None}], "messages.0.content"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"role": "user", "content": 5}], "messages.0.content"),
        ([{"role": "user", "content": {"type": "text"}}], "messages.0.content"),
        ([{"role": "user", "content": ["x"]}], "messages.0.content.0"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages.0.content.0.type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0.text"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages.0.content.0.text"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}],
            "messages.0.content.1",
        ),
        ([{"role": "user", "content": [{"type": "no.such"}]}], "messages.0.content.0"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages.0.tool_calls"),
        ([{"role": "assistant", "content": "", "audio": {"id": "x"}}], "messages.0.audio"),
    ],
)
def test_tpl_01_02_04_wrong_messages(messages: object, param: str) -> None:
    assert refusal(messages=messages).param == param


def test_tpl_01_an_assistant_may_be_silent() -> None:
    turns = [USER, {"role": "assistant", "content": None}, {"role": "assistant"}, USER]
    assert [m.content for m in read(messages=turns).messages] == ["Hi", "", "", "Hi"]


def test_tpl_02_parts_are_joined_with_nothing_between() -> None:
    parts = [{"type": "text", "text": "Name a "}, {"type": "text", "text": "color"}]
    assert read(messages=[{"role": "user", "content": parts}]).messages == (
        Message("user", "Name a color"),
    )
    assert read(messages=[{"role": "user", "content": []}]).messages[0].content == ""


def test_tpl_04_blank_and_system_only_pass() -> None:
    assert read(messages=[{"role": "user", "content": ""}]).messages[0].content == ""
    assert read(messages=[{"role": "user", "content": "   "}]).messages[0].content == "   "
    assert read(messages=[{"role": "system", "content": "x"}]).messages[0].role == "system"


def test_tpl_07_order_is_kept_and_developer_is_system() -> None:
    roles = ["system", "user", "user", "developer", "assistant", "system", "assistant"]
    turns = [{"role": role, "content": str(i), "name": "n"} for i, role in enumerate(roles)]
    messages = read(messages=turns).messages
    assert [m.content for m in messages] == list("0123456")
    assert messages[3].role == "system"


def test_ctx_05_hopeless_prompts_are_refused_by_size() -> None:
    turns = [{"role": "user", "content": "hi"}] * (CARD.context_window + 1)
    with pytest.raises(ContextLengthExceeded, match="8192"):
        read(messages=turns)
    with pytest.raises(ContextLengthExceeded, match="at least"):
        read(messages=[{"role": "user", "content": "x" * CARD.max_token_bytes * 8192}])
    check_size([Message("user", "x" * (CARD.max_token_bytes * 8191))], CARD, "messages")
