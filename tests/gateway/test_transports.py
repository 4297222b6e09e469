"""One request, three ways: plain, event stream, socket; the same answer each time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import httpx
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
    async with gateway.socket() as line:
        await receive(line)
        await ask(line, content, max_output_tokens=limit, repartee=fields)
        events = await receive_until(line, "response.done")
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


@asynccontextmanager
async def rechunking(port: int, size: int) -> AsyncIterator[int]:
    """The port of a relay that passes the gateway's bytes on in pieces of so many."""
    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: int) -> None:
        while data := await reader.read(4096):
            for start in range(0, len(data), cut):
                writer.write(data[start : start + cut])
                await writer.drain()
                # Another piece for the socket, and for whoever reads it.
                await asyncio.sleep(0)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((writer, back))
        tasks.add(asyncio.create_task(relay(reader, back, 4096)))
        tasks.add(asyncio.create_task(relay(there, writer, size)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()


@pytest.mark.parametrize("size", [1, 7])
async def test_txt_05_txt_09_bytes_may_be_cut_anywhere_on_the_way(
    gateway: LiveGateway, size: int
) -> None:
    text = " ".join(TEXTS[:3]) + " 長い日本語の文章と लंबा हिन्दी पाठ"
    async with rechunking(gateway.port, size) as port:
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, timeout=20) as http:
            through = replace(gateway, port=port, http=http)
            for ask_ in (plain, streamed, over_socket):
                assert (await ask_(through, say(text)))[0] == text
