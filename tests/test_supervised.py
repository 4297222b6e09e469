"""One supervised process: restarts, refusals, and its end."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app import supervised
from app.startup_error import StartupError
from app.supervised import Program, ProgramRefusedError, Supervised, describe_exit

ROOT = Path(__file__).resolve().parents[1]
# Says its process id, then waits for SIGTERM.
WAITER = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + WAITER


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "FIRST_DELAY_S", 0.01)


class Lines:
    """What a program wrote, with a way to wait for the next line."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[str] = asyncio.Queue()

    async def next(self) -> str:
        async with asyncio.timeout(20):
            return await self.queue.get()


def _program(source: str, lines: Lines | None = None) -> Program:
    return Program(
        name="program",
        command=[sys.executable, "-S", "-c", source],
        environ=os.environ,
        on_line=lines.queue.put_nowait if lines else None,
    )


@asynccontextmanager
async def _kept(child: Supervised) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(child.keep())
    try:
        yield task
    finally:
        child.kill()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_killed_program_is_started_again() -> None:
    lines = Lines()
    child = Supervised(_program(WAITER, lines), ready=True)
    async with _kept(child) as task:
        first = int(await lines.next())
        assert child.pid == first
        os.kill(first, signal.SIGKILL)
        second = int(await lines.next())
        assert second != first
        assert child.num_restarts == 1
        await child.stop(20)
        await task
        assert child.pid is None


async def test_delays_double_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "LONGEST_DELAY_S", 0.05)
    delays: list[float] = []
    child = Supervised(_program("raise SystemExit(1)"), ready=True)

    async def pause(self: Supervised, delay_s: float) -> None:
        delays.append(delay_s)
        if len(delays) == 5:
            self.kill()

    monkeypatch.setattr(Supervised, "_pause", pause)
    await child.keep()
    assert delays == [0.01, 0.02, 0.04, 0.05, 0.05]


async def test_a_refusal_before_ready_is_final() -> None:
    with pytest.raises(ProgramRefusedError):
        await Supervised(_program("raise SystemExit(2)")).keep()


async def test_three_falls_before_ready_are_final() -> None:
    child = Supervised(_program("import os; os.kill(os.getpid(), 11)"))
    with pytest.raises(StartupError, match="ended 3 times before it was ready, last by SIGSEGV"):
        await child.keep()


async def test_stop_lets_a_program_end_by_itself() -> None:
    lines = Lines()
    polite = "import signal, sys; signal.signal(15, lambda *_: sys.exit(print('bye', flush=True)));"
    child = Supervised(_program(polite + WAITER, lines))
    async with _kept(child) as task:
        await lines.next()
        await child.stop(20)
        await task
    assert await lines.next() == "bye"


async def test_stop_kills_what_does_not_end() -> None:
    lines = Lines()
    child = Supervised(_program(STUBBORN, lines))
    async with _kept(child) as task:
        pid = int(await lines.next())
        await child.stop(0.05)
        await task
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_stop_before_the_start_starts_nothing() -> None:
    child = Supervised(_program(WAITER))
    await child.stop(1)
    await child.keep()
    assert child.pid is None


async def test_a_line_that_is_too_long_is_passed_over() -> None:
    lines = Lines()
    long_line = f"print('x' * {supervised._MAX_LINE_BYTES * 3}); print('after', flush=True);"
    child = Supervised(_program(long_line + WAITER, lines))
    async with _kept(child):
        seen = await lines.next()
        while seen.startswith("x"):
            seen = await lines.next()
        assert seen == "after"


def test_a_child_ends_when_its_supervisor_is_killed() -> None:
    source = (
        "import asyncio, os, sys\n"
        "from app.supervised import Program, Supervised\n"
        f"program = Program('p', [sys.executable, '-S', '-c', {WAITER!r}], os.environ,\n"
        "    on_line=lambda line: print(line, flush=True))\n"
        "asyncio.run(Supervised(program).keep())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", source], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        pidfd = os.pidfd_open(pid)
        try:
            parent.kill()
            parent.wait()

            # A process descriptor becomes readable when its process has ended.
            async def ended() -> None:
                loop = asyncio.get_running_loop()
                event = asyncio.Event()
                loop.add_reader(pidfd, event.set)
                async with asyncio.timeout(20):
                    await event.wait()
                loop.remove_reader(pidfd)

            asyncio.run(ended())
        finally:
            os.close(pidfd)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1, "with exit code 1"),
        (-11, "by SIGSEGV"),
        (-9, "by SIGKILL (out of memory?)"),
        (-99, "by signal 99"),
    ],
)
def test_exit_codes_are_described(code: int, text: str) -> None:
    assert describe_exit(code) == text
