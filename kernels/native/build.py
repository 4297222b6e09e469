"""Compiles the native kernels once for this machine and caches the shared library."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

_SOURCES = Path(__file__).parent / "src"

# No contraction: products and sums are fused only where the source says so, which is
# what makes results the same on every instruction set.
FLAGS = (
    "-O3", "-std=c++17", "-march=native", "-fPIC", "-shared", "-pthread", "-ffp-contract=off",
    "-Wno-ignored-attributes",
)  # fmt: skip


class BuildError(Exception):
    """The native kernels can't be built here; the text says why."""


def cache_directory() -> Path:
    """Where compiled libraries are kept: REPARTEE_CACHE_DIR, else the user's cache directory."""
    chosen = os.environ.get("REPARTEE_CACHE_DIR")
    if chosen:
        return Path(chosen) / "native"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "repartee" / "native"


def build(extra_flags: tuple[str, ...] = ()) -> Path:
    """Path of the compiled library, built now if it isn't in the cache.

    Args:
        extra_flags: Compiler flags after the usual ones, e.g. `-mno-avx512f`.

    Raises:
        BuildError: No compiler, an unsupported processor, or a compiler error.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        raise BuildError(f"needs an x86-64 processor, this is {platform.machine()}")
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise BuildError("needs a C++ compiler (g++), none found")
    flags = FLAGS + extra_flags
    target = cache_directory() / f"kernels-{_fingerprint(compiler, flags)}.so"
    if not target.exists():
        _compile(compiler, flags, target)
    return target


def _fingerprint(compiler: str, flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    digest.update(" ".join(flags).encode())
    # What -march=native stands for here, and the compiler's version, in one question.
    answer = _run([compiler, *flags, "-v", "-E", "-x", "c++", os.devnull, "-o", os.devnull])
    relevant = [line for line in answer.splitlines() if "-march=" in line or "version" in line]
    digest.update("\n".join(relevant).encode())
    return digest.hexdigest()[:24]


def _compile(compiler: str, flags: tuple[str, ...], target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Built beside the target and renamed, so that two processes can build at once.
        with tempfile.TemporaryDirectory(dir=target.parent) as directory:
            built = Path(directory) / target.name
            _run([compiler, *flags, str(_SOURCES / "kernels.cpp"), "-o", str(built)])
            built.replace(target)
    except OSError as error:
        raise BuildError(f"can't write {target}: {error}") from error


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
        raise BuildError(f"{command[0]} failed: {lines[0]}")
    return done.stderr
