"""Callers who leave, read slowly or not at all, and what is counted of them."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.auth import Principal
from engine.contract import Message, SamplingParams, Tier
from tests.fakes.engine import FakeEngine
from tests.gateway.live import MODEL, LiveGateway, running_gateway, script
from tests.spine import until

LONG = script(num_tokens=1000, rate=50)


class RawChat:
    """A connection on which a chat request was sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def close(self) -> None:
        """Go without reading the rest."""
        self.writer.transport.abort()
        with suppress(OSError):
            await self.writer.wait_closed()


OpenChat = Callable[..., Awaitable[RawChat]]


@pytest.fixture
async def open_chat() -> AsyncIterator[OpenChat]:
    """Opens raw connections, closed at the end of the test."""
    opened: list[RawChat] = []

    async def open_one(
        gateway: LiveGateway, content: str, *, stream: bool = True, rcvbuf: int = 0
    ) -> RawChat:
        raw = socket.socket()
        if rcvbuf:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", gateway.port))
        chat = RawChat(*await asyncio.open_connection(sock=raw, limit=1024))
        opened.append(chat)
        body = json.dumps({"messages": [{"role": "user", "content": content}], "stream": stream})
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
        chat.writer.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        return chat

    yield open_one
    for chat in opened:
        await chat.close()


async def test_can_01_met_02_a_reader_who_leaves_ends_the_answer(
    gateway: LiveGateway, open_chat: OpenChat
) -> None:
    connections = [await open_chat(gateway, LONG) for _ in range(5)]
    await gateway.running(5)
    for number, chat in enumerate(connections):
        await chat.reader.readuntil(b"data: ")
        if number % 2:
            chat.writer.transport.abort()
        else:
            chat.writer.close()
    await gateway.running(0)
    await gateway.settled()
    assert await gateway.metric("repartee_responses_total", outcome="cancelled") == 5
    assert await gateway.metric("repartee_responses_running") == 0
    tokens = await gateway.metric("repartee_tokens_total", kind="completion")
    assert 0 < tokens < 5 * 1000


async def test_can_02_a_plain_caller_who_leaves_ends_the_answer(
    gateway: LiveGateway, open_chat: OpenChat
) -> None:
    chat = await open_chat(gateway, LONG, stream=False)
    await gateway.running(1)
    chat.writer.close()
    await gateway.running(0)
    await gateway.settled()
    assert await gateway.metric("repartee_responses_total", outcome="cancelled") == 1
    assert await gateway.metric("repartee_responses_total", outcome="completed") == 0


async def test_a_caller_who_leaves_before_the_first_event(
    gateway: LiveGateway, open_chat: OpenChat
) -> None:
    chat = await open_chat(gateway, script(prepare_ms=300, num_tokens=1000, rate=50))
    await until(lambda: gateway.gateway.responses.num_running)
    chat.writer.close()
    await gateway.settled()
    assert await gateway.metric("repartee_responses_total", outcome="cancelled") == 1


