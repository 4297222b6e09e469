"""What a Realtime session is set to, and what `session.update` may change.

Of the `session` object, type, output_modalities, instructions, max_output_tokens and
repartee are honoured; model must be the session's own; truncation may only be
"disabled", for nothing is ever dropped silently. Ignored, harmless: id, object,
expires_at, audio, include, tracing, parallel_tool_calls, tool_choice. Refused unless
absent, null or empty: tools, prompt, reasoning. Anything else is refused as unknown.

`repartee` holds sampling fields under the names of chat completions. Each update
replaces the fields that it names; a null puts a field back to its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.protocol.fields import Fields, wrong_type
from app.protocol.sampling import SAMPLING_FIELDS, read_sampling
from engine.contract import InvalidRequest, ModelCard
from engine.contract.sampling import MAX_TOKENS_LIMIT

_SESSION_FIELDS = frozenset(
    {
        "type",
        "output_modalities",
        "instructions",
        "max_output_tokens",
        "repartee",
        "model",
        "id",
        "object",
        "expires_at",
        "audio",
        "include",
        "tracing",
        "parallel_tool_calls",
        "tool_choice",
        "tools",
        "prompt",
        "reasoning",
        "truncation",
    }
)


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """A session's settings.

    Attributes:
        model: The model's id.
        instructions: System text put before the conversation; empty means none.
        max_output_tokens: Limit of each answer; None means up to the window.
        sampling: The `repartee` object: sampling fields as the client gave them.
    """

    model: str
    instructions: str = ""
    max_output_tokens: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For the store."""
        return {
            "model": self.model,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "repartee": dict(self.sampling),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SessionSettings:
        """Read `to_dict`'s answer back."""
        return cls(
            model=values["model"],
            instructions=values["instructions"],
            max_output_tokens=values["max_output_tokens"],
            sampling=values["repartee"],
        )


def session_object(session_id: str, settings: SessionSettings) -> dict[str, Any]:
    """The whole effective session as the wire shows it."""
    return {
        "id": session_id,
        "object": "realtime.session",
        "type": "realtime",
        "model": settings.model,
        "output_modalities": ["text"],
        "instructions": settings.instructions,
        "max_output_tokens": limit_to_wire(settings.max_output_tokens),
        "tools": [],
        "tool_choice": "none",
        "truncation": "disabled",
        "repartee": dict(settings.sampling),
    }


def read_update(fields: Fields, current: SessionSettings, card: ModelCard) -> SessionSettings:
    """Apply `session.update`'s session object.

    Raises:
        InvalidRequest: naming the field; `current` stays as it is.
    """
    fields.only(_SESSION_FIELDS)
    fields.choice("type", ("realtime",))
    check_modalities(fields)
    refuse_tools(fields)
    model = fields.string("model")
    if model is not None and model != current.model:
        raise InvalidRequest(
            f"{fields.param('model')} cannot change from {current.model!r} in a session.",
            param=fields.param("model"),
        )
    fields.choice("truncation", ("disabled",))
    updated = current
    if "instructions" in fields.source:
        updated = replace(updated, instructions=fields.string("instructions") or "")
    if "max_output_tokens" in fields.source:
        updated = replace(updated, max_output_tokens=read_limit(fields))
    if "repartee" in fields.source:
        updated = replace(updated, sampling=_read_private(fields, current, card))
    return updated


def read_limit(fields: Fields) -> int | None:
    """`max_output_tokens`: an integer of at least 1, "inf" or null."""
    value = fields.get("max_output_tokens")
    if value == "inf":
        return None
    if isinstance(value, str):
        raise wrong_type(fields.param("max_output_tokens"), 'an integer or "inf"', value)
    return fields.integer("max_output_tokens", 1, MAX_TOKENS_LIMIT)


def limit_to_wire(max_output_tokens: int | None) -> int | str:
    """Inverse of `read_limit`."""
    return "inf" if max_output_tokens is None else max_output_tokens


def check_modalities(fields: Fields) -> None:
    """Refuse output modalities other than text alone."""
    if fields.array("output_modalities") not in (None, ["text"]):
        raise InvalidRequest(
            f'{fields.param("output_modalities")} must be ["text"]; this server has no audio.',
            code="unsupported_parameter",
            param=fields.param("output_modalities"),
        )


def refuse_tools(fields: Fields) -> None:
    """Refuse what asks for tools, stored prompts or reasoning."""
    for name in ("tools", "prompt", "reasoning"):
        if fields.get(name):
            raise InvalidRequest(
                f"{fields.param(name)} is not supported by this server.",
                code="unsupported_parameter",
                param=fields.param(name),
            )


def _read_private(fields: Fields, current: SessionSettings, card: ModelCard) -> Mapping[str, Any]:
    private = fields.object("repartee")
    if private is None:
        return {}
    private.only(SAMPLING_FIELDS)
    merged = {**current.sampling, **private.source}
    kept = {name: value for name, value in merged.items() if value is not None}
    read_sampling(Fields(kept, private.path), None, card.vocab_size)
    return kept
