"""One connection after the other that sends HTTP inputs and judges what comes back."""

from __future__ import annotations

import asyncio
import json
import random
import re
from dataclasses import dataclass

from load_tests.fuzzing.findings import Findings
from load_tests.fuzzing.http_inputs import Caller, Input, make_input

# What cannot be told from a hang by a machine that does much else.
BOUND_S = 40.0
_MAX_HEAD = 1 << 20
_ID = re.compile(rb'"id":"((?:resp|sess)_[0-9a-f]{24})"')
_HANG_UP = 0.05


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def is_last(self) -> bool:
        """Whether the connection ends with it."""
        return self.headers.get("connection", "").lower() == "close"


class HttpLane:
    """See the module.

    Args:
        port: The gateway's.
        callers: Whose requests may be sent.
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
        self._line: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self) -> None:
        """Until enough was sent."""
        while True:
            caller = self._rng.choice(self._callers)
            given = make_input(self._rng, caller)
            if not self._findings.take(given.kind, max(1, len(given.methods))):
                break
            try:
                async with asyncio.timeout(BOUND_S):
                    await self._try(given, caller)
            except TimeoutError:
                self._findings.fault("no answer in time", given.data, f"{BOUND_S} s")
                await self._hang_up()
        await self._hang_up()

    async def _try(self, given: Input, caller: Caller) -> None:
        if self._line is None:
            self._line = await asyncio.open_connection("127.0.0.1", self._port, limit=_MAX_HEAD)
        reader, writer = self._line
        try:
            writer.write(given.data)
            if not given.methods:
                await self._to_end(given, reader, writer)
            elif self._rng.random() < _HANG_UP:
                await asyncio.sleep(self._rng.choice((0, 0, 0.01)))
                await self._hang_up()
            else:
                await self._judge_all(given, caller, reader)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            if given.methods:
                self._findings.fault("no answer", given.data, repr(error))
            await self._hang_up()

    async def _judge_all(self, given: Input, caller: Caller, reader: asyncio.StreamReader) -> None:
        for method in given.methods:
            answer = await read_answer(reader, method)
            self._judge(given, caller, method, answer)
            if answer.is_last:
                await self._hang_up()
                return

    async def _to_end(
        self, given: Input, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """No more is sent: whatever it was, the connection has to end."""
        if self._rng.random() < 0.5:
            await asyncio.sleep(0.005)
        writer.write_eof()
        data = await reader.read()
        for status in re.findall(rb"^HTTP/1\.1 (\d{3})", data, re.MULTILINE):
            self._note_status(given, int(status), data)
        await self._hang_up()

    def _judge(self, given: Input, caller: Caller, method: str, answer: Answer) -> None:
        self._note_status(given, answer.status, answer.body)
        if b'"type":"internal' in answer.body or b"Traceback" in answer.body:
            self._findings.fault("internal error shown", given.data, answer.body)
        if answer.status >= 400 and method != "HEAD":
            self._judge_error(given, answer)
        if given.is_foreign and answer.status < 300 and method != "HEAD":
            if len(_ID.findall(answer.body)) > 0:
                self._findings.fault("another tenant's shown", given.data, answer.body)
        elif not given.is_foreign and answer.status == 200:
            for match in _ID.findall(answer.body):
                known = caller.known.sessions if match[:4] == b"sess" else caller.known.responses
                known.append(match.decode())

    def _note_status(self, given: Input, status: int, body: bytes) -> None:
        self._findings.answers[str(status)] += 1
        if status == 503 and b"redis_unavailable" in body:
            self._findings.num_unavailable += 1
        elif status >= 500:
            self._findings.fault(f"status {status}", given.data, body)

    def _judge_error(self, given: Input, answer: Answer) -> None:
        try:
            error = json.loads(answer.body)["error"]
            is_sound = {"message", "type", "param", "code"} <= set(error) and error["message"]
        except (ValueError, KeyError, TypeError):
            is_sound = False
        if not is_sound:
            self._findings.fault("no error object", given.data, (answer.status, answer.body))

    async def _hang_up(self) -> None:
        if self._line is not None:
            self._line[1].transport.abort()
            self._line = None


async def read_answer(reader: asyncio.StreamReader, method: str) -> Answer:
    """The next answer of a connection.

    Raises:
        asyncio.IncompleteReadError: the connection ended before it did.
    """
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    status = int(first.split(" ", 2)[1])
    if status == 100:
        return await read_answer(reader, method)
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    if method == "HEAD" or status in (204, 304):
        return Answer(status, headers, b"")
    if headers.get("transfer-encoding", "") == "chunked":
        return Answer(status, headers, await _chunks(reader))
    return Answer(status, headers, await reader.readexactly(int(headers["content-length"])))


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        size = int(await reader.readuntil(b"\r\n"), 16)
        body += (await reader.readexactly(size + 2))[:-2]
        if size == 0:
            return bytes(body)
