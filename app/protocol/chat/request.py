"""A chat completion request, read and checked field by field.

Honoured: model, messages, stream, stream_options.include_usage, max_completion_tokens,
max_tokens, temperature, top_p, seed, stop, logit_bias, frequency_penalty,
presence_penalty; and with vLLM's names top_k, min_p, repetition_penalty,
stop_token_ids, min_tokens, ignore_eos.

Ignored, harmless: user, metadata, store, service_tier, safety_identifier,
prompt_cache_key, prompt_cache_retention, reasoning_effort, verbosity,
parallel_tool_calls, stream_options.include_obfuscation.

Refused unless absent, null or asking for nothing: n (above 1), logprobs, top_logprobs,
tools, tool_choice, functions, function_call, response_format (but text), audio,
modalities (but text), prediction, web_search_options. Anything else is refused as
unknown.

`max_completion_tokens` wins over `max_tokens` when both are given; both are checked.
`developer` is read as `system`. An assistant turn at the end is a finished turn: a new
assistant turn follows it. `model` may be left out; the served model answers then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.protocol.content import check_size, read_content
from app.protocol.fields import Fields, join, missing
from app.protocol.sampling import SAMPLING_FIELDS, read_sampling
from engine.contract import InvalidRequest, Message, ModelCard, SamplingParams
from engine.contract.sampling import MAX_TOKENS_LIMIT

_HONOURED = SAMPLING_FIELDS | {
    "model",
    "messages",
    "stream",
    "stream_options",
    "max_completion_tokens",
    "max_tokens",
}
_IGNORED = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "verbosity",
        "parallel_tool_calls",
    }
)
# Each refused field with the values that ask for nothing.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
}
_KNOWN = _HONOURED | _IGNORED | _REFUSED.keys()
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a chat completion request asks for.

    Attributes:
        card: The model that answers.
        messages: The turns, in order; at least one.
        sampling: Checked against the model's vocabulary.
        stream: Whether the answer comes as an event stream.
        include_usage: Whether a last chunk carries the token counts.
    """

    card: ModelCard
    messages: tuple[Message, ...]
    sampling: SamplingParams
    stream: bool
    include_usage: bool


def read_chat_request(
    body: dict[str, Any], card_of: Callable[[str | None], ModelCard]
) -> ChatRequest:
    """Check a decoded body.

    Args:
        body: The JSON object.
        card_of: Finds a model by name, or the default for None; raises NotFound.

    Raises:
        InvalidRequest: naming the first wrong field; NotFound for the model.
    """
    fields = Fields(body)
    fields.only(_KNOWN)
    _check_refused(fields)
    card = card_of(fields.string("model"))
    stream = fields.boolean("stream")
    messages = _read_messages(fields, card)
    return ChatRequest(
        card=card,
        messages=messages,
        sampling=read_sampling(fields, _read_max_tokens(fields), card.vocab_size),
        stream=stream,
        include_usage=_read_include_usage(fields, stream),
    )


def _check_refused(fields: Fields) -> None:
    for name, neutral in _REFUSED.items():
        value = fields.get(name)
        # `True == 1` in Python; on the wire they differ.
        if value is None or any(value == n and type(value) is type(n) for n in neutral):
            continue
        raise InvalidRequest(
            f"{name} is not supported by this server.", code="unsupported_parameter", param=name
        )


def _read_max_tokens(fields: Fields) -> int | None:
    old = fields.integer("max_tokens", 1, MAX_TOKENS_LIMIT)
    new = fields.integer("max_completion_tokens", 1, MAX_TOKENS_LIMIT)
    return old if new is None else new


def _read_include_usage(fields: Fields, stream: bool) -> bool:
    options = fields.object("stream_options")
    if options is None:
        return False
    if not stream:
        raise InvalidRequest("stream_options is only for stream: true.", param="stream_options")
    options.only(("include_usage", "include_obfuscation"))
    options.boolean("include_obfuscation")
    return options.boolean("include_usage")


def _read_messages(fields: Fields, card: ModelCard) -> tuple[Message, ...]:
    values = fields.array("messages")
    if values is None:
        raise missing("messages")
    if not values:
        raise InvalidRequest("messages must hold at least one message, got 0.", param="messages")
    messages = tuple(_read_message(value, i) for i, value in enumerate(values))
    check_size(messages, card, "messages")
    return messages


def _read_message(value: object, index: int) -> Message:
    message = Fields.of(value, join("messages", index))
    role = message.required_string("role")
    if role not in _ROLES:
        raise InvalidRequest(
            f"{message.param('role')} must be one of {', '.join(_ROLES)}, got {role[:40]!r}.",
            param=message.param("role"),
        )
    for name in ("tool_calls", "function_call", "audio"):
        if message.get(name):
            raise InvalidRequest(
                f"{message.param(name)} is not supported by this server.",
                code="unsupported_parameter",
                param=message.param(name),
            )
    content = message.get("content")
    if content is None and role == "assistant":
        content = ""
    return Message(_ROLES[role], read_content(content, message.param("content"), ("text",)))
