"""`/v1/responses` over HTTP: made, read, resumed, cancelled, forgotten."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

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
from app.gateway.responses import Responses, draining_error
from app.gateway.responses_maker import Making, ResponseMaker, shown_end
from app.gateway.responses_recorder import RecordedAnswer, Replay
from app.protocol.fields import Fields
from app.protocol.json_codec import decode_object, encode
from app.protocol.responses.events import ResponseEvents, ResponseSse
from app.protocol.responses.items import InputItem
from app.protocol.responses.objects import deleted_object, input_list, running_object
from app.protocol.responses.queries import read_input_query, read_retrieve_query
from app.protocol.responses.request import ResponsesRequest, read_responses_request
from app.sessions.stored import ResponseStore, StoredResponse, no_response
from engine.contract import Event, Failed, NotFound, ReparteeError

logger = logging.getLogger(__name__)

# How long a cancel waits for the end that it asked for.
CANCEL_WAIT_S = 10.0
# A record is there before its request is at a worker: how often that is looked for.
ATTACH_TRIES = 10
ATTACH_WAIT_S = 0.05


class ResponsesRoutes:
    """The routes' handlers.

    Args:
        responses: The way to the engine.
        store: The responses that are kept.
        config: Limits.
        metrics: Counts streams that were cut.
    """

    def __init__(
        self,
        responses: Responses,
        store: ResponseStore,
        config: GatewayConfig,
        metrics: GatewayMetrics,
    ) -> None:
        self.responses = responses
        self.store = store
        self.maker = ResponseMaker(responses, store)
        self._config = config
        self._metrics = metrics

    async def create(self, request: Request) -> Response:
        """`POST /v1/responses`."""
        self.responses.check_open()
        fields = Fields(decode_object(await read_body(request, self._config.max_body_bytes)))
        wanted = read_responses_request(fields, self.responses.engine.card)
        return CreateAnswer(self, wanted, _principal(request))

    async def one(self, request: Request) -> Response:
        """`GET /v1/responses/{id}`: as it stands, or its events after a place."""
        query = read_retrieve_query(request.query_params)
        record = await self._load(request)
        if not query.is_stream:
            return json_answer(_shown(record))
        answer: RecordedAnswer | Replay
        if record.end is not None:
            answer = Replay(record.response_id, record.end)
        else:
            answer = await self._attach(record)
        return ResumeAnswer(self, record, answer, query.starting_after)

    async def cancel(self, request: Request) -> Response:
        """`POST /v1/responses/{id}/cancel`: idempotent; answered once it has ended."""
        record = await self._load(request)
        if record.end is None:
            await self.responses.engine.cancel(record.response_id)
            with suppress(TimeoutError, NotFound):
                await self._wait_for_end(record)
            record = await self._load(request)
        return json_answer(_shown(record))

    async def _wait_for_end(self, record: StoredResponse) -> None:
        answer = await self._attach(record)
        try:
            async with asyncio.timeout(CANCEL_WAIT_S):
                async for _ in answer:
                    pass
        finally:
            answer.leave()

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/responses/{id}`: its answer ends too."""
        record = await self._load(request)
        await self.store.delete(record.response_id, record.tenant)
        try:
            if record.end is None:
                await self.responses.engine.cancel(record.response_id)
            else:
                await self.store.forget_log(record.response_id)
        except ReparteeError as error:
            logger.warning("response %s goes on a while: %s", record.response_id, error)
        return json_answer(deleted_object(record.response_id))

    async def input_items(self, request: Request) -> Response:
        """`GET /v1/responses/{id}/input_items`."""
        query = read_input_query(request.query_params)
        record = await self._load(request)
        items = [InputItem.from_wire(wire) for wire in record.input]
        page, has_more = query.page(items)
        return json_answer(input_list(page, has_more))

    def event_stream(
        self, events: ResponseEvents, answer: RecordedAnswer | Replay, first: Event
    ) -> EventStream:
        """A response as server-sent events."""
        return EventStream(answer, ResponseSse(events), first, self._config, self._metrics)

    async def _attach(self, record: StoredResponse) -> RecordedAnswer:
        for _ in range(ATTACH_TRIES):
            try:
                answer = await self.responses.attach(record.response_id)
            except NotFound:
                await asyncio.sleep(ATTACH_WAIT_S)
                continue
            return RecordedAnswer(answer, self.responses, self.store, is_first=False)
        raise no_response(record.response_id)

    async def _load(self, request: Request) -> StoredResponse:
        return await self.store.load(request.path_params["id"], _principal(request).owner)


