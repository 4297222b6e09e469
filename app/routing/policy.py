"""Which worker gets a request."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from engine.contract import GenerateRequest, Overloaded, Unavailable, WorkerState

# Requests that may wait at one worker before it counts as full.
MAX_WAITING = 256


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that could take a request.

    Attributes:
        state: Its last heartbeat.
        num_unseen: Requests sent to it from here that the heartbeat can't know of yet.
    """

    state: WorkerState
    num_unseen: int

    @property
    def num_waiting(self) -> int:
        return self.state.num_waiting + self.num_unseen

    @property
    def load(self) -> float:
        """Requests per KV block; workers of unlike size compare by it."""
        return (self.state.num_running + self.num_waiting) / max(1, self.state.num_blocks)


def choose(
    request: GenerateRequest,
    candidates: Sequence[Candidate],
    *,
    max_waiting: int = MAX_WAITING,
    rng: random.Random | None = None,
) -> Candidate:
    """The least loaded candidate; among equals any, so that gateways don't agree.

    Raises:
        Unavailable: there is no candidate.
        Overloaded: every candidate's queue is full.
    """
    if not candidates:
        raise Unavailable(
            f"No worker serves {request.model!r} right now.",
            code="no_worker",
            retry_after_ms=1000,
        )
    open_ones = [candidate for candidate in candidates if candidate.num_waiting < max_waiting]
    if not open_ones:
        shortest = min(candidate.num_waiting for candidate in candidates)
        raise Overloaded(
            f"Every worker's queue is full: at least {shortest} requests wait, "
            f"the limit is {max_waiting}.",
            retry_after_ms=2000,
        )
    least = min(candidate.load for candidate in open_ones)
    return (rng or random).choice([one for one in open_ones if one.load == least])
