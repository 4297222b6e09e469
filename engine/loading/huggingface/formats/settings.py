"""config.json's `quantization_config`, read so that every refusal names field and value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Settings:
    """An object of config.json.

    Args:
        values: What the file has there.
        path: Where that is, for messages.

    Raises:
        ValueError: It is no object.
    """

    def __init__(self, values: Any, path: str = "quantization_config") -> None:
        if not isinstance(values, Mapping):
            raise ValueError(f"{path} is {values!r:.40}; it must be an object")
        self._values = values
        self._path = path

    def get(self, name: str, default: Any = None) -> Any:
        """A field; the default also where it is null."""
        value = self._values.get(name)
        return default if value is None else value

    def choice(self, name: str, supported: Sequence[Any], default: Any = None) -> Any:
        """A field that must be one of `supported` (True is not 1)."""
        value = self.get(name, default)
        if not any(value == each and type(value) is type(each) for each in supported):
            raise self.refusal(name, value, " or ".join(str(each) for each in supported))
        return value

    def flag(self, name: str, default: bool) -> bool:
        return bool(self.choice(name, (True, False), default))

    def unset(self, name: str) -> None:
        """Refuse a field that is set: null, false, 0, "" and empty mean it is not."""
        if self.get(name):
            raise self.refusal(name, self.get(name), "none")

    def names(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty where it is missing."""
        value = self.get(name, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.refusal(name, value, "a list of names")
        return tuple(value)

    def part(self, name: str) -> Settings:
        """The object in a field."""
        return Settings(self.get(name), f"{self._path}.{name}")

    def has(self, name: str) -> bool:
        """Whether the field is there, be it null."""
        return name in self._values

    def keys(self) -> tuple[str, ...]:
        return tuple(self._values)

    def refusal(self, name: str, value: Any, supported: str) -> ValueError:
        return ValueError(
            f"{self._path}.{name} is {value!r:.60}, which is not supported; supported is "
            f"{supported}"
        )


def group_size(settings: Settings, supported: Sequence[int] = (32, 64, 128, -1)) -> int:
    """Columns that share a scale; -1 is a whole row."""
    size = settings.choice("group_size", supported)
    assert isinstance(size, int)
    return size


def groups(columns: int, size: int, layer: str) -> int:
    """How many groups a row of `columns` has.

    Raises:
        ValueError: The groups don't fill the row.
    """
    if size == -1:
        return 1
    if columns % size:
        raise ValueError(
            f"quantization group_size {size} does not divide the {columns} columns of {layer}"
        )
    return columns // size


def within(module: str, layer: str) -> bool:
    """Whether `layer` is the module, a part of it, or one that ends in its name."""
    return f".{module.strip('.')}." in f".{layer}."
