"""One request, three ways: plain, event stream, socket; the same answer each time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.gateway.live import LiveGateway, receive, receive_until, say, script
from tests.gateway.test_realtime import ask

TEXTS = [
    "Mañana 日本語 🐕",
    "Napiš větu o dešti: prší, prší, jen se leje.",
    "สวัสดีชาวโลก 👩‍👩‍👧‍👦 مرحبا بالعالم नमस्ते",
    'quotes " and \\ and \n\ttabs, \u0000 and \u2028',
]


async def plain(gateway: LiveGateway, content: str, **fields: Any) -> tuple[str, str, list[int]]:
    """Text, finish and token counts."""
    body = (await gateway.chat(content, **fields)).json()
    choice, usage = body["choices"][0], body["usage"]
    counts = [usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]]
    return choice["message"]["content"], choice["finish_reason"], counts


async def streamed(gateway: LiveGateway, content: str, **fields: Any) -> tuple[str, str, list[int]]:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    response = await gateway.chat(content, **fields, **options)
    parts = response.content.decode().split("\n\n")
    chunks = [json.loads(part[6:]) for part in parts if part.startswith("data: {")]
    *deltas, usage = chunks
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in deltas)
    finishes = [chunk["choices"][0]["finish_reason"] for chunk in deltas]
    assert set(finishes[:-1]) == {None}
    counts = usage["usage"]
    return (
        text,
        finishes[-1],
        [counts["prompt_tokens"], counts["completion_tokens"], counts["total_tokens"]],
    )


async def over_socket(
    gateway: LiveGateway, content: str, **fields: Any
) -> tuple[str, str, list[int]]:
    limit = fields.pop("max_tokens", "inf")
    async with gateway.socket() as socket:
        await receive(socket)
        await ask(socket, content, max_output_tokens=limit, repartee=fields)
        events = await receive_until(socket, "response.done")
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    response = events[-1]["response"]
    usage = response["usage"]
    finish = {"completed": "stop", "incomplete": "length"}[response["status"]]
    assert response["output"][0]["content"][0]["text"] == "".join(deltas)
    return (
        "".join(deltas),
        finish,
        [usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]],
    )


@pytest.mark.parametrize("text", TEXTS)
async def test_txt_01_09_text_is_the_same_on_every_transport(
    gateway: LiveGateway, text: str
) -> None:
    answers = [await ask_(gateway, say(text)) for ask_ in (plain, streamed, over_socket)]
    assert answers[0][0] == text
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 7},
        {"seed": 7, "max_tokens": 9},
        {"seed": 7, "max_tokens": 1},
        {"stop": ["stones"]},
    ],
)
async def test_usg_02_fin_02_stp_01_counts_and_ends_agree(
    gateway: LiveGateway, fields: dict[str, Any]
) -> None:
    content = "old stones" if "seed" in fields else script(text="past old stones and every")
    answers = [await ask_(gateway, content, **fields) for ask_ in (plain, streamed, over_socket)]
    assert answers[0] == answers[1] == answers[2]
    text, finish, counts = answers[0]
    assert finish == ("length" if "max_tokens" in fields else "stop")
    assert counts[2] == counts[0] + counts[1]
    assert counts[1] == fields.get("max_tokens", counts[1])
    if "stop" in fields:
        assert text == "past old "


async def test_bat_01_answers_in_flight_are_not_mixed(gateway: LiveGateway) -> None:
    asked = [say(f"{number} " * 40) for number in range(8)]
    alone = [await plain(gateway, content) for content in asked]
    ways = (plain, streamed, over_socket)
    together = await asyncio.gather(
        *(ways[i % 3](gateway, content) for i, content in enumerate(asked))
    )
    assert together == alone
