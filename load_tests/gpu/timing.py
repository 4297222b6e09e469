"""Timing on the card: CUDA graphs of rotated buffers, medians and spread."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import torch
import triton

# Several times the L2 of any card in use, so that no call finds its weights there.
COLD_BYTES = 420_000_000


def time_chain(calls: Sequence[Callable[[], Any]], repeats: int = 3, rounds: int = 12) -> float:
    """Microseconds a call: the calls back to back in one CUDA graph, median over replays."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            for call in calls:
                call()
    times = replay_times(graph, rounds)
    return statistics.median(times) * 1000 / (len(calls) * repeats)


def replay_times(graph: torch.cuda.CUDAGraph, rounds: int) -> list[float]:
    """Milliseconds of each replay, after two to warm up."""
    for _ in range(2):
        graph.replay()
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(rounds)
    ]
    for start, end in events:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def read_bandwidth() -> float:
    """GB/s of a sum over 2 GB: the read ceiling of this card in this minute."""
    data = torch.ones(1 << 29, dtype=torch.float32, device="cuda")
    out = torch.empty((), device="cuda")
    micros = time_chain([lambda: torch.sum(data, dim=0, out=out)], rounds=8)
    return data.nbytes / micros / 1000


def machine() -> dict[str, str]:
    """What the figures depend on."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "card": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda or "",
        "commit": commit,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
