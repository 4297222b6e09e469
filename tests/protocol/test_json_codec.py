"""Strict JSON: what is refused, how soon, and under which name."""

from __future__ import annotations

from typing import Any

import pytest

from app.protocol import json_codec
from app.protocol.json_codec import MAX_CONTAINERS, MAX_DEPTH, decode, decode_object, encode
from engine.contract import InvalidRequest


@pytest.mark.parametrize(
    "text",
    ['{"a":[1,2.5,null,true,"é\\n"]}', "5", '"x"', "[]", " {} ", '{"a":{"b":"[[[{{{"}}'],
)
def test_standard_json_is_read(text: str) -> None:
    value = decode(text)
    assert decode(text.encode()) == value
    assert decode(encode(value)) == value


def test_brackets_in_strings_are_not_depth() -> None:
    value = {"a": "[" * 500 + '"\\' + "{" * 500, "b": ["]"] * 100}
    assert decode(encode(value)) == value


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        ("", "invalid_json", None),
        (" ", "invalid_json", None),
        ("{", "invalid_json", None),
        ('{"a":1}x', "invalid_json", None),
        ("\ufeff{}", "invalid_json", None),
        ('{"a":"\x01"}', "invalid_json", None),
        ('{"temperature":NaN}', "invalid_value", "temperature"),
        ('{"a":{"top_p":-Infinity}}', "invalid_value", "a.top_p"),
        ('{"temperature":1e999}', "invalid_value", "temperature"),
        ('{"seed":' + "9" * 5000 + "}", "invalid_json", None),
        ("1e999", "invalid_value", None),
        ('{"messages":[{"content":"ok"},{"content":"x\\ud83d"}]}', "invalid_value",
         "messages.1.content"),
        ('{"content":"\\ude00y"}', "invalid_value", "content"),
        ('{"a":{"\\ud83d":1}}', "invalid_value", "a"),
        ('["\\ud83d"]', "invalid_value", "0"),
        ('{"a":[1,{"b":2}],"c":NaN}', "invalid_value", "c"),
    ],
)  # fmt: skip
def test_what_is_not_standard_is_named(text: str, code: str, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(text)
    assert (caught.value.code, caught.value.param) == (code, param)
    encode({"message": caught.value.message})


def test_bytes_must_be_utf8() -> None:
    with pytest.raises(InvalidRequest, match="byte 1 is not"):
        decode(b'"\xff"')


def test_a_lone_surrogate_in_a_decoded_text_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode('{"a":"\ud83d"}')
    assert caught.value.param == "a"


def test_what_only_the_slow_decoder_reads_is_still_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_codec.json, "loads", lambda text: {"fine": True})
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        decode("{")


def test_depth_is_limited() -> None:
    assert decode("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    for text in (
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        '{"a":' * 100 + "1" + "}" * 100,
        "[" * 20_000 + "]" * 20_000,
        "[" * 1_000_000,
    ):
        with pytest.raises(InvalidRequest) as caught:
            decode(text)
        assert caught.value.code == "json_too_deep"


def test_depth_is_limited_in_the_midst_of_much_else() -> None:
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    for text in (
        f'{{"a":[1,{deep}],"b":[]}}',
        f'{{"\\ud83d":{deep}, "a":[{deep}]}}',
        "[" * 900 + "x",
    ):
        with pytest.raises(InvalidRequest) as caught:
            decode(text)
        assert caught.value.code == "json_too_deep"


def test_long_texts_are_refused_without_much_ado() -> None:
    names = '"a",' * 100_000
    with pytest.raises(InvalidRequest, match="not valid JSON") as caught:
        decode(f'[{names}"\\ud800"]')
    assert caught.value.code == "invalid_json"
    assert json_codec.string_in(f'{{"event_id":"e","a":[{names}NaN]}}', "event_id") is None
    with pytest.raises(InvalidRequest) as caught:
        decode("[" + '"[",' * 100_001 + '""]')
    assert caught.value.code == "json_too_large"
    text = '["' + "[" * 200_000 + '"]'
    assert decode(text) == ["[" * 200_000]


def test_many_containers_are_limited() -> None:
    assert len(decode("[" + "[]," * 1000 + "[]]")) == 1001
    with pytest.raises(InvalidRequest) as caught:
        decode("[" + "[]," * MAX_CONTAINERS + "[]]")
    assert caught.value.code == "json_too_large"


@pytest.mark.parametrize("tail", ['"' + "\\" * 999_999, '"' + '\\"' * 500_000, '"' * 999_999])
@pytest.mark.timeout(10)
def test_unterminated_strings_cost_one_pass(tail: str) -> None:
    with pytest.raises(InvalidRequest):
        decode("[" * 100 + tail)


@pytest.mark.parametrize(
    ("text", "kind"),
    [("null", "null"), ("[]", "an array"), ("5", "a number"), ('"x"', "a string"),
     ("true", "a boolean")],
)  # fmt: skip
def test_only_objects_are_messages(text: str, kind: str) -> None:
    with pytest.raises(InvalidRequest, match=f"got {kind}"):
        decode_object(text)


def test_kinds_have_json_names() -> None:
    kinds: list[tuple[Any, str]] = [({}, "an object"), (1.5, "a number"), ([], "an array")]
    assert all(json_codec.kind_of(value) == name for value, name in kinds)
