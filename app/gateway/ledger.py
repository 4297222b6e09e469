"""Answers that are not counted yet, so that another gateway counts a dead one's, each once.

| key | type | holds |
|---|---|---|
| `rp:gateways` | set | ids of gateways that may have such answers |
| `rp:alive:{<gid>}` | string | nothing; lives some seconds, as long as its gateway writes it |
| `rp:open:{<gid>}` | hash | by response: what counting it takes, as JSON |
| `rp:taken:{<gid>}` | set | its answers that others have counted |

A gateway that is alive counts its own answers. What is left of one that isn't is looked at
by all others; of each answer that has ended, Redis lets one of them count it. A gateway
that was held up for so long that it may have been taken for dead asks before it counts.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from redis.exceptions import RedisError

from app.redis_client import make_client
from app.routing.log import ResponseLog
from engine.contract import Failed, Finished, Tier, Unavailable, keys

logger = logging.getLogger(__name__)

BEAT_S = 2.0
# How long a gateway that says nothing is left alone; it trusts in a second less itself.
ALIVE_S = 10
MARGIN_S = 1.0
RETRY_S = 1.0
# The longest life of what nobody comes to count.
LEDGER_TTL_S = 24 * 3600
# Answers of one dead gateway looked at in one round.
MAX_LOOKED_AT = 500

GATEWAYS = "rp:gateways"

# KEYS: 1 alive, 2 open, 3 taken. ARGV: 1 response; 2 lifetime in s.
_CLAIM = """
if redis.call('EXISTS', KEYS[1]) == 1 or redis.call('HDEL', KEYS[2], ARGV[1]) == 0 then
  return 0
end
redis.call('SADD', KEYS[3], ARGV[1])
redis.call('EXPIRE', KEYS[3], ARGV[2])
return 1
"""


def alive_key(gateway_id: str) -> str:
    """Where a gateway says that it lives."""
    return f"rp:alive:{{{gateway_id}}}"


def open_key(gateway_id: str) -> str:
    """Where a gateway's answers are that it has not counted yet."""
    return f"rp:open:{{{gateway_id}}}"


def taken_key(gateway_id: str) -> str:
    """Where it learns which of its answers others have counted."""
    return f"rp:taken:{{{gateway_id}}}"


@dataclass(frozen=True, slots=True)
class Entry:
    """What counting an answer takes beside its end.

    Attributes:
        api: Which way it was asked for.
        tier: Of its caller.
        deadline_at: Unix time at which it has ended, whatever is known of it.
    """

    api: str
    tier: Tier
    deadline_at: float


Count = Callable[[str, Entry, Finished | Failed], Awaitable[None]]


