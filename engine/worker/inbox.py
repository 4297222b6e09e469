"""Commands from the worker's inbox stream.

One blocking reader on a connection of its own, always from an explicit id, so that
nothing is passed over when a read is repeated. What has been handed on is trimmed
with the next read. An entry that can't be read is logged and passed over, so it
can't come back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import orjson
from redis.exceptions import ResponseError

from engine.contract import Command, ReparteeError, command_from_wire, keys
from engine.worker.redis_client import RedisDownError, RedisLine, Value

logger = logging.getLogger(__name__)

BLOCK_MS = 2000
READ_COUNT = 256
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0


class Inbox:
    """Reads commands until cancelled.

    Args:
        line: A connection of the inbox's own.
        worker_id: Whose inbox.
        on_command: Called with each command, in order.
        on_bad_submit: Called with (request id, epoch, gateway, error) for a submit
            whose values are refused by the contract.
        on_reconnect: Called after a read succeeds on a new connection.
    """

    def __init__(
        self,
        line: RedisLine,
        worker_id: str,
        *,
        on_command: Callable[[Command], None],
        on_bad_submit: Callable[[str, int, str, ReparteeError], None],
        on_reconnect: Callable[[], None],
    ) -> None:
        self._line = line
        self._key = keys.inbox(worker_id)
        self._on_command = on_command
        self._on_bad_submit = on_bad_submit
        self._on_reconnect = on_reconnect
        self._last_id = "0-0"
        self.num_bad = 0

    async def run(self) -> None:
        """Read and hand on, reconnecting for ever."""
        delay_s = RETRY_FIRST_S
        down = False
        while True:
            try:
                entries = await self._read()
            except RedisDownError:
                down = True
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, RETRY_MAX_S)
                continue
            if down:
                down, delay_s = False, RETRY_FIRST_S
                self._on_reconnect()
            for entry_id, fields in entries:
                self._last_id = entry_id.decode()
                self._dispatch(fields)

    async def _read(self) -> list[tuple[bytes, list[bytes]]]:
        read: tuple[Value, ...] = (
            *("XREAD", "COUNT", READ_COUNT, "BLOCK", BLOCK_MS),
            *("STREAMS", self._key, self._last_id),
        )
        commands = [
            ("XTRIM", self._key, "MINID", _after(self._last_id)),
            ("EXPIRE", self._key, keys.INBOX_TTL_S),
            read,
        ]
        reply = (await self._line.execute(commands, timeout_s=BLOCK_MS / 1000 + 3.0))[2]
        if isinstance(reply, ResponseError):
            raise RedisDownError(f"reading {self._key}: {reply}")
        return reply[0][1] if reply else []

    def _dispatch(self, fields: list[bytes]) -> None:
        """Hand one entry on. Whatever it holds, the next one is read."""
        try:
            wire = orjson.loads(dict(zip(fields[::2], fields[1::2], strict=True))[b"c"])
            try:
                command = command_from_wire(wire)
            except ReparteeError as error:
                request = wire["request"]
                self._on_bad_submit(request["id"], request["epoch"], request["reply_to"], error)
            else:
                self._on_command(command)
        except Exception as error:
            self.num_bad += 1
            logger.warning("inbox entry passed over: %s: %s", type(error).__name__, error)


def _after(entry_id: str) -> str:
    """The smallest id above `entry_id`."""
    milliseconds, seq = entry_id.split("-")
    return f"{milliseconds}-{int(seq) + 1}"
