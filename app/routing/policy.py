"""Which worker gets a request."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from engine.contract import GenerateRequest, Overloaded, Tier, Unavailable, WorkerState
from engine.contract.tier_values import MAX_TIER_WAITING

# A worker that holds a conversation's prefix gets its request although it is this much
# busier than an even share of the load would make it: half as many requests again, and
# two more, so that an almost idle one isn't passed over for an idle one.
HOLDER_EXCESS = 1.5
HOLDER_EXCESS_REQUESTS = 2
# Workers that hold this share of what the first holds are as good: the least loaded of
# them gets the request, so that chats on one system prompt spread over its holders.
AS_GOOD = 0.9

# Requests of all tiers that may wait at one worker before it counts as full. More than its
# own queues can be set to hold, for which the worker decides: a queue full of batch work must
# not refuse a VIP here.
MAX_WAITING = (len(Tier) + 1) * MAX_TIER_WAITING


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that could take a request.

    Attributes:
        state: Its last heartbeat.
        num_unseen: Requests sent to it from here that the heartbeat can't know of yet.
        num_held: Tokens of the conversation's prompt that it need not compute again.
    """

    state: WorkerState
    num_unseen: int
    num_held: int = 0

    @property
    def num_waiting(self) -> int:
        return self.state.num_waiting + self.num_unseen

    @property
    def num_requests(self) -> int:
        return self.state.num_running + self.num_waiting

    @property
    def load(self) -> float:
        """Requests per KV block; workers of unlike size compare by it."""
        return self.num_requests / max(1, self.state.num_blocks)


def choose(
    request: GenerateRequest,
    candidates: Sequence[Candidate],
    *,
    max_waiting: int = MAX_WAITING,
    rng: random.Random | None = None,
) -> Candidate:
    """The candidate that holds most of the prompt, unless it is too busy; else the least loaded.

    Among equals any, so that gateways don't agree.

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
    return _pick(open_ones, rng)


def choose_to_warm(
    candidates: Sequence[Candidate], *, rng: random.Random | None = None
) -> Candidate | None:
    """Where a prompt is worth computing ahead: a worker on which nobody waits, if any."""
    idle = [candidate for candidate in candidates if candidate.num_waiting == 0]
    return _pick(idle, rng) if idle else None


def _pick(candidates: Sequence[Candidate], rng: random.Random | None) -> Candidate:
    least = min(candidate.load for candidate in candidates)
    most = max(candidate.num_held for candidate in candidates)
    holders = [one for one in candidates if one.num_held >= AS_GOOD * most]
    holder = min(holders, key=lambda candidate: candidate.load)
    even_share = least * max(1, holder.state.num_blocks)
    if holder.num_held and (
        holder.num_requests <= HOLDER_EXCESS * even_share + HOLDER_EXCESS_REQUESTS
    ):
        return holder
    return (rng or random).choice([one for one in candidates if one.load == least])
