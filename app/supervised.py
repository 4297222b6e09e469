"""One process under supervision: started, watched, started again, stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from app import child
from app.startup_error import EXIT_CODE, StartupError

logger = logging.getLogger(__name__)

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
# A process that lived this long has recovered; its next fall starts over.
SETTLED_S = 60.0
MAX_FALLS_BEFORE_READY = 3
_MAX_LINE_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Program:
    """What to run.

    Attributes:
        name: For people.
        command: Program and arguments; no secrets, everyone can read them.
        environ: Its whole environment.
        death_signal: Sent by the kernel when the supervisor is killed outright.
        listen_fd: A listening socket to hand on; -1 is none.
        inherited_fds: Descriptors that stay open in it.
        output: Where its two output streams go; None keeps the supervisor's
            standard error, and its standard output is read line by line.
        on_line: Called with each line of standard output; needs `output` None.
        on_exit: Called whenever its process has ended.
    """

    name: str
    command: list[str]
    environ: Mapping[str, str]
    death_signal: signal.Signals = signal.SIGKILL
    listen_fd: int = -1
    inherited_fds: tuple[int, ...] = ()
    output: IO[bytes] | None = None
    on_line: Callable[[str], None] | None = None
    on_exit: Callable[[], None] | None = None


class ProgramRefusedError(Exception):
    """The program ended itself with `EXIT_CODE`: it has said why, and won't do better."""


@dataclass(slots=True)
class Supervised:
    """Keeps one program running until `stop`.

    Attributes:
        program: What runs.
        ready: Set by the supervisor once the program has done its work at least once.
        num_restarts: Falls so far.
    """

    program: Program
    ready: bool = False
    num_restarts: int = 0
    _process: asyncio.subprocess.Process | None = None
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        process = self._process
        return process.pid if process and process.returncode is None else None

    async def keep(self) -> None:
        """Runs the program, again after each fall, until `stop`.

        Raises:
            ProgramRefusedError: it ended with `EXIT_CODE` before it was ready.
            StartupError: it fell too often before it was ready.
        """
        delay_s = FIRST_DELAY_S
        while not self._stopping.is_set():
            started = time.monotonic()
            code = await self._run_once()
            if self.program.on_exit is not None:
                self.program.on_exit()
            if self._stopping.is_set():
                return
            self._check_fall(code)
            if time.monotonic() - started > SETTLED_S:
                delay_s = FIRST_DELAY_S
            logger.error(
                "the %s ended %s; starting it again in %g s",
                self.program.name,
                describe_exit(code),
                delay_s,
            )
            await self._pause(delay_s)
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, then after `grace_s` SIGKILL; returns when it has ended."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        _signal(process, signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), grace_s)
        except TimeoutError:
            logger.warning("the %s did not end in %g s; killing it", self.program.name, grace_s)
            _signal(process, signal.SIGKILL)
            await process.wait()

    def kill(self) -> None:
        """SIGKILL now."""
        self._stopping.set()
        if self._process is not None and self._process.returncode is None:
            _signal(self._process, signal.SIGKILL)

    async def _run_once(self) -> int:
        """Start it, read it to its end, and return its exit code."""
        program = self.program
        fds = [fd for fd in (program.listen_fd, *program.inherited_fds) if fd >= 0]
        launcher = [sys.executable, "-I", "-S", str(Path(child.__file__))]
        self._process = await asyncio.create_subprocess_exec(
            *launcher,
            str(int(program.death_signal)),
            str(os.getpid()),
            str(program.listen_fd),
            *program.command,
            env=program.environ,
            stdin=subprocess.DEVNULL,
            stdout=program.output or subprocess.PIPE,
            stderr=program.output,
            pass_fds=fds,
            # Ctrl-C reaches the supervisor alone, which then stops the others in order.
            start_new_session=True,
            limit=_MAX_LINE_BYTES,
        )
        if self._stopping.is_set():
            _signal(self._process, signal.SIGTERM)
        if self._process.stdout is not None:
            await self._read_lines(self._process.stdout)
        return await self._process.wait()

    async def _read_lines(self, stream: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await stream.readline()
            except ValueError:
                logger.warning("the %s wrote a line that is too long", self.program.name)
                continue
            if not line:
                return
            if self.program.on_line is not None:
                self.program.on_line(line.decode(errors="replace").rstrip("\n"))

    def _check_fall(self, code: int) -> None:
        self.num_restarts += 1
        if self.ready:
            return
        if code == EXIT_CODE:
            raise ProgramRefusedError(self.program.name)
        if self.num_restarts >= MAX_FALLS_BEFORE_READY:
            raise StartupError(
                f"The {self.program.name} ended {self.num_restarts} times before it was ready, "
                f"last {describe_exit(code)}."
            )

    async def _pause(self, delay_s: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), delay_s)
        except TimeoutError:
            return


def describe_exit(code: int) -> str:
    """`with exit code 1`, `by SIGSEGV`; a killed process may have run out of memory."""
    if code >= 0:
        return f"with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except ProcessLookupError:
        logger.debug("process %d has ended already", process.pid)
