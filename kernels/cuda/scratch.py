"""Device memory that kernels use within one launch, shared by all launches of a stream.

Launches of one stream follow each other, so one buffer serves all of them. Buffers are
made once at their largest size: a CUDA graph keeps their addresses.
"""

from __future__ import annotations

import torch

FLOATS = 16 * 1024 * 1024
TICKETS = 64 * 1024

_floats: dict[torch.device, torch.Tensor] = {}
_tickets: dict[torch.device, torch.Tensor] = {}


def float_scratch(device: torch.device, count: int) -> torch.Tensor:
    """At least `count` float32, uninitialised.

    Raises:
        ValueError: if that is more than the buffer holds.
    """
    if count > FLOATS:
        raise ValueError(f"scratch: expected at most {FLOATS} floats, got {count}")
    if device not in _floats:
        _floats[device] = torch.empty(FLOATS, dtype=torch.float32, device=device)
    return _floats[device]


def tickets(device: torch.device, count: int) -> torch.Tensor:
    """At least `count` int32, all 0 between launches: who takes one gives it back.

    Raises:
        ValueError: if that is more than the buffer holds.
    """
    if count > TICKETS:
        raise ValueError(f"scratch: expected at most {TICKETS} tickets, got {count}")
    if device not in _tickets:
        _tickets[device] = torch.zeros(TICKETS, dtype=torch.int32, device=device)
    return _tickets[device]
