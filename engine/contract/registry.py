"""What a worker says about itself, twice a second, under a key that expires."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from typing import Any

from engine.contract.messages import Message


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a gateway must know of the model to refuse bad requests early.

    Attributes:
        id: Name on the wire (`SmolLM2-135M-Instruct`).
        created_at: Unix seconds, whole; the model file's date.
        context_window: Tokens of prompt and answer together.
        vocab_size: Token ids are below it.
        max_token_bytes: UTF-8 bytes of the longest token; a text of b bytes has
            at least b / max_token_bytes tokens, so hopeless prompts are refused
            without tokenising.
        quantization: For people (`q4_1`, `bf16`).
    """

    id: str
    created_at: int
    context_window: int
    vocab_size: int
    max_token_bytes: int
    quantization: str


def conversation_tag(conversation_id: str) -> str:
    """Short name of a conversation in a heartbeat; two of one tag cost a bad guess at most."""
    return hashlib.blake2b(conversation_id.encode(), digest_size=6).hexdigest()


def leading_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The system turns with which a prompt begins."""
    return tuple(takewhile(lambda message: message.role in ("system", "developer"), messages))


def system_tag(model: str, tenant: str, messages: Sequence[Message]) -> str | None:
    """Short name of the system prompt that a tenant's chats begin with; None without one."""
    system = leading_system(messages)
    if not system:
        return None
    digest = hashlib.blake2b(digest_size=6, person=b"system")
    for part in (model, tenant, *(part for m in system for part in (m.role, m.content))):
        text = part.encode(errors="surrogatepass")
        digest.update(len(text).to_bytes(8, "little"))
        digest.update(text)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One heartbeat.

    Attributes:
        worker_id: Unique to this process's life.
        card: The model it serves.
        beat_at: Unix seconds.
        last_step_at: Unix seconds of the last completed engine step or idle pass;
            a worker whose clock beats while this stands still is frozen.
        num_running: Sequences in the batch.
        num_waiting: Accepted and not yet running.
        used_blocks: KV blocks referenced by sequences.
        num_blocks: KV blocks in all.
        decode_tokens_per_s: Moving average over all sequences; 0 if unknown.
        draining: Takes no new requests.
        metrics: Monotonic counters and gauges by Prometheus name, for `/metrics`.
        held: Tokens of a prefix kept for a conversation, by `conversation_tag`, and of
            a system prompt, by `system_tag`; the latest only.
    """

    worker_id: str
    card: ModelCard
    beat_at: float
    last_step_at: float
    num_running: int
    num_waiting: int
    used_blocks: int
    num_blocks: int
    decode_tokens_per_s: float
    draining: bool
    metrics: Mapping[str, float]
    held: Mapping[str, int] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> WorkerState:
        values = dict(wire)
        values["card"] = ModelCard(**values["card"])
        return cls(**values)
