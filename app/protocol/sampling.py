"""Sampling fields of a request body as the contract's `SamplingParams`.

The same names serve every API: OpenAI's own at the top of a chat request, and
vLLM's additions beside them; inside a Realtime response or session they sit in
its private `repartee` object. null means the default, as does absence.
"""

from __future__ import annotations

import re
from typing import Any

from app.protocol.fields import Fields, join, wrong_type
from engine.contract import InvalidRequest, SamplingParams

SAMPLING_FIELDS = frozenset(
    {
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "logit_bias",
        "seed",
        "stop",
        "stop_token_ids",
        "min_tokens",
        "ignore_eos",
    }
)
_SCALARS = sorted(SAMPLING_FIELDS - {"logit_bias", "stop", "stop_token_ids"})
_TOKEN_ID = re.compile(r"[0-9]{1,10}")


def read_sampling(fields: Fields, max_tokens: int | None, vocab_size: int) -> SamplingParams:
    """Read and check every sampling field.

    Args:
        fields: The object that holds them; other fields are left alone.
        max_tokens: The answer's limit, which each API spells its own way.
        vocab_size: Token ids are below it.

    Raises:
        InvalidRequest: naming the field by its full path.
    """
    values: dict[str, Any] = {}
    for name in _SCALARS:
        value = fields.get(name)
        if value is not None:
            values[name] = value
    values["stop"] = _read_stop(fields)
    values["stop_token_ids"] = tuple(fields.array("stop_token_ids") or ())
    values["logit_bias"] = _read_logit_bias(fields)
    try:
        params = SamplingParams(max_tokens=max_tokens, **values)
        params.check_vocabulary(vocab_size)
    except InvalidRequest as error:
        raise _at(error, fields.path) from None
    return params


def _at(error: InvalidRequest, path: str) -> InvalidRequest:
    """The same error with the field's full path."""
    if not path or error.param is None:
        return error
    full = join(path, error.param)
    return InvalidRequest(error.message.replace(error.param, full, 1), code=error.code, param=full)


def _read_stop(fields: Fields) -> tuple[str, ...]:
    value = fields.get("stop")
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise wrong_type(fields.param("stop"), "a string or an array of strings", value)
    return tuple(value)


def _read_logit_bias(fields: Fields) -> tuple[tuple[int, float], ...]:
    biases = fields.object("logit_bias")
    if biases is None:
        return ()
    pairs: list[tuple[int, float]] = []
    for key, bias in biases.source.items():
        if not _TOKEN_ID.fullmatch(key):
            raise InvalidRequest(
                f"{biases.path} keys must be token ids in decimal, got {key[:40]!r}.",
                param=biases.path,
            )
        pairs.append((int(key), bias))
    return tuple(pairs)
