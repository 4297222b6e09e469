"""One socket after the other that sends frames and judges what comes back."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import struct
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import quote

from load_tests.fuzzing import bodies
from load_tests.fuzzing.bodies import Known, Template
from load_tests.fuzzing.findings import Findings
from load_tests.fuzzing.http_inputs import Caller
from load_tests.fuzzing.http_lane import BOUND_S
from load_tests.fuzzing.socket_inputs import (
    CLOSE,
    PING,
    PONG,
    TEXT,
    Frames,
    frame,
    make_frames,
    plain_event,
)

_LAST_WORD = b"last"


class SocketLane:
    """See the module.

    Args:
        port: The gateway's.
        callers: Whose sockets may be opened.
        rng: Chooses everything.
        findings: Where faults go.
    """

    def __init__(
        self, port: int, callers: list[Caller], rng: random.Random, findings: Findings
    ) -> None:
        self._port = port
        self._callers = callers
        self._rng = rng
        self._findings = findings

    async def run(self) -> None:
        """Until enough was sent."""
        while self._findings.take("socket"):
            caller = self._rng.choice(self._callers)
            target = self._target(caller)
            try:
                async with asyncio.timeout(2 * BOUND_S):
                    await self._one(caller, target)
            except TimeoutError:
                self._findings.fault("no end in time", target.encode(), f"{2 * BOUND_S} s")
            except ConnectionError as error:
                self._findings.fault("no handshake", target.encode(), repr(error))

    def _target(self, caller: Caller) -> str:
        rng = self._rng
        if rng.random() < 0.3:
            return "/v1/responses"
        fields = []
        if rng.random() < 0.5:
            known = caller.other if rng.random() < 0.1 else caller.known
            fields.append(("session_id", known.one_of("sessions", rng)))
        if rng.random() < 0.2:
            fields += [("epoch", rng.choice("12x")), ("starting_after", rng.choice("0159-"))]
        if rng.random() < 0.2:
            fields.append(("response_id", caller.known.one_of("responses", rng)))
        if rng.random() < 0.05:
            fields.append(
                (rng.choice(("model", "ticket", "x")), rng.choice(("", "a", "\0", "x" * 200)))
            )
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in fields)
        return "/v1/realtime" + (f"?{query}" if query else "")

    async def _one(self, caller: Caller, target: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            if await self._shake_hands(reader, writer, caller, target):
                talk = SocketTalk(reader, writer, self._rng, self._findings, caller, target)
                await talk.run()
        finally:
            writer.transport.abort()

    async def _shake_hands(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        caller: Caller,
        target: str,
    ) -> bool:
        key = base64.b64encode(self._rng.randbytes(16)).decode()
        upgrade = ("connection: Upgrade", "upgrade: websocket", "sec-websocket-version: 13")
        lines = [f"GET {target} HTTP/1.1", "host: 127.0.0.1", *upgrade, *caller.headers]
        writer.write("\r\n".join([*lines, f"sec-websocket-key: {key}", "", ""]).encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 101 "):
            return True
        self._findings.answers[f"handshake {head[9:12].decode()}"] += 1
        if head[9:12] == b"503":
            self._findings.num_unavailable += 1
        elif head[9:10] == b"5":
            self._findings.fault("refused with 5xx", target.encode(), head)
        return False


class SocketTalk:
    """One open socket: sends, and reads all the while.

    Args:
        reader: After the handshake.
        writer: Likewise.
        rng: Chooses what to send.
        findings: Where faults go.
        caller: Whose it is.
        target: What was asked for.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        rng: random.Random,
        findings: Findings,
        caller: Caller,
        target: str,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._rng = rng
        self._findings = findings
        # Items belong to one conversation, all else to the tenant.
        self._known = replace(caller.known, items=Known().items)
        self._is_realtime = target.startswith("/v1/realtime")
        self._given = target.encode()
        self._kinds: list[str] = []
        self._heard = ""
        self._running: set[str] = set()
        self._last_word = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.close_code: int | None = None

    @property
    def _templates(self) -> Sequence[Template]:
        return bodies.REALTIME if self._is_realtime else bodies.RESPONSES

    @property
    def _story(self) -> str:
        return f"close {self.close_code} after {', '.join(self._kinds)}; heard {self._heard}"

    async def run(self) -> None:
        """To the end of the socket."""
        reading = asyncio.create_task(self._read())
        try:
            last = await self._send_some(reading)
            with contextlib.suppress(ConnectionError):
                await self._part(last, reading)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _send_some(self, reading: asyncio.Task[None]) -> Frames | None:
        """What was sent last; None for nothing."""
        last = None
        for _ in range(self._rng.choice((0, 1, 3, 10, 30))):
            given = make_frames(self._rng, self._templates, self._known)
            if reading.done() or not self._findings.take(given.kind):
                break
            last, self._given = given, given.data
            self._kinds.append(given.kind)
            self._writer.write(given.data)
            if not given.is_sound:
                break
            await asyncio.sleep(self._rng.choice((0, 0, 0, 0.001, 0.02)))
        return last

    async def _part(self, last: Frames | None, reading: asyncio.Task[None]) -> None:
        """Leave in one of many ways; what is owed has to come before a polite one."""
        kind = self._rng.randrange(5)
        if kind == 0:
            self._writer.transport.abort()
            return
        if last is not None and not last.is_sound:
            if last.kind in ("half a frame", "bytes", "announced large") or kind == 1:
                self._writer.write_eof()
            await self._ended(reading)
            return
        self._writer.write(frame(PING, _LAST_WORD))
        if self._is_realtime:
            self._writer.write(plain_event("repartee.ping"))
        if not await self._answered(reading):
            return
        if kind == 1:
            self._writer.write_eof()
        else:
            self._writer.write(frame(CLOSE, struct.pack("!H", 1000)))
        await self._ended(reading)

    async def _answered(self, reading: asyncio.Task[None]) -> bool:
        """Whether the socket still answers, and all of its responses have ended."""
        if not await self._comes(self._last_word, reading):
            if not reading.done():
                self._findings.fault("no answer on a socket", self._given, self._story)
            return False
        while self._running:
            if not await self._comes(self._idle, reading):
                if not reading.done():
                    self._findings.fault("a response without end", self._given, self._running)
                return False
        return True

    async def _comes(self, event: asyncio.Event, reading: asyncio.Task[None]) -> bool:
        waiting = asyncio.create_task(event.wait())
        await asyncio.wait({waiting, reading}, timeout=BOUND_S, return_when="FIRST_COMPLETED")
        came = waiting.done()
        waiting.cancel()
        return came

    async def _ended(self, reading: asyncio.Task[None]) -> None:
        await asyncio.wait({reading}, timeout=BOUND_S)
        if not reading.done():
            self._findings.fault("a socket without end", self._given, self._story)

    async def _read(self) -> None:
        try:
            while True:
                first, second = await self._reader.readexactly(2)
                length = second & 0x7F
                if length > 125:
                    size = 2 if length == 126 else 8
                    length = int.from_bytes(await self._reader.readexactly(size))
                self._take(first & 0x0F, await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            self._findings.answers[f"close {self.close_code}"] += 1

    def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == CLOSE:
            self.close_code = int.from_bytes(payload[:2]) if len(payload) > 1 else 1005
            if self.close_code == 1011:
                self._findings.fault("close 1011", self._given, payload)
        elif opcode == PING:
            self._writer.write(frame(PONG, payload))
        elif opcode == PONG and payload == _LAST_WORD and not self._is_realtime:
            self._last_word.set()
        elif opcode == TEXT:
            self._take_event(json.loads(payload))

    def _take_event(self, event: dict[str, object]) -> None:
        kind = str(event["type"])
        self._findings.answers[kind] += 1
        self._heard = kind
        if kind == "repartee.pong":
            self._last_word.set()
        elif kind == "error":
            self._judge_error(event)
        elif kind == "session.created":
            session = event["session"]
            assert isinstance(session, dict)
            self._known.sessions.append(session["id"])
            items = event["repartee.items"]
            assert isinstance(items, list)
            self._known.items.extend(item["id"] for item in items)
        elif kind == "conversation.item.added":
            item = event["item"]
            assert isinstance(item, dict)
            self._known.items.append(item["id"])
        response = event.get("response")
        if isinstance(response, dict):
            self._take_response(kind, str(response["id"]), response)

    def _take_response(self, kind: str, response_id: str, response: dict[str, object]) -> None:
        if kind in ("response.created", "repartee.response.resumed"):
            self._known.responses.append(response_id)
            self._running.add(response_id)
            self._idle.clear()
        elif kind in (
            "response.done",
            "response.completed",
            "response.incomplete",
            "response.failed",
        ):
            if response_id not in self._running:
                self._findings.fault("an end too many", self._given, response)
            self._running.discard(response_id)
            if not self._running:
                self._idle.set()

    def _judge_error(self, event: dict[str, object]) -> None:
        error = event["error"]
        assert isinstance(error, dict)
        status = event.get("status", 400)
        if error["code"] == "redis_unavailable":
            self._findings.num_unavailable += 1
        elif error["type"] not in _EXPECTED_TYPES or (isinstance(status, int) and status >= 500):
            self._findings.fault(f"error event {error['code']}", self._given, event)


_EXPECTED_TYPES = (
    *("invalid_request_error", "authentication_error", "permission_error", "rate_limit_error"),
)