async def test_a_caller_who_leaves_while_a_worker_is_asked(
    gateway: LiveGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def never(request: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    responses = gateway.gateway.responses
    monkeypatch.setattr(responses.engine, "submit", never)
    asking = asyncio.create_task(
        responses.submit(
            "chatcmpl-left",
            api="chat",
            model=MODEL,
            messages=(Message("user", "hi"),),
            sampling=SamplingParams(),
            principal=Principal("t", Tier.STANDARD),
        )
    )
    await asked.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert await gateway.metric("repartee_responses_total", outcome="cancelled") == 1
    assert await gateway.metric("repartee_responses_total", outcome="failed") == 0
    assert await gateway.metric("repartee_responses_running") == 0


async def test_met_01_counts_add_up(gateway: LiveGateway) -> None:
    await gateway.chat(script(num_tokens=10))
    await gateway.chat(script(num_tokens=10), stream=True, max_tokens=5)
    await gateway.chat("a " * 9000)
    await gateway.chat(script(fail_after=0))
    await gateway.chat(script(fail_after=3), stream=True)
    await gateway.chat(messages=[])
    await gateway.settled()
    assert await gateway.metric("repartee_requests_total", api="chat") == 5
    outcomes = {
        outcome: await gateway.metric("repartee_responses_total", outcome=outcome)
        for outcome in ("completed", "length", "cancelled", "rejected", "failed")
    }
    assert outcomes == {"completed": 1, "length": 1, "cancelled": 0, "rejected": 1, "failed": 2}
    assert await gateway.metric("repartee_time_to_first_token_seconds_count") == 3
    assert await gateway.metric("repartee_tokens_total", kind="completion") == 18
    assert await gateway.metric("repartee_worker_blocks") > 0


async def test_a_failure_in_a_stream_is_an_event(gateway: LiveGateway) -> None:
    response = await gateway.chat(script(fail_after=6), stream=True)
    assert response.status_code == 200
    *_, error, done, end = response.text.split("\n\n")
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "engine_fault"
    assert (done, end) == ("data: [DONE]", "")


async def test_png_03_silence_has_heartbeats(redis_url: str) -> None:
    async with running_gateway(redis_url, heartbeat_s=0.1) as gateway:
        response = await gateway.chat(script(num_tokens=2, delay_ms=700), stream=True)
        comments = [part for part in response.text.split("\n\n") if part.startswith(":")]
        assert len(comments) >= 2
        assert response.text.endswith("data: [DONE]\n\n")


async def test_slw_01_a_stream_that_is_never_read_is_cut(
    redis_url: str, open_chat: OpenChat
) -> None:
    async with running_gateway(redis_url, write_timeout_s=0.4) as gateway:
        content = script(text="x" * 60, repeat=40_000)
        chat = await open_chat(gateway, content, rcvbuf=4096)
        await gateway.running(1)
        chat.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: gateway.gateway.responses.num_running == 0, 20)
        await gateway.running(0)
        assert await gateway.metric("repartee_slow_closes_total") == 1


async def test_slw_03_a_slow_stream_loses_nothing(redis_url: str, open_chat: OpenChat) -> None:
    text = "".join(f"{number} " for number in range(20_000))
    engine = FakeEngine(context_window=1_000_000)
    async with running_gateway(redis_url, engine=engine) as gateway:
        chat = await open_chat(gateway, script(text=text), rcvbuf=4096)
        received = b""
        while b"[DONE]" not in received:
            part = await chat.reader.read(3000)
            assert part
            received += part
            if len(received) < 200_000:
                await asyncio.sleep(0.002)
        assert await gateway.metric("repartee_merged_deltas_total") > 0
    chunks = [line for line in received.split(b"\n") if line.startswith(b"data: {")]
    deltas = [json.loads(chunk[6:])["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(deltas) == text


@pytest.mark.parametrize("stream", [True, False])
async def test_hlt_01_answers_without_a_worker_end_at_their_deadline(
    redis_url: str, stream: bool
) -> None:
    async with running_gateway(redis_url, answer_timeout_s=3.0) as gateway:
        asking = asyncio.create_task(gateway.chat(LONG, stream=stream))
        await gateway.running(1)
        assert gateway.worker is not None
        gateway.worker.stop()
        gateway.worker.stop()
        response = await asking
        if stream:
            assert '"code":"no_worker"' in response.text
        else:
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "no_worker"
            assert int(response.headers["retry-after"]) >= 1


async def test_met_01_the_page_of_metrics_is_well_formed(gateway: LiveGateway) -> None:
    await gateway.chat(script(num_tokens=3))

    async def counted() -> bool:
        return await gateway.metric("repartee_worker_responses_total", outcome="stop") == 1

    await until(counted)
    text = (await gateway.http.get("/metrics")).text
    families = [family.name for family in text_string_to_metric_families(text)]
    assert len(families) == len(set(families))
    assert not [name for name in families if name.endswith("_")]
