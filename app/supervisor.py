"""`repartee serve`: a private Redis, one worker and one gateway, kept running.

Start: lock the data folder, take the port, start Redis, then worker and gateway
together, and wait until the gateway says that it is ready. Stop: gateway and worker
drain within the grace, then Redis ends. Whatever happens to this process, no child
outlives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO

from redis.exceptions import RedisError

from app.data_dir import DataDirLock
from app.embedded_redis import EmbeddedRedis, find_redis
from app.listener import address_for_clients, open_listener, url_of
from app.models import ModelFile, resolve_model
from app.options import GATEWAY, WORKER
from app.progress import Progress
from app.redis_check import check_redis
from app.settings import ServeSettings, WorkerSettings, gateway_environment
from app.startup_error import EXIT_CODE, StartupError
from app.supervised import Program, ProgramRefusedError, Supervised
from app.worker_process import announce_exit, worker_command, worker_environment

logger = logging.getLogger(__name__)

REDIS_START_S = 60.0
REDIS_STOP_S = 10.0
# Children are given the grace by name; this is for what they do after it.
STOP_MARGIN_S = 5.0
READY_POLL_S = 0.05
READY_TIMEOUT_S = 2.0


class Supervisor:
    """One run of `repartee serve`.

    Args:
        settings: Validated.
        environ: What the children's environments are made from.
        worker: The worker's program and arguments, from its settings and model.
    """

    def __init__(
        self,
        settings: ServeSettings,
        environ: Mapping[str, str],
        worker: Callable[[WorkerSettings, ModelFile], list[str]] = worker_command,
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._worker_command = worker
        self._progress = Progress(sys.stderr)
        self._stop = asyncio.Event()
        self._redis: EmbeddedRedis | None = None
        self._redis_child: Supervised | None = None
        self._children: list[Supervised] = []
        self._keepers: set[asyncio.Task[None]] = set()
        # Of the worker that serves now, as it says itself.
        self._worker_id: str | None = None
        self._announcements: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Start, serve until a signal, stop.

        Returns:
            The exit code: 0 after a signal, `EXIT_CODE` if a child refused to start.

        Raises:
            StartupError: with everything stopped again.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)
        with self._resources() as (lock_fd, listener, model, redis_log):
            try:
                return await self._serve(lock_fd, listener, model, redis_log)
            finally:
                await self._stop_all()

    @contextlib.contextmanager
    def _resources(self) -> Iterator[tuple[int, socket.socket, ModelFile, IO[bytes]]]:
        """What is held for the whole run; refused here before any process starts."""
        settings = self._settings
        with contextlib.ExitStack() as stack:
            lock = DataDirLock(settings.data_dir)
            stack.callback(lock.release)
            model = resolve_model(settings.worker.model, settings.data_dir)
            listener = open_listener(settings.gateway.host, settings.gateway.port)
            stack.callback(listener.close)
            if settings.redis_url is None:
                self._redis = EmbeddedRedis(
                    find_redis(self._environ), settings.data_dir, max_mb=settings.redis_mb
                )
                stack.callback(self._redis.remove_socket)
            log_path = self._redis.log_path if self._redis else Path(os.devnull)
            redis_log = stack.enter_context(log_path.open("wb"))
            yield lock.fd, listener, model, redis_log

    async def _serve(
        self, lock_fd: int, listener: socket.socket, model: ModelFile, redis_log: IO[bytes]
    ) -> int:
        redis_url = await self._start_redis(lock_fd, redis_log)
        self._start(self._worker_program(redis_url, model))
        self._start(self._gateway_program(redis_url, listener))
        ready = asyncio.create_task(self._wait_ready(listener))
        try:
            if not await self._until(ready):
                return 0
        except ProgramRefusedError:
            return EXIT_CODE
        finally:
            self._progress.clear()
            ready.cancel()
        for child in self._children:
            child.ready = True
        sys.stdout.write(
            f"Repartee answers at {url_of(listener)} with {model.name}, "
            f"ready after {self._progress.elapsed_s:.1f} s. Ctrl-C stops it.\n"
        )
        sys.stdout.flush()
        await self._until(asyncio.create_task(self._stop.wait()))
        return 0

    async def _start_redis(self, lock_fd: int, log: IO[bytes]) -> str:
        """Starts the private Redis, or checks the one that was named; returns its URL."""
        if self._redis is None:
            url = self._settings.gateway.redis_url
            await asyncio.to_thread(check_redis, url)
            return url
        self._progress.show(f"Starting Redis {self._redis.binary.version_text}")
        self._redis_child = self._start(
            Program(
                name="Redis",
                command=self._redis.command(),
                environ=self._environ,
                death_signal=signal.SIGTERM,
                # It writes below the data folder for a moment longer than a killed
                # supervisor lives, so it holds the lock too.
                inherited_fds=(lock_fd,),
                output=log,
            )
        )
        ready = asyncio.create_task(self._redis.wait_ready())
        try:
            async with asyncio.timeout(REDIS_START_S):
                await self._until(ready)
        except (TimeoutError, StartupError) as error:
            reason = str(error) or f"no answer in {REDIS_START_S:g} s"
            raise self._redis.complaint(reason) from None
        finally:
            ready.cancel()
        self._redis_child.ready = True
        try:
            await self._redis.forget_workers()
        except RedisError as error:
            raise self._redis.complaint(str(error)) from None
        if cut_off := self._redis.cut_off():
            logger.warning("%s", cut_off)
        return self._redis.url

    def _worker_program(self, redis_url: str, model: ModelFile) -> Program:
        settings = replace(self._settings.worker, redis_url=redis_url)
        return Program(
            name=WORKER,
            command=self._worker_command(settings, model),
            environ=worker_environment(settings, self._environ),
            on_line=lambda line: self._on_worker_line(model, line),
            on_exit=lambda: self._on_worker_exit(redis_url),
        )

    def _gateway_program(self, redis_url: str, listener: socket.socket) -> Program:
        settings = replace(self._settings.gateway, redis_url=redis_url)
        return Program(
            name=GATEWAY,
            command=[sys.executable, "-m", "app.cli", GATEWAY],
            environ=gateway_environment(settings, self._environ),
            listen_fd=listener.fileno(),
        )

    def _on_worker_line(self, model: ModelFile, line: str) -> None:
        """The worker reports its loading as JSON lines, {"stage": text, "done": share}, and
        before it serves {"worker_id": id}."""
        try:
            report = json.loads(line)
            if "worker_id" in report:
                self._worker_id = str(report["worker_id"])
                return
            stage, done = str(report["stage"]), float(report.get("done", math.nan))
        except (ValueError, TypeError, KeyError, AttributeError):
            logger.debug("worker: %s", line)
            return
        if not all(child.ready for child in self._children):
            self._progress.show(f"{model.name}: {stage}", done)

    def _on_worker_exit(self, redis_url: str) -> None:
        """Its answers are taken over sooner than its heartbeat would lapse."""
        worker_id, self._worker_id = self._worker_id, None
        if worker_id is not None and not self._stop.is_set():
            task = asyncio.create_task(announce_exit(redis_url, worker_id))
            self._announcements.add(task)
            task.add_done_callback(self._announcements.discard)

    def _start(self, program: Program) -> Supervised:
        child = Supervised(program)
        self._children.append(child)
        self._keepers.add(asyncio.create_task(child.keep(), name=program.name))
        return child

    async def _until(self, task: asyncio.Task[object]) -> bool:
        """Waits for `task`; False if a stop signal came first.

        Raises:
            StartupError, ProgramRefusedError: from a child that could not be kept.
        """
        stop = asyncio.create_task(self._stop.wait())
        try:
            done, _ = await asyncio.wait(
                {task, stop, *self._keepers}, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            stop.cancel()
        for finished in done:
            finished.result()
        return task in done

    async def _wait_ready(self, listener: socket.socket) -> None:
        """Returns once the gateway's /readyz is 200."""
        self._progress.show("Starting worker and gateway")
        host, port = address_for_clients(listener)
        while True:
            if await is_ready(host, port):
                return
            self._progress.tick()
            await asyncio.sleep(READY_POLL_S)

    def _on_signal(self) -> None:
        """The first signal begins the drain; a second one ends it."""
        if not self._stop.is_set():
            self._stop.set()
            return
        logger.warning("second signal: ending without grace")
        for child in self._children:
            if child is not self._redis_child:
                child.kill()

    async def _stop_all(self) -> None:
        """Gateway and worker together, then Redis, on which both rely until their end."""
        grace_s = self._settings.grace_s + STOP_MARGIN_S
        others = [child for child in self._children if child is not self._redis_child]
        await asyncio.gather(*(child.stop(grace_s) for child in others))
        if self._redis_child is not None:
            await self._redis_child.stop(REDIS_STOP_S)
        await asyncio.gather(*self._keepers, return_exceptions=True)


async def is_ready(host: str, port: int) -> bool:
    """Whether GET /readyz answers 200."""
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(
                    b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                )
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return status.startswith(b"HTTP/1.1 200")
