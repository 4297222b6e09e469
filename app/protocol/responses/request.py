"""The body of a create, read and checked field by field.

Honoured: model, input, instructions, previous_response_id, max_output_tokens, metadata,
store, stream, background, generate, and the sampling fields of chat completions by their
names there.

Ignored, harmless: user, safety_identifier, prompt_cache_key, prompt_cache_retention,
prompt_cache_options, service_tier, reasoning, parallel_tool_calls,
stream_options.include_obfuscation, text.verbosity.

Refused unless absent, null or asking for nothing: tools, tool_choice, max_tool_calls,
include, text.format (but text), truncation (but disabled: nothing is dropped silently),
top_logprobs, conversation, prompt, image, moderation, context_management,
background_options, access_programs. Anything else is refused as unknown.

`generate: false` computes the prompt and makes no answer; its id may be continued from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.protocol.fields import Fields
from app.protocol.ids import MAX_ID_CHARS
from app.protocol.metadata import read_metadata
from app.protocol.responses.items import InputItem, read_input
from app.protocol.sampling import SAMPLING_FIELDS, read_sampling
from engine.contract import InvalidRequest, ModelCard, SamplingParams
from engine.contract.sampling import MAX_TOKENS_LIMIT

_HONOURED = SAMPLING_FIELDS | {
    "model",
    "input",
    "instructions",
    "previous_response_id",
    "max_output_tokens",
    "metadata",
    "store",
    "stream",
    "stream_options",
    "background",
    "generate",
    "text",
}
_IGNORED = frozenset(
    {
        "user",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "service_tier",
        "reasoning",
        "parallel_tool_calls",
    }
)
# Each refused field with the values that ask for nothing.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "max_tool_calls": (),
    "include": ([], ["reasoning.encrypted_content"]),
    "truncation": ("disabled",),
    "top_logprobs": (0,),
    "conversation": (),
    "prompt": (),
    "image": (),
    "moderation": (),
    "context_management": ([],),
    "background_options": (),
    "access_programs": (),
}
_KNOWN = _HONOURED | _IGNORED | _REFUSED.keys()


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """What a create asks for.

    Attributes:
        card: The model that answers.
        input: The new turns.
        instructions: System text put before everything; None means none.
        previous_response_id: Whose turns go before the new ones.
        sampling: Checked against the model's vocabulary.
        metadata: Given back with the response.
        is_stored: Whether it can be read, continued and resumed later.
        is_stream: Whether the answer comes as events.
        is_background: Whether the answer to the request comes at once.
        is_warm_up: Whether only the prompt is computed.
    """

    card: ModelCard
    input: tuple[InputItem, ...]
    instructions: str | None
    previous_response_id: str | None
    sampling: SamplingParams
    metadata: Mapping[str, str] | None
    is_stored: bool
    is_stream: bool
    is_background: bool
    is_warm_up: bool


def read_responses_request(
    fields: Fields, card_of: Callable[[str | None], ModelCard], *, is_socket: bool = False
) -> ResponsesRequest:
    """Check a create.

    Args:
        fields: The decoded body.
        card_of: Finds a model by name, or the default for None; raises NotFound.
        is_socket: It came by a WebSocket, where every answer is a stream.

    Raises:
        InvalidRequest: naming the first wrong field; NotFound for the model.
    """
    fields.only(_KNOWN)
    _check_refused(fields)
    _check_text(fields)
    card = card_of(fields.string("model"))
    is_stored = fields.get("store") is None or fields.boolean("store")
    request = ResponsesRequest(
        card=card,
        input=read_input(fields),
        instructions=fields.string("instructions"),
        previous_response_id=fields.string("previous_response_id", MAX_ID_CHARS),
        sampling=read_sampling(
            fields, fields.integer("max_output_tokens", 1, MAX_TOKENS_LIMIT), card.vocab_size
        ),
        metadata=read_metadata(fields),
        is_stored=is_stored,
        is_stream=is_socket or fields.boolean("stream"),
        is_background=fields.boolean("background"),
        is_warm_up=fields.get("generate") is not None and not fields.boolean("generate"),
    )
    _check_stream_options(fields, request.is_stream)
    if request.is_background and not is_stored:
        raise InvalidRequest("background: true needs store: true.", param="background")
    return request


def _check_refused(fields: Fields) -> None:
    for name, neutral in _REFUSED.items():
        value = fields.get(name)
        # `True == 1` in Python; on the wire they differ.
        if value is None or any(value == n and type(value) is type(n) for n in neutral):
            continue
        raise InvalidRequest(
            f"{name} is not supported by this server.", code="unsupported_parameter", param=name
        )


def _check_text(fields: Fields) -> None:
    text = fields.object("text")
    if text is None:
        return
    text.only(("format", "verbosity"))
    shape = text.object("format")
    if shape is not None and shape.source != {"type": "text"}:
        raise InvalidRequest(
            'text.format must be {"type": "text"}; this server makes no other.',
            code="unsupported_parameter",
            param="text.format",
        )


def _check_stream_options(fields: Fields, is_stream: bool) -> None:
    options = fields.object("stream_options")
    if options is None:
        return
    if not is_stream:
        raise InvalidRequest("stream_options is only for stream: true.", param="stream_options")
    options.only(("include_obfuscation",))
    options.boolean("include_obfuscation")
