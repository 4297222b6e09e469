"""A client that only reads the clock: one streamed answer over SSE or WebSocket."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

MAX_FRAME_BYTES = 1 << 22


class AnswerFailedError(Exception):
    """The server refused, failed, or ended the stream early."""


@dataclass(slots=True)
class Answer:
    """One answer and when its chunks came, in seconds of the monotonic clock.

    Attributes:
        sent_at: Before the request was written.
        chunk_times: Arrival of each chunk that held text.
        text: The whole answer.
        usage: The server's own counts, in OpenAI's chat form.
        finish_reason: `stop`, `length` or the server's own word.
        ended_at: When the server said that it is over.
    """

    sent_at: float
    chunk_times: list[float] = field(default_factory=list)
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    finish_reason: str = ""
    ended_at: float = 0.0

    @property
    def ttft_s(self) -> float:
        """Until the first text; until the end if no token made text (an end of turn)."""
        return (self.chunk_times[0] if self.chunk_times else self.ended_at) - self.sent_at

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in pairwise(self.chunk_times)]

    @property
    def prompt_tokens(self) -> int:
        return int(self.usage["prompt_tokens"])

    @property
    def completion_tokens(self) -> int:
        return int(self.usage["completion_tokens"])

    def add(self, text: str) -> None:
        if text:
            self.chunk_times.append(time.monotonic())
            self.text += text


def chat_body(prompt: str, max_tokens: int, **extra: Any) -> dict[str, Any]:
    """A greedy streaming request that goes on past the end of turn."""
    return {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **extra,
    }


async def stream_chat(host: str, port: int, body: dict[str, Any]) -> Answer:
    """POST /v1/chat/completions and read the event stream to its end.

    Raises:
        AnswerFailedError: with the server's own words.
        OSError: the connection broke.
    """
    payload = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n"
        "Connection: close\r\n\r\n"
    )
    answer = Answer(time.monotonic())
    reader, writer = await asyncio.open_connection(host, port, limit=MAX_FRAME_BYTES)
    try:
        writer.write(head.encode() + payload)
        status = await reader.readline()
        headers = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in status:
            said = await reader.read(2000)
            raise AnswerFailedError(f"{status.decode().strip()}: {said.decode(errors='replace')}")
        if b"transfer-encoding: chunked" not in headers.lower():
            raise AnswerFailedError("the answer is not chunked")
        async for data in _sse_data(reader):
            if data == "[DONE]":
                answer.ended_at = time.monotonic()
                return answer
            _read_chunk(answer, json.loads(data))
    finally:
        writer.close()
    raise AnswerFailedError("the stream ended without [DONE]")


def _read_chunk(answer: Answer, chunk: dict[str, Any]) -> None:
    if "error" in chunk:
        raise AnswerFailedError(str(chunk["error"]))
    for choice in chunk.get("choices", []):
        answer.add(choice["delta"].get("content") or "")
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
    if chunk.get("usage"):
        answer.usage = chunk["usage"]


async def _sse_data(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    """The `data` field of each event of a chunked HTTP/1.1 body."""
    rest = b""
    while True:
        size = int((await reader.readline()).split(b";")[0], 16)
        if size == 0:
            return
        rest += await reader.readexactly(size)
        await reader.readexactly(2)
        *lines, rest = rest.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip().decode()


async def open_socket(host: str, port: int, model: str) -> ClientConnection:
    """A fresh conversation on /v1/realtime; returns after `session.created`."""
    socket = await connect(
        f"ws://{host}:{port}/v1/realtime?model={model}",
        max_size=MAX_FRAME_BYTES,
        compression=None,
    )
    created = json.loads(await socket.recv())
    if created["type"] != "session.created":
        raise AnswerFailedError(str(created))
    return socket


async def ask(socket: ClientConnection, prompt: str, max_tokens: int, **sampling: Any) -> Answer:
    """One turn on an open conversation.

    Raises:
        AnswerFailedError: with the server's own words.
        ConnectionClosed: the socket broke.
    """
    item = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": prompt}],
    }
    response = {
        "max_output_tokens": max_tokens,
        "repartee": {"temperature": 0, "ignore_eos": True, **sampling},
    }
    answer = Answer(time.monotonic())
    await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
    await socket.send(json.dumps({"type": "response.create", "response": response}))
    async for frame in socket:
        event = json.loads(frame)
        kind = event["type"]
        if kind == "response.output_text.delta":
            answer.add(event["delta"])
        elif kind == "response.done":
            return _finish(answer, event["response"])
        elif kind == "error":
            raise AnswerFailedError(str(event["error"]))
    raise AnswerFailedError("the socket closed before response.done")


def _finish(answer: Answer, response: dict[str, Any]) -> Answer:
    if response["status"] == "failed":
        raise AnswerFailedError(str(response["status_details"]))
    answer.ended_at = time.monotonic()
    usage = response.get("usage") or {}
    answer.usage = {
        "prompt_tokens": usage.get("input_tokens", 0),
        "completion_tokens": usage.get("output_tokens", 0),
    }
    answer.finish_reason = response["status"]
    return answer
