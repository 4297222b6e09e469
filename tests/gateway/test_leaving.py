"""Callers who leave, read slowly or not at all, and what is counted of them."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from tests.gateway.live import LiveGateway, running_gateway, script
from tests.spine import until

LONG = script(num_tokens=1000, rate=50)


async def open_chat(gateway: LiveGateway, content: str, *, stream: bool = True, rcvbuf: int = 0):  # type: ignore[no-untyped-def]
    """A raw connection on which a chat request was sent."""
    raw = socket.socket()
    if rcvbuf:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", gateway.port))
    reader, writer = await asyncio.open_connection(sock=raw, limit=1024)
    body = json.dumps({"messages": [{"role": "user", "content": content}], "stream": stream})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}"
    writer.write(f"{head}\r\n\r\n{body}".encode())
    return reader, writer


async def test_can_01_a_reader_who_leaves_ends_the_answer(gateway: LiveGateway) -> None:
    connections = [await open_chat(gateway, LONG) for _ in range(5)]
    await gateway.running(5)
    for number, (reader, writer) in enumerate(connections):
        await reader.readuntil(b"data: ")
        if number % 2:
            writer.transport.abort()
        else:
            writer.close()
    await gateway.running(0)
    await gateway.settled()
    assert await gateway.metric("repartee_responses_total", outcome="cancelled") == 5
    assert await gateway.metric("repartee_responses_running") == 0
    tokens = await gateway.metric("repartee_tokens_total", kind="completion")
    assert 0 < tokens < 5 * 1000


async def test_can_02_a_plain_caller_who_leaves_ends_the_answer(gateway: LiveGateway) -> None:
    _, writer = await open_chat(gateway, LONG, stream=False)
    await gateway.running(1)
    writer.close()
    await gateway.running(0)
    await gateway.settled()
    assert await gateway.metric("repartee_responses_total", outcome="cancelled") == 1
    assert await gateway.metric("repartee_responses_total", outcome="completed") == 0


async def test_a_caller_who_leaves_before_the_first_event(gateway: LiveGateway) -> None:
    _, writer = await open_chat(gateway, script(prepare_ms=300, num_tokens=1000, rate=50))
    await until(lambda: gateway.gateway.responses.num_running)
    writer.close()
    await gateway.settled()
    assert await gateway.metric("repartee_responses_total", outcome="cancelled") == 1


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


async def test_slw_01_a_stream_that_is_never_read_is_cut(redis_url: str) -> None:
    async with running_gateway(redis_url, write_timeout_s=0.4) as gateway:
        content = script(text="x" * 60, repeat=40_000)
        reader, writer = await open_chat(gateway, content, rcvbuf=4096)
        await gateway.running(1)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: gateway.gateway.responses.num_running == 0, 20)
        await gateway.running(0)
        assert await gateway.metric("repartee_slow_closes_total") == 1
        writer.transport.abort()
        del reader


async def test_slw_03_a_slow_stream_loses_nothing(gateway: LiveGateway) -> None:
    text = "".join(f"{number} " for number in range(20_000))
    reader, writer = await open_chat(gateway, script(text=text), rcvbuf=4096)
    received = b""
    while b"[DONE]" not in received:
        part = await reader.read(3000)
        assert part
        received += part
        if len(received) < 200_000:
            await asyncio.sleep(0.002)
    writer.close()
    chunks = [line for line in received.split(b"\n") if line.startswith(b"data: {")]
    deltas = [json.loads(chunk[6:])["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(deltas) == text


@pytest.mark.parametrize("stream", [True, False])
async def test_hlt_01_a_worker_that_dies_ends_its_answers(redis_url: str, stream: bool) -> None:
    async with running_gateway(redis_url) as gateway:
        asking = asyncio.create_task(gateway.chat(LONG, stream=stream))
        await gateway.running(1)
        assert gateway.worker is not None
        gateway.worker.stop()
        gateway.worker.stop()
        response = await asking
        if stream:
            assert '"error":' in response.text
        else:
            assert response.status_code == 503