class CreateAnswer(Response):
    """Makes one response; who leaves ends it, unless it is stored."""

    def __init__(
        self, routes: ResponsesRoutes, wanted: ResponsesRequest, principal: Principal
    ) -> None:
        super().__init__()
        self._routes = routes
        self._wanted = wanted
        self._principal = principal
        self._making: Making | None = None
        self._stream: EventStream | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        closing = self._routes.responses.closing
        try:
            is_cut = await while_caller_waits(self._answer(scope, send), receive, closing)
        finally:
            if self._making is not None:
                self._making.answer.leave()
        if is_cut:
            await cut_short(self._stream, send)

    async def _answer(self, scope: Scope, send: Send) -> None:
        wanted, maker = self._wanted, self._routes.maker
        parent = None
        if wanted.previous_response_id is not None:
            parent = await maker.parent(wanted.previous_response_id, self._principal)
        making = self._making = await maker.make(wanted, self._principal, parent)
        if wanted.is_stream:
            answer = making.answer
            events = events_of(making.record, answer)
            self._stream = self._routes.event_stream(events, answer, making.first)
            await self._stream.run(scope, send)
        elif wanted.is_background:
            await json_answer(running_object(making.record.head))(scope, _nothing, send)
        else:
            await json_answer(await _whole(making))(scope, _nothing, send)


class ResumeAnswer(Response):
    """Shows the events of a response after a place; who leaves changes nothing."""

    def __init__(
        self,
        routes: ResponsesRoutes,
        record: StoredResponse,
        answer: RecordedAnswer | Replay,
        after: int,
    ) -> None:
        super().__init__()
        self._routes = routes
        self._record = record
        self._answer = answer
        self._after = after
        self._stream: EventStream | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        closing = self._routes.responses.closing
        try:
            is_cut = await while_caller_waits(self._run(scope, send), receive, closing)
        finally:
            self._answer.leave()
        if is_cut:
            await cut_short(self._stream, send)

    async def _run(self, scope: Scope, send: Send) -> None:
        events = events_of(self._record, self._answer, self._after)
        first = await anext(self._answer)
        self._stream = self._routes.event_stream(events, self._answer, first)
        await self._stream.run(scope, send)


def events_of(
    record: StoredResponse,
    answer: RecordedAnswer | Replay,
    after: int = -1,
    stream_id: str | None = None,
) -> ResponseEvents:
    """The events of a response, for one reader."""
    return ResponseEvents(
        record.head,
        after=after,
        stream_id=stream_id,
        is_warm_up=record.is_warm_up,
        ended_at=lambda: answer.ended_at,
    )


async def cut_short(stream: EventStream | None, send: Send) -> None:
    """The gateway closes: say so, in the way that is still open."""
    if stream is None:
        raise draining_error()
    await stream.fail(send, draining_error())


async def _whole(making: Making) -> dict[str, object]:
    """The response once it has ended.

    Raises:
        ReparteeError: it failed.
    """
    async for event in making.answer:
        if isinstance(event, Failed):
            raise event.error
    end = making.answer.end
    if end is None:
        raise AssertionError("an answer ended without its end")
    return shown_end(making.record, end)


def _shown(record: StoredResponse) -> dict[str, object]:
    return running_object(record.head) if record.end is None else shown_end(record, record.end)


def _principal(request: Request) -> Principal:
    principal: Principal = request.scope["state"][PRINCIPAL]
    return principal


def json_answer(value: object) -> Response:
    """A JSON body that nobody keeps."""
    answer = Response(encode(value), media_type="application/json")
    answer.headers["cache-control"] = "no-store"
    return answer


async def _nothing() -> dict[str, str]:
    return {"type": "http.disconnect"}
