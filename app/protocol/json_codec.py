"""Strict JSON: bounded depth, finite numbers, whole Unicode, errors that name the field.

orjson does the decoding. Only when it refuses a text is the slower standard decoder
asked as well, to find out which field holds the lone surrogate or the infinity; not for
long texts, as everybody else waits meanwhile.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import orjson

from engine.contract import InvalidRequest

MAX_DEPTH = 64
MAX_CONTAINERS = 100_000
# Of a text whose brackets alone do not say whether it keeps to MAX_CONTAINERS.
MAX_QUOTES = 100_000
# Longest text of which more than that it is wrong is found out.
MAX_EXPLAINED_CHARS = 256 * 1024

# An unterminated string runs to the end, so that no input is scanned twice.
_STRINGS = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\Z)', re.DOTALL)
_BRACKETS = re.compile(r"[\[\]{}]")


def encode(value: Any) -> bytes:
    """Compact JSON in UTF-8."""
    return orjson.dumps(value)


def decode(data: str | bytes) -> Any:
    """Parse one JSON text.

    Args:
        data: The text, or its UTF-8 bytes.

    Returns:
        What it means; integers of more than 64 bits come back as floats.

    Raises:
        InvalidRequest: for anything but standard JSON of at most MAX_DEPTH levels and
            MAX_CONTAINERS arrays and objects; `param` names the field where one is known.
    """
    text = _as_text(data)
    num_brackets = text.count("[") + text.count("{")
    if num_brackets > MAX_CONTAINERS:
        if text.count('"') > MAX_QUOTES:
            raise InvalidRequest(
                f"The JSON holds more than {MAX_CONTAINERS} brackets and {MAX_QUOTES} quotes.",
                code="json_too_large",
            )
        _check_shape(text)
    try:
        value = orjson.loads(text)
    except (orjson.JSONDecodeError, UnicodeEncodeError) as error:
        raise _explain(text, error) from None
    if num_brackets > MAX_DEPTH:
        _check_depth(value)
    return value


def decode_object(data: str | bytes) -> dict[str, Any]:
    """`decode`, and refuse anything but an object."""
    value = decode(data)
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"The message must be a JSON object, got {kind_of(value)}.", code="invalid_json"
        )
    return value


def string_in(text: str, name: str) -> str | None:
    """A field of an object that `decode` may have refused for what another field holds.

    Returns:
        The field, if the text is short, can be read that far and it is a sound string;
        else None.
    """
    if len(text) > MAX_EXPLAINED_CHARS:
        return None
    try:
        _check_shape(text)
        value = json.loads(text)
    except (InvalidRequest, ValueError):
        return None
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) and not _has_surrogate(found) else None


def kind_of(value: object) -> str:
    """JSON's name for a decoded value's type, for error texts."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


def _as_text(data: str | bytes) -> str:
    if isinstance(data, str):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"The message must be UTF-8; byte {error.start} is not.", code="invalid_json"
        ) from None


def _check_depth(value: Any) -> None:
    """Refuse a decoded value of too many levels."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for container in level
            for item in (container.values() if type(container) is dict else container)
            if type(item) is dict or type(item) is list
        ]
        if not level:
            return
    raise _too_deep()


def _check_shape(text: str) -> None:
    """Refuse a text of too many levels or containers, without decoding it."""
    containers = text.count("[") + text.count("{")
    if containers <= MAX_DEPTH:
        return
    depth = 0
    containers = 0
    for bracket in _BRACKETS.finditer(_STRINGS.sub("", text)):
        if bracket[0] in "]}":
            depth -= 1
            continue
        depth += 1
        containers += 1
        if depth > MAX_DEPTH:
            raise _too_deep()
        if containers > MAX_CONTAINERS:
            raise _too_large()


def _too_deep() -> InvalidRequest:
    return InvalidRequest(
        f"The JSON is nested more than {MAX_DEPTH} levels deep.", code="json_too_deep"
    )


def _too_large() -> InvalidRequest:
    return InvalidRequest(
        f"The JSON holds more than {MAX_CONTAINERS} arrays and objects.", code="json_too_large"
    )


def _explain(text: str, error: Exception) -> InvalidRequest:
    """The best error for a text that orjson refused."""
    if str(error).startswith("depth limit"):
        return _too_deep()
    wrong = InvalidRequest(f"The message is not valid JSON: {error}.", code="invalid_json")
    if len(text) > MAX_EXPLAINED_CHARS:
        return wrong
    try:
        _check_shape(text)
        value = json.loads(text)
    except InvalidRequest as refusal:
        return refusal
    except ValueError:
        return wrong
    param, reason = _find_fault(value, "") or ("", f"is not valid JSON: {error}")
    return InvalidRequest(
        f"{param or 'The message'} {reason}.", code="invalid_value", param=param or None
    )


def _find_fault(value: Any, path: str) -> tuple[str, str] | None:
    """Path and reason of the first value that standard JSON in UTF-8 cannot hold."""
    if isinstance(value, str):
        return (path, "holds half a surrogate pair") if _has_surrogate(value) else None
    if isinstance(value, float):
        return None if math.isfinite(value) else (path, "must be a finite number")
    if isinstance(value, dict):
        for key, item in value.items():
            if _has_surrogate(key):
                return (path, "has a key that holds half a surrogate pair")
            fault = _find_fault(item, f"{path}.{key}" if path else key)
            if fault:
                return fault
    if isinstance(value, list):
        for index, item in enumerate(value):
            fault = _find_fault(item, f"{path}.{index}" if path else str(index))
            if fault:
                return fault
    return None


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)
