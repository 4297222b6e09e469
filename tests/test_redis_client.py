"""Pools that are small, cancelled in the wait, and cut."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from redis.exceptions import AuthenticationError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from app import redis_client
from app.redis_client import RedisLine, make_client, round_trips
from app.sessions import SessionStore
from engine.contract import Unavailable
from tests.redis_proxy import running_proxy
from tests.redis_server import RedisServer, free_port


async def test_a_small_pool_waits_and_recovers(redis_url: str, redis_server: RedisServer) -> None:
    """Two connections, fifty callers, some cancelled as they wait, connections killed."""
    pool = make_client(redis_url, "small", max_connections=2, wait_s=1.0)

    async def call(number: int) -> None:
        async with asyncio.timeout(0.002 if number % 5 == 0 else None):
            await pool.set(f"k{number}", "v", ex=60)

    with redis_server.client() as outside:
        for _ in range(10):
            results = await asyncio.gather(
                *(call(number) for number in range(50)), return_exceptions=True
            )
            for connection in outside.client_list():
                if connection["name"] == "small":
                    # All connections of a Unix socket have one address.
                    outside.client_kill_filter(_id=connection["id"])
            bad = [r for r in results if r is not None and not isinstance(r, TimeoutError)]
            assert bad == []
    async with asyncio.timeout(3):
        assert await pool.get("k1") == b"v"
    await pool.aclose()


async def test_a_full_pool_answers_unavailable_within_its_wait(redis_url: str) -> None:
    pool = make_client(redis_url, "tiny", max_connections=1, wait_s=0.2)
    blocked = asyncio.create_task(pool.blpop(["nothing"], timeout=2))
    await asyncio.sleep(0.05)
    store = SessionStore(redis_url, redis=pool)
    started = time.monotonic()
    with pytest.raises(Unavailable):
        await store.load("s")
    assert time.monotonic() - started < 1
    blocked.cancel()
    with suppress(asyncio.CancelledError):
        await blocked
    assert await pool.ping()
    await pool.aclose()


async def test_callers_cancelled_in_the_wait_take_nothing_with_them(redis_url: str) -> None:
    pool = make_client(redis_url, "tiny", max_connections=1, wait_s=5)
    for delay_s in (0.0, 0.0005, 0.001, 0.002):
        tasks = [asyncio.create_task(pool.get("k")) for _ in range(100)]
        await asyncio.sleep(delay_s)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(result is None for result in results[1::2])
    async with asyncio.timeout(2):
        assert await pool.ping()
    await pool.aclose()


async def test_a_cancelled_send_is_not_forgotten(redis_url: str) -> None:
    """Wherever in a command the cancellation falls, the task ends."""
    pool = make_client(redis_url, "tiny")

    async def forever() -> None:
        while True:
            await pool.get("k")

    for number in range(100):
        task = asyncio.create_task(forever())
        for _ in range(number % 25 + 1):
            await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(2):
            await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
    await pool.aclose()


def num_round_trips() -> float:
    [family] = round_trips.collect()
    [count] = [sample.value for sample in family.samples if sample.name.endswith("_count")]
    return count


async def test_each_command_and_each_pipeline_is_measured_once(redis_url: str) -> None:
    client = make_client(redis_url, "test")
    before = num_round_trips()
    await client.set("a", "b", ex=60)
    await asyncio.gather(client.get("a"), client.get("a"))
    async with client.pipeline(transaction=False) as pipeline:
        await pipeline.get("a").get("a").execute()
    with pytest.raises(ResponseError):
        await client.lpush("a", "not a list")
    assert num_round_trips() - before == 5
    await client.aclose()


async def test_a_server_that_was_made_read_only_is_left(own_redis: RedisServer) -> None:
    """A failover moves the name; whoever kept the connection would write in vain for ever."""
    client = make_client(own_redis.url, "test", max_connections=1)
    with own_redis.client() as outside:
        before = await client.client_id()
        outside.replicaof("127.0.0.1", 1)
        with pytest.raises(ReadOnlyError):
            await client.set("a", "b")
        outside.replicaof("no", "one")
        await client.set("a", "b")
        assert await client.client_id() != before
    await client.aclose()


async def test_a_line_gives_replies_as_they_are_and_connects_again(
    redis_url: str, redis_server: RedisServer
) -> None:
    line = RedisLine(redis_url, "bare", block_s=5)
    entry = ("XADD", "line", "1-1", "b", b"\xff")
    assert await line.execute([entry, ("EXPIRE", "line", 60)]) == [b"1-1", 1]
    read = ("XREAD", "COUNT", 9, "BLOCK", 5000, "STREAMS", "line", "0-0")
    assert await line.execute([read]) == [[[b"line", [[b"1-1", [b"b", b"\xff"]]]]]]
    with pytest.raises(ResponseError):
        await line.execute([("LPUSH", "line", "x"), ("PING",)])
    # The reply that was not read answers nothing else.
    assert await line.execute([("STRLEN", "nothing")]) == [0]
    blocked = asyncio.create_task(line.execute([(*read[:-1], "1-1")]))
    await asyncio.sleep(0.05)
    with redis_server.client() as outside:
        [own] = [each for each in outside.client_list() if each["name"] == "bare"]
        outside.client_kill_filter(_id=own["id"])
    with pytest.raises(RedisError):
        await blocked
    assert await line.execute([("PING",)]) == [b"PONG"]
    await line.close()


@pytest.fixture(scope="module")
def guarded_redis() -> Iterator[tuple[RedisServer, int, int, Path]]:
    """A server with a password, a user, TLS and two ports; the folder of its certificate."""
    with tempfile.TemporaryDirectory(prefix="rp-") as name:
        folder, ports = Path(name), (free_port(), free_port())
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
                *("-keyout", folder / "key.pem", "-out", folder / "cert.pem"),
                *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            ],
            check=True,
            capture_output=True,
        )
        server = RedisServer(folder)
        server.options = ("--port", str(ports[0]), "--tls-port", str(ports[1]))
        server.options += ("--tls-cert-file", str(folder / "cert.pem"))
        server.options += ("--tls-key-file", str(folder / "key.pem"))
        server.options += ("--tls-auth-clients", "no")
        server.start()
        with server.client() as outside:
            outside.acl_setuser(
                "ann", enabled=True, passwords=["+s:e@t"], categories=["+@all"], keys=["*"]
            )
            outside.config_set("requirepass", "pass/word")
        yield server, *ports, folder
        server.stop()


@pytest.mark.parametrize(
    ("url", "user"),
    [
        ("redis://:pass%2Fword@127.0.0.1:{port}/3", b"default"),
        ("redis://ann:s%3Ae%40t@127.0.0.1:{port}/3", b"ann"),
        ("rediss://ann:s%3Ae%40t@127.0.0.1:{tls}/3?ssl_ca_certs={folder}/cert.pem", b"ann"),
        ("unix://ann:s%3Ae%40t@{folder}/redis.sock?db=3", b"ann"),
    ],
    ids=["password", "user", "tls", "socket"],
)
async def test_a_line_takes_every_kind_of_url(
    guarded_redis: tuple[RedisServer, int, int, Path], url: str, user: bytes
) -> None:
    _, port, tls, folder = guarded_redis
    line = RedisLine(url.format(port=port, tls=tls, folder=folder), "bare", block_s=1)
    who, info = await line.execute([("ACL", "WHOAMI"), ("CLIENT", "INFO")])
    assert who == user
    assert b" db=3 " in info and b" name=bare " in info
    await line.close()


@pytest.mark.parametrize(
    ("url", "error", "said"),
    [
        ("redis://127.0.0.1:{port}", AuthenticationError, "Authentication required"),
        ("redis://:wrong@127.0.0.1:{port}", AuthenticationError, "invalid username-password"),
        ("redis://ann:s%3Ae%40t@127.0.0.1:{port}/99", ResponseError, "DB index"),
        ("rediss://127.0.0.1:{tls}", (RedisError, ssl.SSLError), "certificate verify failed"),
    ],
    ids=["no password", "wrong password", "no such database", "unknown certificate"],
)
async def test_a_line_that_is_not_let_in_says_why(
    guarded_redis: tuple[RedisServer, int, int, Path], url: str, error: type, said: str
) -> None:
    _, port, tls, _ = guarded_redis
    line = RedisLine(url.format(port=port, tls=tls), "bare", block_s=1)
    for _ in range(2):
        with pytest.raises(error, match=said):
            await line.execute([("PING",)])
    await line.close()


async def test_a_line_gives_up_on_a_network_that_swallows(
    redis_url: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_client, "COMMAND_TIMEOUT_S", 0.2)
    async with running_proxy(Path(redis_server.url.removeprefix("unix://"))) as proxy:
        line = RedisLine(proxy.url, "bare", block_s=0.1)
        assert await line.execute([("PING",)]) == [b"PONG"]
        proxy.is_black_hole = True
        # The connection that is open, and then a fresh one.
        for _ in range(2):
            async with asyncio.timeout(3):
                with pytest.raises((RedisTimeoutError, RedisConnectionError)):
                    await line.execute([("PING",)])
        proxy.is_black_hole = False
        assert await line.execute([("ECHO", "mine")]) == [b"mine"]
        await line.close()
