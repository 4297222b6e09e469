"""What a worker says of a response, in order, under a lease.

Every event carries (epoch, seq). The epoch, from 1, counts the leases under which
a response was generated: a worker that takes a response over writes under the
next one. seq counts the response's events from 0 and goes on across epochs.
The log's entry id is `epoch-seq`, so Redis itself refuses a write from a worker
that lost its lease.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.contract.errors import ReparteeError, error_from_wire
from engine.contract.messages import FinishReason, Usage
from engine.contract.progress import Progress


@dataclass(frozen=True, slots=True)
class Accepted:
    """The prompt is tokenised, fits, and waits or runs. Once in a response, before any text."""

    request_id: str
    epoch: int
    seq: int
    prompt_tokens: int

    def to_wire(self) -> dict[str, Any]:
        return {
            "t": "a",
            "id": self.request_id,
            "e": self.epoch,
            "s": self.seq,
            "p": self.prompt_tokens,
        }


@dataclass(frozen=True, slots=True)
class Delta:
    """One chunk of text.

    Attributes:
        request_id: Whose.
        epoch: See the module.
        seq: See the module.
        text: What it adds to the answer.
        num_tokens: Tokens that became visible with it.
        tokens: Ids of the tokens made since the last delta, those among them whose text
            is still held back; who takes the response over goes on after them.
    """

    request_id: str
    epoch: int
    seq: int
    text: str
    num_tokens: int
    tokens: tuple[int, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        return {
            "t": "d",
            "id": self.request_id,
            "e": self.epoch,
            "s": self.seq,
            "x": self.text,
            "n": self.num_tokens,
            "k": list(self.tokens),
        }


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The response goes on under another lease; fences the one before.

    Written by the gateway that arranged it, before the new worker writes anything.

    Attributes:
        request_id: Whose.
        epoch: The new one.
        seq: See the module.
        worker_id: Who goes on.
    """

    request_id: str
    epoch: int
    seq: int
    worker_id: str

    def to_wire(self) -> dict[str, Any]:
        return {
            "t": "o",
            "id": self.request_id,
            "e": self.epoch,
            "s": self.seq,
            "w": self.worker_id,
        }


@dataclass(frozen=True, slots=True)
class Finished:
    """The terminal event of a response that did not fail.

    Attributes:
        request_id: Whose.
        epoch: See the module.
        seq: See the module.
        reason: Why it ended.
        usage: What it counts.
        queued_ms: From its acceptance until it first ran; None if it never did.
    """

    request_id: str
    epoch: int
    seq: int
    reason: FinishReason
    usage: Usage
    queued_ms: float | None = None

    def to_wire(self) -> dict[str, Any]:
        usage = self.usage
        return {
            "t": "f",
            "id": self.request_id,
            "e": self.epoch,
            "s": self.seq,
            "r": self.reason.value,
            "u": [usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens],
            "q": self.queued_ms,
        }


@dataclass(frozen=True, slots=True)
class Failed:
    """The terminal event of a response that failed; text sent so far stays valid."""

    request_id: str
    epoch: int
    seq: int
    error: ReparteeError
    usage: Usage | None = None

    def to_wire(self) -> dict[str, Any]:
        usage = self.usage
        return {
            "t": "x",
            "id": self.request_id,
            "e": self.epoch,
            "s": self.seq,
            "err": self.error.to_wire(),
            "u": usage and [usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens],
        }


Event = Accepted | Delta | TakenOver | Finished | Failed


def event_from_wire(wire: Mapping[str, Any]) -> Event:
    """Read an event's wire dict.

    Raises:
        ValueError: for an unknown kind.
    """
    kind = wire.get("t")
    if kind == "d":
        # Most events by far are deltas.
        tokens = tuple(wire["k"])
        return Delta(wire["id"], wire["e"], wire["s"], wire["x"], wire["n"], tokens)
    head = (wire["id"], wire["e"], wire["s"])
    if kind == "a":
        return Accepted(*head, prompt_tokens=wire["p"])
    if kind == "f":
        return Finished(*head, FinishReason(wire["r"]), Usage(*wire["u"]), wire["q"])
    if kind == "x":
        usage = Usage(*wire["u"]) if wire["u"] else None
        return Failed(*head, error=error_from_wire(wire["err"]), usage=usage)
    if kind == "o":
        return TakenOver(*head, worker_id=wire["w"])
    raise ValueError(f"unknown event {kind!r}")


def progress_of(events: Sequence[Event]) -> Progress | None:
    """How far a response has come, from all of its events.

    Returns:
        None where some are missing: nobody knows what was said in them.
    """
    if [event.seq for event in events] != list(range(len(events))):
        return None
    deltas = [event for event in events if isinstance(event, Delta)]
    accepted = [event.prompt_tokens for event in events if isinstance(event, Accepted)]
    return Progress(
        next_seq=len(events),
        prompt_tokens=accepted[0] if accepted else None,
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        num_chars=sum(len(delta.text) for delta in deltas),
        num_tokens=sum(delta.num_tokens for delta in deltas),
    )
