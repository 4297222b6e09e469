"""The graphs of one runner, kept for as long as there is room for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from typing import TypeVar, cast

import torch

from engine.cuda_graph import Pool
from engine.cuda_memory import MAX_GRAPHS

V = TypeVar("V")


class GraphShelf:
    """Keeps graphs of all kinds together; the one longest out of use makes room.

    Args:
        device: Where they run.
        most: How many are kept.

    Attributes:
        setup_s: Seconds that went into new graphs since `take_setup_s`.
        pool: Memory that they share; None off the GPU, where nothing is captured.
    """

    def __init__(self, device: torch.device, most: int = MAX_GRAPHS) -> None:
        self._is_gpu = device.type == "cuda"
        self._most = most
        # The latest used comes last.
        self._kept: dict[Hashable, object] = {}
        self.setup_s = 0.0
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
        started = time.perf_counter()
        if len(self._kept) >= self._most:
            del self._kept[next(iter(self._kept))]
        made = self._kept[key] = make()
        self.setup_s += time.perf_counter() - started
        return made

    def take_setup_s(self) -> float:
        """Seconds that went into new graphs since this was last asked."""
        taken, self.setup_s = self.setup_s, 0.0
        return taken
