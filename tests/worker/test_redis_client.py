"""One connection that the worker controls itself."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from engine.worker.redis_client import RedisDownError, RedisLine, pack
from tests.redis_server import RedisServer


def unpack(wire: bytes) -> list[bytes]:
    """Inverse of `pack`, by the protocol's rules."""
    head, rest = wire.split(b"\r\n", 1)
    values = []
    for _ in range(int(head.removeprefix(b"*"))):
        size, rest = rest.split(b"\r\n", 1)
        length = int(size.removeprefix(b"$"))
        values.append(rest[:length])
        assert rest[length : length + 2] == b"\r\n"
        rest = rest[length + 2 :]
    assert rest == b""
    return values


_TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(st.one_of(st.binary(), _TEXT, st.integers()), min_size=1))
def test_packing(command: list[bytes | str | int]) -> None:
    expected = [value if isinstance(value, bytes) else str(value).encode() for value in command]
    assert unpack(pack(command)) == expected


async def test_replies_come_in_order_and_refusals_among_them(redis_url: str) -> None:
    line = RedisLine(redis_url, "test")
    replies = await line.execute([("SET", "k", "é"), ("LPUSH", "k", 1), ("GET", "k")])
    assert replies[0] == b"OK" and replies[2] == "é".encode()
    assert isinstance(replies[1], ResponseError)
    await line.close()


async def test_a_timeout_never_leaves_replies_for_the_next_call(redis_url: str) -> None:
    line = RedisLine(redis_url, "test")
    with pytest.raises(RedisDownError, match="timed out"):
        await line.execute([("BLPOP", "nothing", 1)], timeout_s=0.05)
    assert await line.execute([("ECHO", "mine")]) == [b"mine"]
    task = asyncio.create_task(line.execute([("BLPOP", "nothing", 1)]))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await line.execute([("ECHO", "mine")]) == [b"mine"]
    await line.close()


async def test_every_way_of_being_away_is_one_error(own_redis: RedisServer) -> None:
    line = RedisLine(own_redis.url, "test")
    assert await line.execute([("PING",)]) == [b"PONG"]
    own_redis.kill()
    for _ in range(2):
        with pytest.raises(RedisDownError):
            await line.execute([("PING",)])
    own_redis.start()
    assert await line.execute([("PING",)]) == [b"PONG"]
    with own_redis.client() as outside:
        outside.config_set("maxmemory", 1)
        with pytest.raises(RedisDownError, match="can't serve"):
            await line.execute([("SET", "k", "v")])
        outside.config_set("maxmemory", 0)
        outside.replicaof("127.0.0.1", 1)
        with pytest.raises(RedisDownError, match="can't serve"):
            await line.execute([("SET", "k", "v")])
    await line.close()
