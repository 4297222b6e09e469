"""Typed access to the fields of a decoded JSON object; each refusal names the field."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from app.protocol.json_codec import kind_of
from engine.contract import InvalidRequest

T = TypeVar("T")


def join(path: str, name: str | int) -> str:
    """`messages.2` and `content` as `messages.2.content`."""
    return f"{path}.{name}" if path else str(name)


def wrong_type(param: str, wanted: str, value: object) -> InvalidRequest:
    """The error for a value of the wrong JSON type."""
    return InvalidRequest(
        f"{param} must be {wanted}, got {kind_of(value)}.", code="invalid_type", param=param
    )


def missing(param: str) -> InvalidRequest:
    """The error for a required field that is absent or null."""
    return InvalidRequest(f"{param} is required.", code="missing_required_parameter", param=param)


class Fields:
    """One JSON object under validation.

    Args:
        source: The decoded object.
        path: Where it sits in the message, dotted; empty at the top.
    """

    def __init__(self, source: Mapping[str, Any], path: str = "") -> None:
        self.source = source
        self.path = path

    @classmethod
    def of(cls, value: object, path: str) -> Fields:
        """`value` as an object at `path`.

        Raises:
            InvalidRequest: if it is anything else.
        """
        if not isinstance(value, dict):
            raise wrong_type(path, "an object", value)
        return cls(value, path)

    def param(self, name: str) -> str:
        """Full path of a field."""
        return join(self.path, name)

    def get(self, name: str) -> Any:
        """The raw value; None if absent."""
        return self.source.get(name)

    def only(self, known: Collection[str]) -> None:
        """Refuse any field outside `known`."""
        for name in self.source:
            if name not in known:
                param = self.param(name[:64])
                raise InvalidRequest(
                    f"Unknown parameter: {param}.", code="unknown_parameter", param=param
                )

    def string(self, name: str, max_chars: int | None = None) -> str | None:
        """A string, or None if absent or null."""
        value = self._typed(name, str, "a string")
        if value is not None and max_chars is not None and len(value) > max_chars:
            raise InvalidRequest(
                f"{self.param(name)} must be at most {max_chars} characters, got {len(value)}.",
                param=self.param(name),
            )
        return value

    def required_string(self, name: str, max_chars: int | None = None) -> str:
        """A string that must be there."""
        value = self.string(name, max_chars)
        if value is None:
            raise missing(self.param(name))
        return value

    def boolean(self, name: str) -> bool:
        """true or false; absent and null are false."""
        return self._typed(name, bool, "a boolean") or False

    def array(self, name: str) -> list[Any] | None:
        """A list, or None if absent or null."""
        return self._typed(name, list, "an array")

    def object(self, name: str) -> Fields | None:
        """A nested object, or None if absent or null."""
        value = self._typed(name, dict, "an object")
        return None if value is None else Fields(value, self.param(name))

    def integer(self, name: str, low: int, high: int) -> int | None:
        """An integer in [low, high], or None if absent or null."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(self.param(name), "an integer", value)
        if not low <= value <= high:
            raise InvalidRequest(
                f"{self.param(name)} must be from {low} to {high}, got {value}.",
                param=self.param(name),
            )
        return value

    def choice(self, name: str, allowed: Collection[str]) -> str | None:
        """One of a few strings, or None if absent or null."""
        value = self.string(name)
        if value is not None and value not in allowed:
            raise InvalidRequest(
                f"{self.param(name)} must be one of {', '.join(sorted(allowed))}, "
                f"got {value[:40]!r}.",
                param=self.param(name),
            )
        return value

    def _typed(self, name: str, kind: type[T], wanted: str) -> T | None:
        value = self.source.get(name)
        if value is None or isinstance(value, kind):
            return value
        raise wrong_type(self.param(name), wanted, value)
