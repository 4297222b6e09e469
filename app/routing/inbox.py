"""The gateway's own stream: one blocking reader for all of its responses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import orjson
from redis.exceptions import RedisError

from app.redis_client import RedisLine
from engine.contract import Event, event_from_wire, keys

logger = logging.getLogger(__name__)

BLOCK_MS = 2000
READ_COUNT = 100
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0

# How often what was read is trimmed and the key's life renewed.
TRIM_S = 1.0


class GatewayInbox:
    """Reads batches of events until cancelled, always from an explicit id.

    Args:
        redis_url: For a connection of the reader's own.
        gateway_id: Whose stream.
        on_events: Called with each batch.
        on_reconnect: Called after a read succeeds that follows a failed one.
    """

    def __init__(
        self,
        redis_url: str,
        gateway_id: str,
        *,
        on_events: Callable[[list[Event]], None],
        on_reconnect: Callable[[], None],
    ) -> None:
        self._key = keys.gateway(gateway_id)
        self._line = RedisLine(
            redis_url, f"repartee-gateway-{gateway_id}-reader", block_s=BLOCK_MS / 1000
        )
        self._on_events = on_events
        self._on_reconnect = on_reconnect
        self._last_id = "0-0"
        self._trimmed_at = 0.0
        self.is_connected = False

    async def run(self) -> None:
        """Read for ever, reconnecting."""
        delay_s = RETRY_FIRST_S
        was_down = False
        while True:
            try:
                entries = await self._read()
            except (RedisError, OSError) as error:
                if not was_down:
                    logger.warning("gateway inbox: %s; reconnecting", error)
                was_down, self.is_connected = True, False
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, RETRY_MAX_S)
                continue
            self.is_connected, delay_s = True, RETRY_FIRST_S
            if was_down:
                was_down = False
                self._on_reconnect()
            for entry_id, fields in entries:
                self._last_id = entry_id.decode()
                self._dispatch(fields)

    async def _read(self) -> list[tuple[bytes, list[bytes]]]:
        """(id, fields and values in turn) of what has come, or comes within BLOCK_MS."""
        # A first read that needn't wait shows a fresh connection to be good.
        block = BLOCK_MS if self.is_connected else 1
        head = ("XREAD", "COUNT", READ_COUNT, "BLOCK", block, "STREAMS")
        commands: list[Sequence[bytes | str | int]] = [(*head, self._key, self._last_id)]
        now = time.monotonic()
        if now - self._trimmed_at > TRIM_S:
            milliseconds, seq = self._last_id.split("-")
            after = f"{milliseconds}-{int(seq) + 1}"
            commands.insert(0, ("XTRIM", self._key, "MINID", "=", after))
            commands.insert(1, ("EXPIRE", self._key, keys.GATEWAY_TTL_S))
        reply = (await self._line.execute(commands))[-1]
        if len(commands) > 1:
            self._trimmed_at = now
        entries: list[tuple[bytes, list[bytes]]] = reply[0][1] if reply else []
        return entries

    def _dispatch(self, fields: list[bytes]) -> None:
        try:
            events = [event_from_wire(wire) for wire in orjson.loads(_body(fields))]
        except (KeyError, TypeError, ValueError) as error:
            logger.warning("unreadable batch passed over: %s: %s", type(error).__name__, error)
            return
        self._on_events(events)

    async def close(self) -> None:
        """Drop the stream and the connection; call after `run` was cancelled."""
        try:
            await self._line.execute([("DEL", self._key)])
        except (RedisError, OSError) as error:
            logger.debug("the gateway's stream is left to expire: %s", error)
        await self._line.close()


def _body(fields: list[bytes]) -> bytes:
    return fields[fields[::2].index(b"b") * 2 + 1]
