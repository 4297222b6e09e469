"""The servers that the benchmarks start, and what the kernel says of their processes."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0
_POLL_S = 0.05
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_READY = re.compile(r"answers at http://([\d.]+):(\d+)/ with (.*), ready after")


class ServerFailedError(Exception):
    """A server did not become ready."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server.

    Attributes:
        host: Where it listens.
        port: TCP port.
        pid: The process that was started.
        start_s: Seconds from its start until it was ready.
        model: The served model's id; empty if the server didn't say.
    """

    host: str
    port: int
    pid: int
    start_s: float
    model: str = ""


@contextmanager
def repartee(data_dir: Path, log: Path, *options: str) -> Iterator[Server]:
    """`repartee serve` on a free port; ended with SIGTERM."""
    command = [
        *(sys.executable, "-m", "app.cli", "serve", "--port", "0"),
        *("--data-dir", str(data_dir), "--grace", "1", *options),
    ]
    started = time.monotonic()
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            match = _READY.search(process.stdout.readline())
            if match is None:
                raise ServerFailedError(f"repartee serve: {_last_line(log)}")
            elapsed_s = time.monotonic() - started
            yield Server(match[1], int(match[2]), process.pid, elapsed_s, match[3])
        finally:
            _end(process)


@contextmanager
def llama_server(
    binary: Path, model: Path, log: Path, threads: int, slots: int
) -> Iterator[Server]:
    """llama.cpp's own server on a free port, its prompt cache off."""
    port = free_port()
    command = [
        *(str(binary), "-m", str(model), "--host", "127.0.0.1", "--port", str(port)),
        *("-t", str(threads), "-np", str(slots), "-c", str(slots * 2304)),
        *("--no-webui", "--cache-ram", "0"),
    ]
    started = time.monotonic()
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, stdout=errors, stderr=errors) as process,
    ):
        try:
            _wait_until_healthy(process, f"http://127.0.0.1:{port}/health", log)
            yield Server("127.0.0.1", port, process.pid, time.monotonic() - started)
        finally:
            _end(process)


def free_port() -> int:
    """A TCP port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerFailedError(f"llama-server: {_last_line(log)}")
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(_POLL_S)
    raise ServerFailedError(f"llama-server was not healthy after {START_TIMEOUT_S:g} s")


def _end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def child_of(pid: int, module: str) -> int:
    """The child of `pid` whose command line names `module`.

    Raises:
        ServerFailedError: there is none.
    """
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text()
            command = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        parent = int(status.rpartition(")")[2].split()[1])
        if parent == pid and module.encode() in command:
            return int(folder.name)
    raise ServerFailedError(f"process {pid} has no child {module}")


def rss_bytes(pid: int) -> int:
    """Resident memory."""
    match = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def peak_rss_bytes(pid: int) -> int:
    """The most memory that was resident so far."""
    match = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def cpu_s(pid: int) -> float:
    """Processor time of all the process's threads so far, in seconds."""
    return _cpu_s(Path(f"/proc/{pid}/stat"))


def main_thread_cpu_s(pid: int) -> float:
    """Processor time of the process's first thread so far, in seconds."""
    return _cpu_s(Path(f"/proc/{pid}/task/{pid}/stat"))


def _cpu_s(stat: Path) -> float:
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
