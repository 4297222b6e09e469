"""`/v1/responses` as a WebSocket: many responses on one connection, in lanes.

A lane carries out its creates one after the other; lanes run beside each other. The
socket remembers the last response of each lane, so that one that is not stored can be
continued too, from any lane. A stored response goes on when the socket is gone, to be
resumed over HTTP; one that is not ends with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field

from app.auth import Authenticator
from app.gateway.config import GatewayConfig
from app.gateway.credential_watch import CredentialWatch
from app.gateway.metrics import GatewayMetrics
from app.gateway.responses import Responses
from app.gateway.responses_api import events_of
from app.gateway.responses_maker import Making, Parent, ResponseMaker
from app.gateway.socket_connection import SocketConnection
from app.gateway.socket_route import Handshake, OpenSocket, SocketRoute
from app.gateway.throttle import TenantThrottles, Throttle
from app.gateway.writer import SocketWriter
from app.protocol.errors import error_object, public
from app.protocol.fields import Fields
from app.protocol.json_codec import decode_object, encode
from app.protocol.responses.commands import Cancel, Create, read_event, read_stream_id
from engine.contract import Cursor, Delta, InvalidRequest, Overloaded, ReparteeError

logger = logging.getLogger(__name__)

MAX_LANES = 32
MAX_ACTIVE = 16
# Creates that wait for their lane or for a place, and the characters of their events.
MAX_WAITING = 64
MAX_WAITING_CHARS = 4 * 1024 * 1024


@dataclass(slots=True)
class Lane:
    """One lane.

    Attributes:
        waiting: Creates to be carried out, with the characters of their events.
        task: Carries them out; None while there is nothing to do.
        making: The response under way.
        latest: The last one's id, and what continues it.
    """

    waiting: deque[tuple[Create, int]] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    making: Making | None = None
    latest: tuple[str, Parent] | None = None


class ResponsesSocket(OpenSocket):
    """One socket; see the module.

    Args:
        connection: The accepted socket.
        writer: The only way to write to it.
        maker: Makes responses.
        watch: Whose socket it is, and for how long.
        throttles: Slow down whoever sends too many events.
    """

    def __init__(
        self,
        connection: SocketConnection,
        writer: SocketWriter,
        maker: ResponseMaker,
        watch: CredentialWatch,
        throttles: tuple[Throttle, ...],
    ) -> None:
        super().__init__(connection, writer, watch, throttles)
        self._maker = maker
        self._lanes: dict[str | None, Lane] = {}
        self._places = asyncio.Semaphore(MAX_ACTIVE)
        self._goodbye: tuple[int, str] | None = None

    @property
    def _responses(self) -> Responses:
        return self._maker.responses

    async def finish(self) -> None:
        """See `OpenSocket`; what is stored goes on."""
        try:
            await super().finish()
        finally:
            await self._end()

    def drain(self, code: int, reason: str) -> None:
        """Close once nothing runs here."""
        self._goodbye = (code, reason)
        self._say_goodbye()

    def _say_goodbye(self) -> None:
        if self._goodbye is not None and not any(lane.task for lane in self._lanes.values()):
            self.close(*self._goodbye)

    async def _end(self) -> None:
        self._goodbye = None
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        chains = {lane.latest[1].chain for lane in self._lanes.values() if lane.latest}
        self._responses.spawn(self._release(chains))

    async def _release(self, chains: set[str]) -> None:
        """Nothing need be kept in the engine for those who have left."""
        for chain in chains:
            try:
                await self._responses.engine.release(chain)
            except ReparteeError as error:
                logger.debug("%s not released: %s", chain, error)

    async def carry_out(self, text: str) -> None:
        """See `OpenSocket`."""
        stream_id: str | None = None
        try:
            fields = Fields(decode_object(text))
            stream_id = read_stream_id(fields)
            command = read_event(fields, stream_id, self._responses.engine.card)
            if isinstance(command, Cancel):
                await self._cancel(command)
            else:
                self.watch.check()
                self._enqueue(command, len(text))
        except ReparteeError as error:
            self._tell(error, stream_id)
        except Exception as error:
            logger.exception("an event failed")
            self._tell(error, stream_id)

    def _tell(self, error: Exception, stream_id: str | None) -> None:
        self._writer.send(error_frame(error, stream_id))

    def _enqueue(self, create: Create, num_chars: int) -> None:
        self._responses.check_open()
        waiting = [chars for lane in self._lanes.values() for _, chars in lane.waiting]
        if len(waiting) >= MAX_WAITING or (waiting and sum(waiting) > MAX_WAITING_CHARS):
            raise Overloaded(
                f"At most {MAX_WAITING} responses, of {MAX_WAITING_CHARS} characters together, "
                "may wait on one connection.",
                code="too_many_responses",
            )
        lane = self._lane(create.stream_id)
        lane.waiting.append((create, num_chars))
        if lane.task is None:
            lane.task = asyncio.create_task(self._work(lane), name="responses-lane")

    def _lane(self, stream_id: str | None) -> Lane:
        lane = self._lanes.get(stream_id)
        if lane is None:
            num_named = len(self._lanes.keys() - {None})
            if stream_id is not None and num_named >= MAX_LANES:
                raise InvalidRequest(
                    f"A connection has at most {MAX_LANES} named lanes.",
                    code="websocket_stream_limit_reached",
                    param="stream_id",
                )
            lane = self._lanes[stream_id] = Lane()
        return lane

    async def _work(self, lane: Lane) -> None:
        try:
            while lane.waiting:
                create, _ = lane.waiting.popleft()
                async with self._places:
                    await self._make(lane, create)
        finally:
            lane.task = None
            self._say_goodbye()

    async def _make(self, lane: Lane, create: Create) -> None:
        try:
            parent = await self._parent(create)
            making = lane.making = await self._maker.make(
                create.request, self.watch.principal, parent, is_chained=True
            )
            await self._follow(making, create.stream_id)
            if making.answer.end is not None:
                lane.latest = making.response_id, making.after(making.answer.end)
        except ReparteeError as error:
            self._tell(error, create.stream_id)
        except Exception as error:
            logger.exception("a response failed")
            self._tell(error, create.stream_id)
        finally:
            if lane.making is not None:
                lane.making.answer.leave()
                lane.making = None

    async def _parent(self, create: Create) -> Parent | None:
        wanted = create.request.previous_response_id
        if wanted is None:
            return None
        for lane in self._lanes.values():
            if lane.latest is not None and lane.latest[0] == wanted:
                return lane.latest[1]
        return await self._maker.parent(wanted, self.watch.principal)

    async def _follow(self, making: Making, stream_id: str | None) -> None:
        view = events_of(making.record, making.answer, stream_id=stream_id)
        writer = self._writer
        writer.send_all(view.take(making.first))
        async for event in making.answer:
            if not isinstance(event, Delta):
                writer.send_all(view.take(event))
                continue
            before, text = view.note(event.text)
            if before:
                writer.send_all(before)
            if text:
                writer.send_text(view, text, Cursor(event.epoch, event.seq))

    async def _cancel(self, cancel: Cancel) -> None:
        """End what runs here: one response, or whatever is on a lane."""
        for stream_id, lane in self._lanes.items():
            making = lane.making
            is_meant = making is not None and (
                making.response_id == cancel.response_id
                if cancel.response_id is not None
                else stream_id == cancel.stream_id
            )
            if making is not None and is_meant:
                await self._responses.engine.cancel(making.response_id)
                return
        raise InvalidRequest(
            "There is no active response to cancel.",
            code="response_cancel_not_active",
            param="response_id",
        )


class ResponsesSocketRoute(SocketRoute[ResponsesSocket]):
    """The route's handler; see `SocketRoute`.

    Args:
        maker: Makes responses.
        config: Limits.
        metrics: Counts sockets.
        authenticator: Knows callers, also those who renew their credential.
        throttles: Slow down tenants that send too many events.
    """

    def __init__(
        self,
        maker: ResponseMaker,
        config: GatewayConfig,
        metrics: GatewayMetrics,
        authenticator: Authenticator,
        throttles: TenantThrottles,
    ) -> None:
        super().__init__(maker.responses, config, metrics, authenticator, throttles)
        self._maker = maker

    async def _open(self, handshake: Handshake, writer: SocketWriter) -> ResponsesSocket:
        watch = CredentialWatch(
            handshake.principal,
            self._authenticator,
            handshake.authenticate,
            tell=lambda error: writer.send(error_frame(error, None)),
            close=writer.close,
        )
        throttles = self._throttles_for(handshake.principal)
        watch.start()
        return ResponsesSocket(handshake.connection, writer, self._maker, watch, throttles)


def error_frame(error: BaseException, stream_id: str | None) -> bytes:
    """The `error` event of this route."""
    known = public(error)
    lane = {} if stream_id is None else {"stream_id": stream_id}
    return encode(
        {"type": "error", "status": known.http_status, "error": error_object(known), **lane}
    )
