"""Typed access to the fields of a query string; each refusal names the field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.contract import InvalidRequest

_MAX_DIGITS = 15


def only(params: Mapping[str, str], known: Sequence[str]) -> None:
    """Refuse any field outside `known`."""
    for name in params:
        if name not in known:
            raise InvalidRequest(
                f"Unknown parameter: {name[:64]}.", code="unknown_parameter", param=name[:64]
            )


def read_whole(params: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    """A whole number in [low, high], or None if absent."""
    text = params.get(name)
    if text is None:
        return None
    is_whole = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    if not (is_whole and low <= int(text) <= high):
        raise InvalidRequest(
            f"{name} must be a whole number from {low} to {high}, got {text[:40]!r}.", param=name
        )
    return int(text)


def read_choice(params: Mapping[str, str], name: str, allowed: Sequence[str], default: str) -> str:
    """One of a few words."""
    text = params.get(name, default)
    if text not in allowed:
        raise InvalidRequest(
            f"{name} must be one of {', '.join(allowed)}, got {text[:40]!r}.", param=name
        )
    return text


def read_flag(params: Mapping[str, str], name: str) -> bool:
    """true or false; absent is false."""
    return read_choice(params, name, ("true", "false"), "false") == "true"
