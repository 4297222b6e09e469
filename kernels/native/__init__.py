"""The CPU's own kernels in C++: built at first use, then called through ctypes.

Without a compiler, or on another processor than x86-64 with AVX2, the ops run on PyTorch
instead: correct, several times slower, and not batch-invariant. That is logged once as a
warning and told by `status`. REPARTEE_NATIVE=0 in the environment asks for it.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernels.native.build import BuildError, build
from kernels.native.library import Library

__all__ = ["NativeStatus", "library", "num_threads", "set_num_threads", "status"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NativeStatus:
    """Whether the native kernels are in use.

    Attributes:
        available: They are.
        isa: Instruction set they were built for: "avx512-vnni", "avx-vnni" or "avx2";
            empty where not available.
        reason: Why not; empty where available.
        num_threads: Threads they use.
    """

    available: bool
    isa: str
    reason: str
    num_threads: int


def library() -> Library | None:
    """The loaded kernels, built first if need be; None where they aren't available."""
    return _load()[0]


def status() -> NativeStatus:
    """Load the kernels if that hasn't happened, and say what came of it."""
    loaded, reason = _load()
    if loaded is None:
        return NativeStatus(False, "", reason, 0)
    return NativeStatus(True, loaded.isa().decode(), "", loaded.num_threads())


def num_threads() -> int:
    """Threads that the kernels use, the caller's included; 0 where not available."""
    return status().num_threads


def set_num_threads(count: int) -> None:
    """Use `count` threads, the caller's included. Not while a kernel is running.

    Raises:
        ValueError: `count` is not 1 .. 1024.
    """
    if not 1 <= count <= 1024:
        raise ValueError(f"count: expected 1 .. 1024 threads, got {count}")
    loaded = library()
    if loaded is not None:
        loaded.set_num_threads(count)


@cache
def _load() -> tuple[Library | None, str]:
    switch = os.environ.get("REPARTEE_NATIVE", "1")
    if switch not in ("0", "1"):
        raise ValueError(f"REPARTEE_NATIVE: expected 0 or 1, got {switch!r}")
    try:
        if switch == "0":
            raise BuildError("switched off by REPARTEE_NATIVE=0")
        loaded = Library(build())
    except (BuildError, OSError) as error:
        reason = str(error)
        _log.warning("native CPU kernels unavailable, using slower PyTorch ones: %s", reason)
        return None, reason
    loaded.set_num_threads(_usable_cores())
    return loaded, ""


def _usable_cores() -> int:
    """Physical cores that this process may run on."""
    allowed = os.sched_getaffinity(0)
    cores = set()
    for cpu in allowed:
        siblings = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            cores.add(Path(siblings).read_text(encoding="ascii").strip())
        except OSError:
            return len(allowed)
    return len(cores)
