"""Asking the running product in each of its three ways; the answers are comparable."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect

from tests.spine import until

WINDOW_TOKENS = 1024
PATIENCE_S = 100.0
_FINISH = {"completed": "stop", "incomplete": "length"}


@dataclass(frozen=True)
class Answer:
    """One answer; equal to another if text, end and counts are."""

    text: str
    finish: str
    prompt_tokens: int
    completion_tokens: int
    deltas: tuple[str, ...] = field(default=(), compare=False)


class RefusedError(Exception):
    """The product said no; the error as it came, `status` among it over HTTP."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.error = error
        self.param: str | None = error["param"]
        self.code: str | None = error["code"]


Messages = str | list[dict[str, Any]]
Way = Callable[..., Awaitable[Answer]]


class Product:
    """A running gateway, by its address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.ways: tuple[Way, ...] = (self.plain, self.streamed, self.over_socket)

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=f"http://{self.address}", timeout=PATIENCE_S)

    def socket(self) -> connect:
        return connect(f"ws://{self.address}/v1/realtime", max_size=None)

    async def post(self, body: dict[str, Any] | bytes) -> httpx.Response:
        """A chat request as it is."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.http() as client:
            return await client.post("/v1/chat/completions", content=content)

    async def plain(self, messages: Messages, **fields: Any) -> Answer:
        """A chat completion in one piece."""
        response = await self.post(_body(messages, fields))
        body = _checked(response)
        choice = body["choices"][0]
        return _answer(choice["message"]["content"], choice["finish_reason"], body["usage"], ())

    async def streamed(self, messages: Messages, **fields: Any) -> Answer:
        """A chat completion as an event stream, whose form is checked as well."""
        options = {"stream": True, "stream_options": {"include_usage": True}}
        response = await self.post({**_body(messages, fields), **options})
        if response.status_code != 200:
            _checked(response)
        parts = response.content.decode().split("\n\n")
        events = [part.removeprefix("data: ") for part in parts if part.startswith("data: ")]
        assert events.pop() == "[DONE]"
        *chunks, last = (json.loads(event) for event in events)
        if "error" in last:
            raise RefusedError(last["error"])
        assert last["choices"] == []
        choices = [chunk["choices"][0] for chunk in chunks]
        assert all(choice["finish_reason"] is None for choice in choices[:-1])
        deltas = tuple(choice["delta"].get("content") or "" for choice in choices)
        return _answer("".join(deltas), choices[-1]["finish_reason"], last["usage"], deltas)

    async def over_socket(self, messages: Messages, **fields: Any) -> Answer:
        """A turn of a new Realtime session."""
        fields = {"temperature": 0, **fields}
        limit = fields.pop("max_tokens", 24) or "inf"
        async with self.socket() as socket:
            await receive(socket)
            for message in _messages(messages):
                await add_item(socket, message)
            create = {"max_output_tokens": limit, "repartee": fields}
            await send(socket, {"type": "response.create", "response": create})
            return await turn(socket)

    async def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples that carry these labels."""
        async with self.http() as client:
            text = (await client.get("/metrics")).text
        total = 0.0
        for line in text.splitlines():
            match = re.fullmatch(r"([a-zA-Z_:]+)(?:\{(.*)\})? (\S+)", line)
            if match is None or match[1] != name:
                continue
            if all(f'{key}="{value}"' in (match[2] or "") for key, value in labels.items()):
                total += float(match[3])
        return total

    async def idle(self) -> None:
        """Wait until nothing runs, here or in the worker, and no KV is held."""
        names = ("repartee_responses_running", "repartee_worker_running")

        async def is_idle() -> bool:
            return not any([await self.metric(name) for name in names])

        await until(is_idle, PATIENCE_S)
        assert await self.metric("repartee_worker_used_blocks") == 0


async def send(socket: ClientConnection, event: dict[str, Any]) -> None:
    await socket.send(json.dumps(event))


async def receive(socket: ClientConnection) -> dict[str, Any]:
    """The next event."""
    async with asyncio.timeout(PATIENCE_S):
        event: dict[str, Any] = json.loads(await socket.recv())
    return event


async def add_item(socket: ClientConnection, message: dict[str, Any]) -> None:
    """Put a message, in the form of chat completions, into the conversation."""
    content = message["content"]
    kind = "output_text" if message["role"] == "assistant" else "input_text"
    if isinstance(content, str):
        content = [{"type": kind, "text": content}]
    else:
        content = [{**part, "type": part["type"].replace("text", kind)} for part in content]
    item = {"type": "message", "role": message["role"], "content": content}
    await send(socket, {"type": "conversation.item.create", "item": item})


async def turn(socket: ClientConnection) -> Answer:
    """Read one response to its end."""
    deltas = []
    while (event := await receive(socket))["type"] != "response.done":
        if event["type"] == "error":
            raise RefusedError(event["error"])
        if event["type"] == "response.output_text.delta":
            deltas.append(event["delta"])
    response = event["response"]
    if response["status"] == "failed":
        raise RefusedError(response["status_details"]["error"])
    text = "".join(item["content"][0]["text"] for item in response["output"])
    assert text == "".join(deltas)
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    finish = _FINISH.get(response["status"], response["status"])
    return Answer(text, finish, usage["input_tokens"], usage["output_tokens"], tuple(deltas))


def _messages(messages: Messages) -> list[dict[str, Any]]:
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else messages


def _body(messages: Messages, fields: dict[str, Any]) -> dict[str, Any]:
    return {"messages": _messages(messages), "temperature": 0, "max_tokens": 24, **fields}


def _checked(response: httpx.Response) -> dict[str, Any]:
    body: dict[str, Any] = response.json()
    if response.status_code != 200:
        raise RefusedError({**body["error"], "status": response.status_code})
    return body


def _answer(text: str, finish: str, usage: dict[str, Any], deltas: tuple[str, ...]) -> Answer:
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    return Answer(text, finish, usage["prompt_tokens"], usage["completion_tokens"], deltas)
