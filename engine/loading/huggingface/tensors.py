"""The tensors of a directory's safetensors files, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.loading.errors import ModelFileError
from engine.loading.huggingface.json_file import read_object

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


class TensorStore:
    """Maps names to files and reads tensors when asked.

    Args:
        directory: Holds `model.safetensors`, or shards and their index.

    Raises:
        ModelFileError: when a file is missing or damaged.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: dict[str, Any] = {}
        self._files: dict[str, str] = {}
        for name in self._file_names():
            for tensor in self._file(name).keys():  # noqa: SIM118  (no mapping)
                if tensor in self._files:
                    raise ModelFileError(directory / name, f"tensor {tensor!r:.80} occurs twice")
                self._files[tensor] = name

    def names(self) -> list[str]:
        return list(self._files)

    def has(self, name: str) -> bool:
        return name in self._files

    def path(self, name: str) -> Path:
        """The file that holds tensor `name`."""
        return self._directory / self._files.get(name, "")

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def dtype_name(self, name: str) -> str:
        """As safetensors spells it: `BF16`, `F32`, `I32`."""
        return str(self._slice(name).get_dtype())

    def read(self, name: str) -> torch.Tensor:
        """The tensor; it may be a view of the mapped file."""
        file = self._holder(name)
        try:
            return file.get_tensor(name)
        except SafetensorError as error:
            raise ModelFileError(self.path(name), f"tensor {name!r:.80}: {error}") from error

    def release(self) -> None:
        """Close the files; they are opened again when needed."""
        self._open.clear()

    def _slice(self, name: str) -> Any:
        return self._holder(name).get_slice(name)

    def _holder(self, name: str) -> Any:
        if name not in self._files:
            raise ModelFileError(self._directory, f"tensor {name!r:.80} is missing")
        return self._file(self._files[name])

    def _file(self, name: str) -> Any:
        if name not in self._open:
            path = self._directory / name
            try:
                self._open[name] = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise ModelFileError(path, f"cannot be read ({error})") from error
        return self._open[name]

    def _file_names(self) -> list[str]:
        if (self._directory / _INDEX).exists():
            index = self._directory / _INDEX
            weight_map = read_object(index).get("weight_map")
            if not isinstance(weight_map, dict):
                raise ModelFileError(index, "has no weight_map")
            names = {str(name) for name in weight_map.values()}
            for name in names:
                if Path(name).name != name:
                    raise ModelFileError(index, f"names a file outside the directory: {name!r:.80}")
            return sorted(names)
        if (self._directory / _SINGLE).exists():
            return [_SINGLE]
        raise ModelFileError(self._directory, f"has neither {_SINGLE} nor {_INDEX}")
