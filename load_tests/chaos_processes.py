"""Redis, gateways and workers as processes that are made to fall and come back."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from app.worker_process import announce_exit
from tests.redis_server import RedisServer

logger = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parents[1]
MODEL = "repartee-fake"
GRACE_S = 1.0
START_S = 300.0


class Process:
    """One program, started again after each fall.

    Args:
        command: Program and arguments.
        environ: Its whole environment.
        log: File for what it says.

    Attributes:
        up: Set once it has said that it serves.
        log: See above.
    """

    kind = ""

    def __init__(self, command: Sequence[str], environ: dict[str, str], log: Path):
        self.up = asyncio.Event()
        self._command = command
        self._environ = environ
        self.log = log
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start; returns before it serves."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=ROOT,
            env=self._environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        self._reader = asyncio.create_task(self._read(self._process))

    async def wait_up(self) -> None:
        """Until it serves.

        Raises:
            RuntimeError: it ended before.
        """
        assert self._process is not None
        ended = asyncio.create_task(self._process.wait())
        up = asyncio.create_task(self.up.wait())
        await asyncio.wait((ended, up), return_when=asyncio.FIRST_COMPLETED)
        for task in (ended, up):
            task.cancel()
        if not self.up.is_set():
            raise RuntimeError(f"a {self.kind} ended before it served; see {self.log}")

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        with self.log.open("ab") as log:
            async for line in process.stdout:
                log.write(line)
                self.said(line.decode(errors="replace"))

    def said(self, line: str) -> None:
        """Called with each of its lines."""

    async def signal(self, number: int) -> None:
        """Send a signal; returns when the process has ended, if it is one that ends it."""
        assert self._process is not None
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.up.clear()
        self._process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            await self._process.wait()

    async def stop(self) -> None:
        """End it for good."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if self._reader is not None:
            await self._reader


class Gateway(Process):
    """A gateway on a port of its own choice, another after each start."""

    kind = "gateway"
    port = 0

    def said(self, line: str) -> None:
        if "listening on" in line:
            self.port = int(line.split(" port ")[1].split()[0])
            self.up.set()


class Worker(Process):
    """A worker; its supervisor, which is played here, tells of its end or doesn't."""

    kind = "worker"
    worker_id = ""

    def said(self, line: str) -> None:
        if line.startswith('{"worker_id"'):
            self.worker_id = line.split('"')[3]
            self.up.set()


class Stack:
    """All of it.

    Args:
        folder: Data, sockets and logs.
        num_gateways: Gateway processes.
        num_workers: Worker processes.
        worker_command: Program and arguments of a worker; finds Redis by its environment.
    """

    def __init__(
        self,
        folder: Path,
        num_gateways: int,
        num_workers: int,
        worker_command: Sequence[str],
    ) -> None:
        self.redis = RedisServer(folder, append_only=True)
        environ = {k: v for k, v in os.environ.items() if not k.startswith("REPARTEE_")}
        environ |= {"REPARTEE_REDIS_URL": self.redis.url, "REPARTEE_LOG_LEVEL": "info"}
        gateway = [*(sys.executable, "-m", "app.cli", "gateway", "--port", "0")]
        gateway += ["--grace", str(GRACE_S)]
        self.gateways = [
            Gateway(gateway, environ, folder / f"gateway{n}.log") for n in range(num_gateways)
        ]
        self.workers = [
            Worker(worker_command, environ, folder / f"worker{n}.log") for n in range(num_workers)
        ]

    async def start(self) -> None:
        """Everything up."""
        await asyncio.to_thread(self.redis.start)
        everyone = [*self.gateways, *self.workers]
        await asyncio.gather(*(process.start() for process in everyone))
        async with asyncio.timeout(START_S):
            await asyncio.gather(*(process.wait_up() for process in everyone))

    async def stop(self) -> None:
        """Everything down."""
        await asyncio.gather(*(process.stop() for process in [*self.gateways, *self.workers]))
        await asyncio.to_thread(self.redis.stop)

    def ports(self) -> list[int]:
        """Where gateways that are up listen."""
        return [gateway.port for gateway in self.gateways if gateway.up.is_set()]


