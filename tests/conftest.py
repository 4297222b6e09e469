"""What tests in every folder share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.redis_server import RedisServer, packaged_binary, system_binary, valkey_binary

# Triton decides at its own first import whether it compiles or interprets, and other
# libraries import it too, so this can't wait for the folder of the kernels' tests.
if os.environ.get("REPARTEE_TEST_DEVICE", "cpu") == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

# A busy machine is no failure.
settings.register_profile("repartee", deadline=None)
settings.load_profile("repartee")


@pytest.fixture(scope="session")
def redis_folder() -> Iterator[Path]:
    """A short path: a socket's may not exceed 107 characters."""
    with tempfile.TemporaryDirectory(prefix="rp-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def redis_server(redis_folder: Path) -> Iterator[RedisServer]:
    """One Redis for the whole run; `redis_url` empties it before each test."""
    folder = redis_folder / "shared"
    folder.mkdir()
    server = RedisServer(folder)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The URL of an empty Redis."""
    with redis_server.client() as client:
        client.flushall()
    return redis_server.url


_BINARIES = {"system": system_binary, "6.2": packaged_binary, "valkey": valkey_binary}


@pytest.fixture(params=_BINARIES)
def any_redis_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty Redis: the installed one, the oldest supported, and Valkey."""
    binary = _BINARIES[request.param]()
    with tempfile.TemporaryDirectory(prefix="rp-") as folder:
        server = RedisServer(Path(folder), binary=binary)
        server.start()
        yield server.url
        server.stop()


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis that a test may kill; its data survives."""
    with tempfile.TemporaryDirectory(prefix="rp-") as folder:
        server = RedisServer(Path(folder), append_only=True)
        server.start()
        yield server
        server.stop()


@pytest.fixture
def forgetful_redis() -> Iterator[RedisServer]:
    """A Redis that a test may kill; it comes back empty."""
    with tempfile.TemporaryDirectory(prefix="rp-") as folder:
        server = RedisServer(Path(folder))
        server.start()
        yield server
        server.stop()
