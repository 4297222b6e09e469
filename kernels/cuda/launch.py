"""What the launches have in common: the device's size, programmatic launch, settings."""

from __future__ import annotations

import contextlib
import contextvars
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
import triton

# Rows from which starting a kernel early gains less than it disturbs.
OVERLAP_ROWS = 64
TUNING = Path(__file__).parent.parent / "tuning"

_overlap = contextvars.ContextVar("overlap", default=False)


@contextlib.contextmanager
def overlapped_launches(enabled: bool = True) -> Iterator[None]:
    """Launches within may start while the kernel before them still runs.

    They wait for it before they read what it wrote (programmatic dependent launch), so
    only start-up and weight loads overlap. Pays where kernels are short.
    """
    token = _overlap.set(enabled)
    try:
        yield
    finally:
        _overlap.reset(token)


def overlap_options() -> dict[str, Any]:
    """Launch options for a kernel with the argument PDL."""
    if _overlap.get() and has_overlap():
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}


@cache
def capability() -> tuple[int, int]:
    """The GPU's compute capability; (0, 0) without one, as in the interpreter."""
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)


def has_overlap() -> bool:
    """Whether programmatic dependent launch exists: Hopper and later."""
    return capability() >= (9, 0)


@cache
def num_multiprocessors() -> int:
    """Multiprocessors of the GPU; 1 without one."""
    if not torch.cuda.is_available():
        return 1
    return torch.cuda.get_device_properties(0).multi_processor_count


@cache
def tuned_settings() -> dict[str, Any]:
    """Measured launch settings of this GPU and Triton version, else an empty table."""
    if not torch.cuda.is_available():
        return {}
    path = settings_path(torch.cuda.get_device_name(0))
    return json.loads(path.read_text()) if path.exists() else {}


def settings_path(card: str) -> Path:
    """Where the settings of a GPU of this name are kept, for this Triton version."""
    version = ".".join(triton.__version__.split(".")[:2])
    return TUNING / f"{card.lower().replace(' ', '_')}__triton_{version}.json"


def tuned(op: str, key: str) -> dict[str, Any]:
    """Settings of one op at one key, empty where nothing was measured."""
    return tuned_settings().get(op, {}).get(key, {})
