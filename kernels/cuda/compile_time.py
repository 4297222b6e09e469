"""How long kernels were compiled in this process: time that the next launch doesn't take."""

from __future__ import annotations

from typing import Any

from triton import knobs


class CompileTime:
    """Adds up the compilations that Triton tells of.

    Attributes:
        seconds: Since the process began.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, *, times: Any, **_: Any) -> None:
        """A kernel was compiled, or found in Triton's cache; `times` are in microseconds."""
        self.seconds += times.total / 1e6


compile_time = CompileTime()
knobs.compilation.listener = compile_time
