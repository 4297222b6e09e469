"""`POST /v1/chat/completions`."""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.auth import Principal
from app.gateway.bodies import read_body
from app.gateway.config import GatewayConfig
from app.gateway.edge import PRINCIPAL
from app.gateway.event_stream import EventStream
from app.gateway.metrics import GatewayMetrics
from app.gateway.responses import Answer, Responses
from app.protocol.chat import ChatAnswer, ChatRequest, ChatStream, read_chat_request
from app.protocol.ids import new_id
from app.protocol.json_codec import decode_object, encode
from engine.contract import Event, Failed

API = "chat"


class ChatRoute:
    """The route's handler.

    Args:
        responses: The way to the engine.
        config: Limits.
        metrics: Counts streams that were cut.
    """

    def __init__(
        self, responses: Responses, config: GatewayConfig, metrics: GatewayMetrics
    ) -> None:
        self._responses = responses
        self._config = config
        self._metrics = metrics

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        self._responses.check_open()
        principal: Principal = request.scope["state"][PRINCIPAL]
        body = decode_object(await read_body(request, self._config.max_body_bytes))
        chat = read_chat_request(body, self._responses.engine.card)
        return ChatResponse(self, chat, principal)

    async def submit(self, chat: ChatRequest, principal: Principal) -> Answer:
        """Ask the engine."""
        return await self._responses.submit(
            new_id("chatcmpl-"),
            api=API,
            model=chat.card.id,
            messages=chat.messages,
            sampling=chat.sampling,
            principal=principal,
        )

    def event_stream(self, answer: Answer, chat: ChatRequest, first: Event) -> EventStream:
        """The answer as an event stream."""
        view = ChatStream(answer.request_id, chat.card.id, int(time.time()), chat.include_usage)
        return EventStream(answer, view, first, self._config, self._metrics)


class ChatResponse(Response):
    """Runs one chat request; a caller who leaves ends it, whatever it is doing."""

    def __init__(self, route: ChatRoute, chat: ChatRequest, principal: Principal) -> None:
        super().__init__()
        self._route = route
        self._chat = chat
        self._principal = principal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        answer = await self._route.submit(self._chat, self._principal)
        left = asyncio.create_task(_caller_leaves(receive))
        work = asyncio.create_task(self._answer(answer, scope, send))
        try:
            await asyncio.wait({left, work}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            left.cancel()
            work.cancel()
            try:
                await asyncio.gather(left, work, return_exceptions=True)
            finally:
                answer.abandon()

    async def _answer(self, answer: Answer, scope: Scope, send: Send) -> None:
        # Headers wait for this one, so that a prompt that does not fit is a plain 400.
        first = await anext(answer)
        if isinstance(first, Failed):
            raise first.error
        if self._chat.stream:
            await self._route.event_stream(answer, self._chat, first).run(scope, send)
            return
        collected = ChatAnswer(answer.request_id, self._chat.card.id, int(time.time()))
        async for event in answer:
            whole = collected.add(event)
            if whole is not None:
                body = Response(encode(whole), media_type="application/json")
                body.headers["cache-control"] = "no-store"
                await body(scope, _nothing, send)


async def _caller_leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _nothing() -> dict[str, str]:
    return {"type": "http.disconnect"}
