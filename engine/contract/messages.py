"""Commands from a gateway to a worker, and what they are made of.

Each message is a frozen dataclass with a compact wire form (a plain dict for the
transport's JSON encoder). The transport is `engine.contract.keys`: one inbox
stream per worker, one per gateway, one log stream per response. `events` holds what
comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from engine.contract.progress import Progress
from engine.contract.sampling import SamplingParams


class Tier(StrEnum):
    """Who goes first. `vip` passes `standard`, which passes `batch`."""

    VIP = "vip"
    STANDARD = "standard"
    BATCH = "batch"


class FinishReason(StrEnum):
    """Why a response ended without an error."""

    STOP = "stop"  # end-of-turn token, stop token or stop string
    LENGTH = "length"  # max_tokens or the window
    CANCELLED = "cancelled"


class Cursor(NamedTuple):
    """A place in a response's event log; `Cursor(0, 0)` is before the first event."""

    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. Content is whole text; parts were joined at the edge."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. `cached_tokens` is the part of the prompt not computed again."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One answer to generate.

    Attributes:
        request_id: Server-made, unique for good; the response's id on the wire.
        model: The model card's id.
        messages: The turns, in order; at least one.
        sampling: Validated parameters.
        tier: Priority class.
        tenant: Whose prefix cache this may share; the cache's salt.
        conversation_id: The conversation that owns the generation; None for an
            answer outside any.
        reply_to: The gateway that listens from the start.
        created_at: Unix seconds at the gateway.
        deadline_at: Unix seconds after which the answer is no longer wanted.
        epoch: Lease number, from 1.
        progress: What earlier leases made; None in the first. Never on the wire: the
            worker that takes the request over reads it from the log.
    """

    request_id: str
    model: str
    messages: tuple[Message, ...]
    sampling: SamplingParams
    tier: Tier
    tenant: str
    conversation_id: str | None
    reply_to: str
    created_at: float
    deadline_at: float
    epoch: int = 1
    progress: Progress | None = None

    def to_wire(self) -> dict[str, Any]:
        return {
            "id": self.request_id,
            "model": self.model,
            "messages": [[m.role, m.content] for m in self.messages],
            "sampling": self.sampling.to_wire(),
            "tier": self.tier.value,
            "tenant": self.tenant,
            "conversation": self.conversation_id,
            "reply_to": self.reply_to,
            "created_at": self.created_at,
            "deadline_at": self.deadline_at,
            "epoch": self.epoch,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> GenerateRequest:
        return cls(
            request_id=wire["id"],
            model=wire["model"],
            messages=tuple(Message(role, content) for role, content in wire["messages"]),
            sampling=SamplingParams.from_wire(wire["sampling"]),
            tier=Tier(wire["tier"]),
            tenant=wire["tenant"],
            conversation_id=wire["conversation"],
            reply_to=wire["reply_to"],
            created_at=wire["created_at"],
            deadline_at=wire["deadline_at"],
            epoch=wire["epoch"],
        )


@dataclass(frozen=True, slots=True)
class Submit:
    """Generate; answered by Accepted or Failed, then by exactly one terminal event."""

    request: GenerateRequest

    def to_wire(self) -> dict[str, Any]:
        return {"t": "submit", "request": self.request.to_wire()}


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with a response that this worker was given; its lease and its log say all."""

    request_id: str

    def to_wire(self) -> dict[str, Any]:
        return {"t": "resume", "id": self.request_id}


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a response now, queued or running. Idempotent; unknown ids are ignored."""

    request_id: str

    def to_wire(self) -> dict[str, Any]:
        return {"t": "cancel", "id": self.request_id}


@dataclass(frozen=True, slots=True)
class Listen:
    """Send this response's further events to one more gateway as well.

    Attributes:
        request_id: Whose events.
        gateway_id: Who listens.
        next_seq: Send again what there is from this seq on, for the log lacks it; None
            sends the last event again, which shows whether anything is missing.
    """

    request_id: str
    gateway_id: str
    next_seq: int | None = None

    def to_wire(self) -> dict[str, Any]:
        return {
            "t": "listen",
            "id": self.request_id,
            "gateway": self.gateway_id,
            "next": self.next_seq,
        }


@dataclass(frozen=True, slots=True)
class Warm:
    """Compute the prompt of a message that is still being typed, if there's time to spare.

    Takes the place of the conversation's last one, and ends with its next Submit. It is
    answered by no event, promises nothing, and no usage counts it.

    Attributes:
        conversation_id: Whose; that of the Submit to come.
        model: The model card's id.
        messages: The turns so far, the typed one not among them; may be empty.
        draft: The typed one so far; empty computes the turns alone.
        tenant: Whose prefix cache it fills.
        created_at: Unix seconds at the gateway.
    """

    conversation_id: str
    model: str
    messages: tuple[Message, ...]
    draft: str
    tenant: str
    created_at: float

    def to_wire(self) -> dict[str, Any]:
        return {
            "t": "warm",
            "conversation": self.conversation_id,
            "model": self.model,
            "messages": [[m.role, m.content] for m in self.messages],
            "draft": self.draft,
            "tenant": self.tenant,
            "created_at": self.created_at,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Warm:
        return cls(
            conversation_id=wire["conversation"],
            model=wire["model"],
            messages=tuple(Message(role, content) for role, content in wire["messages"]),
            draft=wire["draft"],
            tenant=wire["tenant"],
            created_at=wire["created_at"],
        )


@dataclass(frozen=True, slots=True)
class Release:
    """A conversation is closed: end its warm-up, keep its KV no longer than any other's."""

    conversation_id: str

    def to_wire(self) -> dict[str, Any]:
        return {"t": "release", "conversation": self.conversation_id}


@dataclass(frozen=True, slots=True)
class Drain:
    """Leave as after SIGTERM: take nothing new, end or hand over what runs, stop."""

    def to_wire(self) -> dict[str, Any]:
        return {"t": "drain"}


Command = Submit | Resume | Cancel | Listen | Warm | Release | Drain


def command_from_wire(wire: Mapping[str, Any]) -> Command:
    """Read a command's wire dict.

    Raises:
        ValueError: for an unknown kind.
        InvalidRequest: for sampling values out of range.
    """
    kind = wire.get("t")
    if kind == "submit":
        return Submit(GenerateRequest.from_wire(wire["request"]))
    if kind == "resume":
        return Resume(wire["id"])
    if kind == "cancel":
        return Cancel(wire["id"])
    if kind == "listen":
        return Listen(wire["id"], wire["gateway"], wire["next"])
    if kind == "warm":
        return Warm.from_wire(wire)
    if kind == "release":
        return Release(wire["conversation"])
    if kind == "drain":
        return Drain()
    raise ValueError(f"unknown command {kind!r}")
