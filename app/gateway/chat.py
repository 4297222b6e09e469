"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.auth import Principal
from app.gateway.bodies import read_body
from app.gateway.caller import while_caller_waits
from app.gateway.config import GatewayConfig
from app.gateway.edge import PRINCIPAL
from app.gateway.event_stream import EventStream
from app.gateway.metrics import GatewayMetrics
from app.gateway.responses import Answer, Responses, draining_error
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
        self.responses = responses
        self._config = config
        self._metrics = metrics

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        self.responses.check_open()
        principal: Principal = request.scope["state"][PRINCIPAL]
        body = decode_object(await read_body(request, self._config.max_body_bytes))
        chat = read_chat_request(body, self.responses.engine.card)
        return ChatResponse(self, chat, principal)

    async def submit(self, chat: ChatRequest, principal: Principal) -> Answer:
        """Ask the engine."""
        return await self.responses.submit(
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
        self._stream: EventStream | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        answer = await self._route.submit(self._chat, self._principal)
        try:
            is_cut = await while_caller_waits(
                self._answer(answer, scope, send), receive, self._route.responses.closing
            )
        finally:
            answer.abandon()
        if is_cut:
            await self._cut_short(send)

    async def _answer(self, answer: Answer, scope: Scope, send: Send) -> None:
        # Headers wait for this one, so that a prompt that does not fit is a plain 400.
        first = await anext(answer)
        if isinstance(first, Failed):
            raise first.error
        if self._chat.stream:
            self._stream = self._route.event_stream(answer, self._chat, first)
            await self._stream.run(scope, send)
            return
        collected = ChatAnswer(answer.request_id, self._chat.card.id, int(time.time()))
        async for event in answer:
            whole = collected.add(event)
            if whole is not None:
                body = Response(encode(whole), media_type="application/json")
                body.headers["cache-control"] = "no-store"
                await body(scope, _nothing, send)

    async def _cut_short(self, send: Send) -> None:
        """The gateway closes: say so, in the way that is still open."""
        if self._stream is None:
            raise draining_error()
        await self._stream.fail(send, draining_error())


async def _nothing() -> dict[str, str]:
    return {"type": "http.disconnect"}
