"""A WebSocket on uvicorn's listener: written to without waiting, read at all times, always ended.

The websockets library does the protocol. The application says yes or no to the handshake
and then hands the socket over: what it passes is called with each text, and at the end. So an idle
socket has no task and no buffer of its own. From the handshake until it is handed over,
and as long as the listener wants no more, nothing is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context, copy_context
from typing import Any, cast

from starlette.types import Message, Scope
from uvicorn.config import Config
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol as FrameProtocol
from websockets.protocol import Side, State

from app.gateway.frame_flood import FLOOD_CODE, FLOOD_REASON, count_frame, is_flood
from app.gateway.gate import Place
from app.gateway.keepalive import PingWheel
from app.gateway.partials import PartialMessages
from app.gateway.socket_handshake import SocketHandshake, library_logger
from app.gateway.transport import (
    CLOSE_TIMEOUT_S,
    CONNECTION,
    WRITE_HIGH_WATER_BYTES,
    raw_answer,
    raw_refusal,
)
from app.protocol.errors import public
from engine.contract import InvalidRequest

logger = logging.getLogger(__name__)

RESTART_CODE = 1012
BINARY_CODE = 1003
NOT_UTF8_CODE = 1007
SILENT_CODE = 1011
SILENT_REASON = "keepalive ping timeout"
# Parsed in one go: so much at most is read before it shows that it is too many frames.
READ_BYTES = 16 * 1024


class SocketConnection(asyncio.Protocol):
    """See the module.

    Args:
        config: uvicorn's.
        server_state: Connections and tasks that uvicorn waits for at its end.
        app_state: Holds the connection as it was before the upgrade.
        _loop: Not used.
        pings: Pings it once it is handed over.
        partials: Bounds what it holds of messages that are not whole.

    Attributes:
        place: Behind the gate.
        transport: The bytes' way.
        on_writable: Called when the transport takes bytes again.
        is_congested: Whether the peer reads too slowly to take more right now.
        ping_payload: Of the ping that waits for its pong.
        wheel_slot: Kept by the wheel.
    """

    __slots__ = (
        "_close_timer",
        "_config",
        "_context",
        "_drained",
        "_early",
        "_frames",
        "_frames_whole_at",
        "_handshake",
        "_has_ended",
        "_is_deaf",
        "_is_partial",
        "_on_end",
        "_on_text",
        "_partials",
        "_parts",
        "_pings",
        "_pong",
        "_refusal",
        "_server_state",
        "is_congested",
        "on_writable",
        "ping_payload",
        "place",
        "transport",
        "wheel_slot",
    )

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        pings: PingWheel,
        partials: PartialMessages,
    ) -> None:
        self._config = config
        self._server_state = server_state
        # The connection as it was before the upgrade; its place goes on. It refers to itself
        # here, and is needed no more.
        self.place: Place | None = app_state.pop(CONNECTION).place
        state = {**app_state, CONNECTION: self}
        self._handshake: SocketHandshake | None = SocketHandshake(config, state)
        self._pings = pings
        self._partials = partials
        self.transport: asyncio.Transport
        self.on_writable: Callable[[], None] | None = None
        self.is_congested = False
        self.ping_payload: bytes | None = None
        self.wheel_slot = 0
        self._refusal: tuple[int, list[tuple[bytes, bytes]]] | None = None
        self._frames: FrameProtocol | None = None
        self._early = b""
        self._on_text: Callable[[str], None] | None = None
        self._on_end: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._context: Context | None = None
        self._parts: bytearray | None = None
        # Of the last ping, while the peer reads too slowly to be sent it.
        self._pong = b""
        self._is_partial = False
        self._frames_whole_at = 0.0
        self._is_deaf = False
        self._has_ended = False
        self._close_timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None

    # What asyncio and uvicorn call.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self._server_state.connections.add(self)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._server_state.connections.discard(self)
        if self.place is not None:
            self.place.leave()
        if self._close_timer is not None:
            self._close_timer.cancel()
            self._close_timer = None
        self._is_deaf = True
        self._end()
        self._wake()
        if self._frames is not None:
            # Its frame refers back to it, and would wait for the garbage collector.
            self._frames.parser.close()

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self.is_congested = True

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self.is_congested = False
        if self._pong and self.is_open:
            self.transport.write(self._pong)
        self._pong = b""
        if self.on_writable is not None:
            self.on_writable()
        if not self.is_congested:
            self._wake()

    def eof_received(self) -> None:
        """See asyncio.Protocol; what it has not read by now, it may still read for a while."""
        self._is_deaf = True
        self._end()
        self._close_soon()

    def shutdown(self) -> None:
        """See uvicorn; bounded even if the peer does not read."""
        if self._frames is None:
            self._close_soon()
        else:
            self.end(RESTART_CODE, "")

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._is_deaf:
            return
        if self._handshake is not None and not self._handshake.is_read:
            self._shake_hands(self._handshake, data)
        elif self._on_text is None and not self._has_ended:
            self._early += data
            self.transport.pause_reading()
        elif self._frames is not None:
            for start in range(0, len(data), READ_BYTES):
                self._receive(self._frames, data[start : start + READ_BYTES])
                if self._is_deaf:
                    return

    # The handshake.

    def _shake_hands(self, handshake: SocketHandshake, data: bytes) -> None:
        try:
            scope = handshake.read(data, self.transport)
        except InvalidRequest as error:
            self._forget_handshake()
            self._refuse(raw_refusal(error))
            self._close_soon()
        else:
            self.spawn(self._ask_application(scope))

    async def _ask_application(self, scope: Scope) -> None:
        try:
            await self._config.loaded_app(scope, _receive, self._send)
        except Exception as error:
            logger.exception("the application failed")
            if self._frames is None:
                self._refuse(raw_refusal(public(error)))
        self._forget_handshake()
        if self._context is None and self._close_timer is None:
            self._close_soon()

    async def _send(self, message: Message) -> None:
        """What ASGI calls send; of the handshake only."""
        match message["type"]:
            case "websocket.accept":
                self._accept(message.get("subprotocol"))
            case "websocket.http.response.start":
                self._refusal = message["status"], message["headers"]
            case "websocket.http.response.body" if self._refusal is not None:
                status, headers = self._refusal
                fields = {name.decode(): value.decode("latin-1") for name, value in headers}
                self._refuse(raw_answer(status, fields, message["body"]))
            case kind:
                raise RuntimeError(f"{kind} is no answer to a handshake.")

    def _accept(self, subprotocol: str | None) -> None:
        if self._handshake is None:
            raise RuntimeError("The handshake was answered before.")
        self.transport.write(self._handshake.acceptance(subprotocol))
        # The library's server side goes on keeping the request; the bare protocol has none.
        self._frames = FrameProtocol(
            Side.SERVER,
            state=State.OPEN,
            max_size=self._config.ws_max_size,
            logger=library_logger,
        )
        self._forget_handshake()

    def _forget_handshake(self) -> None:
        if self._handshake is not None:
            self._handshake.close()
        self._handshake = self._refusal = None

    def _refuse(self, answer: bytes) -> None:
        self._is_deaf = True
        self.transport.write(answer)

    def hand_over(
        self, on_text: Callable[[str], None], on_end: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Tell of all that comes from now on, and of what has come meanwhile.

        Args:
            on_text: Called with each whole message.
            on_end: Run as a task of the socket's, once, when nothing comes any more and
                nothing goes.
        """
        self._context = copy_context()
        if self._has_ended:
            self.spawn(on_end())
            return
        self._on_text, self._on_end = on_text, on_end
        self._pings.add(self)
        early, self._early = self._early, b""
        self.transport.resume_reading()
        if early:
            self.data_received(early)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task for this socket: logs as it does; uvicorn waits for its end."""
        context = None if self._context is None else self._context.copy()
        task = asyncio.get_running_loop().create_task(work, context=context)
        tasks: set[asyncio.Task[None]] = self._server_state.tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    # Reading.

    def pause_reading(self) -> None:
        """The listener wants no more for now."""
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        """The listener takes texts again."""
        self.transport.resume_reading()

    def _receive(self, frames: FrameProtocol, data: bytes) -> None:
        frames.receive_data(data)
        for event in frames.events_received():
            assert isinstance(event, Frame)
            is_whole = event.opcode is Opcode.TEXT and event.fin
            if is_whole or self._has_room_for_frame(frames):
                self._take(event)
            if self._is_deaf:
                return
        if frames.parser_exc is not None:
            self._fail()
            return
        self._answer_pings(frames)
        num_bytes = len(frames.reader.buffer) + (frames.cur_size or 0)
        # A message may have begun with nothing.
        if (num_bytes or frames.cur_size is not None) and not self._has_ended:
            self._is_partial = True
            self._partials.note(self, num_bytes)
        elif self._is_partial:
            self._forget_partial()

    def _has_room_for_frame(self, frames: FrameProtocol) -> bool:
        """Whether one that is no whole message may still come; too many end the socket."""
        now = asyncio.get_running_loop().time()
        self._frames_whole_at = count_frame(self._frames_whole_at, now)
        if not is_flood(self._frames_whole_at, now):
            return True
        if frames.state is State.OPEN:
            frames.send_close(FLOOD_CODE, FLOOD_REASON)
        self._fail()
        return False

    def _take(self, frame: Frame) -> None:
        match frame.opcode:
            case Opcode.TEXT | Opcode.CONT:
                self._take_part(frame)
            case Opcode.BINARY:
                self.end(BINARY_CODE, "text frames only")
            case Opcode.PONG if frame.data == self.ping_payload:
                self.ping_payload = None
            case Opcode.CLOSE:
                self._flush()
                self._end()
                self._close_soon()

    def _take_part(self, frame: Frame) -> None:
        if self._has_ended:
            return
        whole = frame.data
        if self._parts is not None:
            self._parts += frame.data
            whole = self._parts
        elif not frame.fin:
            self._parts = bytearray(frame.data)
        if not frame.fin:
            return
        self._parts = None
        if self._is_partial:
            # What is left of the data begins another message, with a time of its own.
            self._forget_partial()
        try:
            text = str(whole, "utf-8")
        except UnicodeDecodeError:
            if self._frames is not None:
                self._frames.send_close(NOT_UTF8_CODE)
            self._fail()
            return
        if self._on_text is not None:
            self._on_text(text)

    def _forget_partial(self) -> None:
        self._is_partial = False
        self._partials.forget(self)

    # Writing.

    @property
    def is_open(self) -> bool:
        """Whether frames can still be sent."""
        return (
            self._frames is not None
            and not self._has_ended
            and self._frames.state is State.OPEN
            and not self.transport.is_closing()
        )

    def send_frame(self, data: bytes) -> None:
        """Write one text frame of UTF-8 `data`; the caller minds `is_congested`."""
        if self.is_open:
            self.transport.write(text_frame(data))

    def send_frames(self, frames: Iterable[bytes]) -> None:
        """Write text frames in one go."""
        if self.is_open:
            self.transport.write(b"".join(map(text_frame, frames)))

    def _answer_pings(self, frames: FrameProtocol) -> None:
        """Write the pongs of what was read; of those that the peer won't read, keep the last.

        One pong may answer all pings before it (RFC 6455, section 5.5.3).
        """
        if self.is_congested and frames.state is State.OPEN:
            if pongs := frames.data_to_send():
                self._pong = pongs[-1]
        else:
            self._flush()

    def _flush(self) -> None:
        if self._frames is not None and (parts := self._frames.data_to_send()):
            self.transport.write(b"".join(parts))

    async def drained(self) -> None:
        """Wait until the peer has read what was written, or the socket has ended."""
        while self.is_congested and self.is_open:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._drained})

    def _wake(self) -> None:
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None

    def ping(self, payload: bytes) -> None:
        """See `Pinged`."""
        if self._frames is not None and self.is_open:
            self._frames.send_ping(payload)
            self._flush()

    # The end.

    def end(self, code: int, reason: str) -> None:
        """Send a close frame; abort if the peer has not closed within CLOSE_TIMEOUT_S."""
        if self._frames is None or not self.is_open:
            return
        self._frames.send_close(code, reason)
        self._flush()
        # The peer's own close frame is still to be read.
        self.transport.resume_reading()
        self._end()
        self._abort_later()

    def end_silent(self) -> None:
        """See `Pinged`; closing properly would wait for a peer that is gone."""
        self.end(SILENT_CODE, SILENT_REASON)

    def _fail(self) -> None:
        """Say why, and go on reading, or the peer would see a reset instead."""
        self._is_deaf = True
        self._flush()
        self.transport.write_eof()
        self.transport.resume_reading()
        self._end()
        self._abort_later()

    def _end(self) -> None:
        """Nothing comes any more, and nothing goes."""
        if self._has_ended:
            return
        self._has_ended = True
        self._early, self._parts = b"", None
        if self._is_partial:
            self._forget_partial()
        self._wake()
        if self._on_end is not None:
            self._pings.remove(self)
            self.spawn(self._on_end())
        # They belong to whom the socket was handed over to, and who refers to it.
        self._on_text = self._on_end = None

    def _close_soon(self) -> None:
        """Close once all is written; a peer that does not read holds nothing for long."""
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._abort_later()

    def _abort_later(self) -> None:
        if self._close_timer is None:
            loop = asyncio.get_running_loop()
            self._close_timer = loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)


def text_frame(data: bytes) -> bytes:
    """A whole text message from a server, unmasked (RFC 6455, section 5.2).

    The library's own way, through an object for each frame, takes as long as all else that
    is done for a delta; nothing of its state depends on text that is sent whole.
    """
    length = len(data)
    if length < 126:
        return b"\x81%c%b" % (length, data)
    if length < 65536:
        return b"\x81\x7e%b%b" % (length.to_bytes(2), data)
    return b"\x81\x7f%b%b" % (length.to_bytes(8), data)


async def _receive() -> Message:
    raise RuntimeError("What a socket says goes to whom it was handed over.")