class Monkey:
    """Makes things fall, one after the other, from a seed.

    Args:
        stack: What falls.
        rng: What, when and how long.
        pause_s: Shortest and longest time between two falls.

    Attributes:
        counts: How often each kind of fall happened.
    """

    def __init__(self, stack: Stack, rng: random.Random, pause_s: tuple[float, float]) -> None:
        self._stack = stack
        self._rng = rng
        self._pause_s = pause_s
        self._busy: set[Process] = set()
        self._redis_falls = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts: dict[str, int] = {}
        self._falls: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            "worker killed": (3, self._kill_worker),
            "worker drained": (2, self._drain_worker),
            "worker frozen": (2, self._freeze_worker),
            "gateway killed": (2, self._kill_gateway),
            "gateway drained": (2, self._drain_gateway),
            "gateway frozen": (1, self._freeze_gateway),
            "Redis killed": (2, self._kill_redis),
            "Redis blocked": (2, self._block_redis),
        }

    async def run(self) -> None:
        """Until cancelled."""
        names = list(self._falls)
        weights = [weight for weight, _ in self._falls.values()]
        try:
            while True:
                await asyncio.sleep(self._rng.uniform(*self._pause_s))
                (name,) = self._rng.choices(names, weights)
                task = asyncio.create_task(_as_coroutine(self._falls[name][1]))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            # What was begun is put right again.
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _note(self, fall: str) -> None:
        self.counts[fall] = self.counts.get(fall, 0) + 1
        logger.info("%s", fall)

    async def _with(
        self, among: Sequence[Process], what: str, fall: Callable[[Process], Awaitable[None]]
    ) -> None:
        down = [process for process in among if process in self._busy or not process.up.is_set()]
        # Whoever falls again before it serves disturbs nobody.
        if len(down) > (len(among) - 1) // 2:
            return
        free = [process for process in among if process not in down]
        process = self._rng.choice(free)
        self._busy.add(process)
        self._note(f"{process.kind} {what}")
        try:
            await fall(process)
        finally:
            self._busy.discard(process)

    async def _kill_worker(self) -> None:
        await self._with(self._stack.workers, "killed", self._kill)

    async def _drain_worker(self) -> None:
        await self._with(self._stack.workers, "drained", self._drain)

    async def _freeze_worker(self) -> None:
        await self._with(self._stack.workers, "frozen", self._freeze)

    async def _kill_gateway(self) -> None:
        await self._with(self._stack.gateways, "killed", self._kill)

    async def _drain_gateway(self) -> None:
        await self._with(self._stack.gateways, "drained", self._drain)

    async def _freeze_gateway(self) -> None:
        await self._with(self._stack.gateways, "frozen", self._freeze)

    async def _kill(self, process: Process) -> None:
        is_told = self._rng.random() < 0.5
        delay_s = self._rng.uniform(0.0, 1.0)
        await process.signal(signal.SIGKILL)
        if isinstance(process, Worker) and is_told:
            await announce_exit(self._stack.redis.url, process.worker_id)
        await asyncio.sleep(delay_s)
        await process.start()

    async def _drain(self, process: Process) -> None:
        await process.signal(signal.SIGTERM)
        await process.start()

    async def _freeze(self, process: Process) -> None:
        frozen_s = self._rng.choice((0.5, 2.0, 5.0))
        await process.signal(signal.SIGSTOP)
        await asyncio.sleep(frozen_s)
        await process.signal(signal.SIGCONT)

    async def _kill_redis(self) -> None:
        delay_s = self._rng.uniform(0.0, 1.5)
        if self._redis_falls.locked():
            return
        async with self._redis_falls:
            self._note("Redis killed")
            await asyncio.to_thread(self._stack.redis.kill)
            await asyncio.sleep(delay_s)
            await asyncio.to_thread(self._stack.redis.start)

    async def _block_redis(self) -> None:
        blocked_ms = self._rng.choice((300, 1500, 3500))
        if self._redis_falls.locked():
            return
        async with self._redis_falls:
            self._note("Redis blocked")
            with self._stack.redis.client() as client:
                await asyncio.to_thread(client.client_pause, blocked_ms)


async def _as_coroutine(fall: Callable[[], Awaitable[None]]) -> None:
    try:
        await fall()
    except Exception:
        logger.exception("a fall went wrong")
        raise
