"""What the texts of options mean: each reader raises ValueError saying what was expected."""

from __future__ import annotations

import math
from collections.abc import Callable

from engine.contract.tier_values import parse_tier_values, tier_values_text


def integer(low: int, high: int) -> Callable[[str], int]:
    """Whole numbers."""

    def parse(text: str) -> int:
        expected = f"a whole number from {low} to {high}"
        if not text.isascii() or not text.isdigit():
            raise ValueError(expected)
        if not low <= int(text[:20]) <= high or len(text) > 20:
            raise ValueError(expected)
        return int(text)

    return parse


def seconds(high: float) -> Callable[[str], float]:
    """Seconds, 0 included."""

    def parse(text: str) -> float:
        expected = f"seconds from 0 to {high:g}"
        try:
            value = float(text)
        except ValueError:
            raise ValueError(expected) from None
        if not math.isfinite(value) or not 0 <= value <= high:
            raise ValueError(expected)
        return value

    return parse


def tiers(default: str, low: float, high: float) -> Callable[[str], str]:
    """A number for each tier; see `parse_tier_values`."""

    def parse(text: str) -> str:
        return tier_values_text(parse_tier_values(text, default, low=low, high=high))

    return parse


def ageing(text: str) -> float:
    """Seconds above 0."""
    value = seconds(86_400)(text)
    if not value:
        raise ValueError("seconds above 0, at most 86400")
    return value


def choice(*values: str) -> Callable[[str], str]:
    """One of some words."""

    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(f"one of {', '.join(values)}")
        return text

    return parse


def key_kind(text: str) -> str:
    """A kind of signing key, or nothing."""
    return choice("eddsa", "hs256")(text) if text else ""


def text(text: str) -> str:
    """Anything."""
    return text


def filled(text: str) -> str:
    """Anything but blanks."""
    if not text.strip():
        raise ValueError("a text that is not empty")
    return text


def redis_url(text: str) -> str:
    """A Redis URL, or nothing."""
    if text and not text.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("a URL that begins with redis://, rediss:// or unix://")
    return text


def http_url(text: str) -> str:
    """An HTTP URL, or nothing."""
    if text and not text.startswith(("http://", "https://")):
        raise ValueError("a URL that begins with http:// or https://")
    return text


def origins(text: str) -> tuple[str, ...]:
    """Web origins, joined by commas."""
    origins = tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())
    for origin in origins:
        if not origin.startswith(("http://", "https://")):
            raise ValueError("origins such as https://chat.example.org, joined by commas")
    return origins