class AnswerLedger:
    """See the module.

    Args:
        redis_url: Where the ledger is.
        gateway_id: This gateway's.
    """

    def __init__(self, redis_url: str, gateway_id: str) -> None:
        self._redis = make_client(redis_url, f"repartee-ledger-{gateway_id}", max_connections=4)
        self._log = ResponseLog(self._redis)
        self._claim = self._redis.register_script(_CLAIM)
        self._gateway_id = gateway_id
        self._held_until = 0.0
        self._began: dict[str, Entry] = {}
        self._ended: set[str] = set()
        self._taken: set[str] = set()
        self._changed = asyncio.Event()

    @property
    def is_held(self) -> bool:
        """Whether nobody else can have begun to count this gateway's answers."""
        return time.monotonic() < self._held_until

    def is_taken(self, response_id: str) -> bool:
        """Whether another gateway has counted this answer, as far as is known here."""
        return response_id in self._taken

    def begin(self, response_id: str, entry: Entry) -> None:
        """An answer was asked for."""
        self._began[response_id] = entry
        self._changed.set()

    def end(self, response_id: str) -> None:
        """It has been counted."""
        self._taken.discard(response_id)
        # What nobody has been told of needs no taking back.
        if self._began.pop(response_id, None) is None:
            self._ended.add(response_id)
            self._changed.set()

    async def is_ours(self, response_id: str) -> bool:
        """Whether an answer that ended while the ledger was not held is left to be counted.

        One of which Redis can't tell counts as ours: better twice than not at all.
        """
        try:
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.hdel(open_key(self._gateway_id), response_id)
                pipe.sismember(taken_key(self._gateway_id), response_id)
                _, taken = await pipe.execute()
        except (RedisError, OSError) as error:
            logger.debug("ledger not asked: %s", error)
            return True
        return not taken

    async def run(self, count: Count) -> None:
        """Keep this gateway's entries, and look after those of dead ones, for ever.

        Args:
            count: Counts a dead gateway's answer, by the entry and the end.
        """
        await asyncio.gather(self._write_forever(), self._beat_forever(count))

    async def close(self) -> None:
        """Tell what is left to tell; what still runs is for others to count."""
        try:
            await self._write()
            await self._redis.delete(alive_key(self._gateway_id))
        except (RedisError, OSError) as error:
            logger.debug("the ledger is left to expire: %s", error)
        await self._redis.aclose()

    async def _write_forever(self) -> None:
        while True:
            await self._changed.wait()
            try:
                await self._write()
            except (RedisError, OSError) as error:
                logger.debug("ledger not written: %s", error)
                await asyncio.sleep(RETRY_S)

    async def _write(self) -> None:
        """Everything that has changed, in one round trip; kept for later if it fails."""
        self._changed.clear()
        began, ended = dict(self._began), set(self._ended)
        if not began and not ended:
            return
        # Sent now, so from here on an end has to be told.
        self._began.clear()
        self._ended.clear()
        name = open_key(self._gateway_id)
        try:
            async with self._redis.pipeline(transaction=False) as pipe:
                if began:
                    wires: Any = {rid: orjson.dumps(asdict(e)) for rid, e in began.items()}
                    pipe.hset(name, mapping=wires)
                if ended:
                    pipe.hdel(name, *ended)
                pipe.expire(name, LEDGER_TTL_S)
                await pipe.execute()
        except BaseException:
            # Meanwhile some of them may have ended.
            self._began = {
                rid: e for rid, e in began.items() if rid not in self._ended
            } | self._began
            self._ended |= ended
            self._changed.set()
            raise

    async def _beat_forever(self, count: Count) -> None:
        while True:
            try:
                await self._beat()
                await self._sweep(count)
            except (RedisError, OSError) as error:
                logger.debug("ledger put off: %s", error)
            await asyncio.sleep(BEAT_S)

    async def _beat(self) -> None:
        """Live on; after a pause, learn first what was counted meanwhile."""
        began_at = time.monotonic()
        gateway_id = self._gateway_id
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.set(alive_key(gateway_id), b"", ex=ALIVE_S)
            pipe.smembers(taken_key(gateway_id))
            pipe.sadd(GATEWAYS, gateway_id)
            pipe.expire(GATEWAYS, LEDGER_TTL_S)
            pipe.expire(open_key(gateway_id), LEDGER_TTL_S)
            _, taken, *_ = await pipe.execute()
        self._taken = {each.decode() for each in taken}
        self._held_until = began_at + ALIVE_S - MARGIN_S

    async def _sweep(self, count: Count) -> None:
        """Count what dead gateways have left and what has ended."""
        listed: Any = await self._redis.smembers(GATEWAYS)
        others = sorted({each.decode() for each in listed} - {self._gateway_id})
        if not others:
            return
        async with self._redis.pipeline(transaction=False) as pipe:
            for gateway_id in others:
                pipe.exists(alive_key(gateway_id))
            alive = await pipe.execute()
        for gateway_id, lives in zip(others, alive, strict=True):
            if not lives:
                await self._look_after(gateway_id, count)

    async def _look_after(self, gateway_id: str, count: Count) -> None:
        found: Any = await self._redis.hgetall(open_key(gateway_id))
        if not found:
            # Should it live after all, its next word brings it back.
            await self._redis.srem(GATEWAYS, gateway_id)
            return
        entries = {rid.decode(): _entry(data) for rid, data in found.items()}
        # Others among them each time, and at each gateway.
        due = random.sample(sorted(entries), min(len(entries), MAX_LOOKED_AT))
        for response_id, end in await self._ends((rid, entries[rid]) for rid in due):
            names = [alive_key(gateway_id), open_key(gateway_id), taken_key(gateway_id)]
            if await self._claim(keys=names, args=[response_id, LEDGER_TTL_S]):
                await count(response_id, entries[response_id], end)

    async def _ends(
        self, entries: Iterable[tuple[str, Entry]]
    ) -> list[tuple[str, Finished | Failed]]:
        """Those that have ended, with how."""
        ends: list[tuple[str, Finished | Failed]] = []
        for response_id, entry in entries:
            last = await self._log.last(response_id)
            if isinstance(last, Finished | Failed):
                ends.append((response_id, last))
            elif time.time() > entry.deadline_at + keys.LEASE_MARGIN_S:
                error = Unavailable("The answer's end was lost.", code="answer_lost")
                ends.append((response_id, Failed(response_id, 1, 0, error)))
        return ends


def _entry(data: bytes) -> Entry:
    wire = orjson.loads(data)
    return Entry(wire["api"], Tier(wire["tier"]), wire["deadline_at"])
