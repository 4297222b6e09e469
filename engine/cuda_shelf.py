"""The graphs of one runner, kept for as long as there is room for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from typing import TypeVar, cast

import torch

from engine.cuda_graph import Pool
from engine.cuda_memory import MAX_GRAPHS
from kernels.cuda.compile_time import compile_time

V = TypeVar("V")


class GraphShelf:
    """Keeps graphs of all kinds together; the one longest out of use makes room.

    It also counts the time that goes into what later steps find in place, graphs and kernels
    alike: a step's cost must not hold it, or the scheduler takes such steps for slow.

    Args:
        device: Where they run.
        most: How many are kept.

    Attributes:
        pool: Memory that they share; None off the GPU, where nothing is captured.
    """

    def __init__(self, device: torch.device, most: int = MAX_GRAPHS) -> None:
        self._is_gpu = device.type == "cuda"
        self._most = most
        # The latest used comes last.
        self._kept: dict[Hashable, object] = {}
        # Seconds noted since they were taken; of Triton's, up to which they are noted.
        self._noted_s = 0.0
        self._compiled_s = compile_time.seconds
        self.pool: Pool = torch.cuda.graph_pool_handle() if self._is_gpu else None

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._kept)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """What is kept under `key`, made if it isn't there."""
        if key in self._kept:
            found = self._kept[key] = self._kept.pop(key)
            return cast(V, found)
        if self._is_gpu:
            # What was launched before takes its own time.
            torch.cuda.current_stream().synchronize()
        started, before_s = time.perf_counter(), self.setup_s
        if len(self._kept) >= self._most:
            del self._kept[next(iter(self._kept))]
        made = self._kept[key] = make()
        # What was compiled for it is in its time.
        self._noted_s = before_s + time.perf_counter() - started
        self._compiled_s = compile_time.seconds
        return made

    @property
    def setup_s(self) -> float:
        """Seconds of setting up since this was last taken."""
        return self._noted_s + compile_time.seconds - self._compiled_s

    def note_setup(self, seconds: float) -> None:
        """Count the setting up of something else."""
        self._noted_s += seconds

    def take_setup_s(self) -> float:
        """`setup_s`, which then begins anew."""
        taken = self.setup_s
        self._noted_s, self._compiled_s = 0.0, compile_time.seconds
        return taken
