"""A step over tensors that stay where they are, as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch

# Memory that the graphs of one runner share; None runs without graphs, as tests do.
Pool = tuple[int, int] | None


class StepGraph:
    """Captured when made, then replayed.

    Args:
        step: Launches the kernels; its tensors' contents must be valid when this is made,
            for it runs once to compile them.
        pool: The graphs' shared memory; None calls `step` each time instead.
    """

    def __init__(self, step: Callable[[], None], pool: Pool) -> None:
        self._run = step
        if pool is not None:
            self._run = _captured(step, pool).replay

    def run(self) -> None:
        """Launch the step once more."""
        self._run()


def _captured(step: Callable[[], None], pool: tuple[int, int]) -> torch.cuda.CUDAGraph:
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        step()
    return graph
