"""How a directory stores its linear layers: one module a format.

A format knows which tensors make up a layer's matrix and turns them into a `Weight`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from engine.loading.huggingface.formats.dense import Dense
from engine.loading.huggingface.tensors import TensorStore
from kernels.weights import Weight


class LinearFormat(Protocol):
    """Reads matrices [rows, columns] by the name of their layer.

    Attributes:
        name: For people.
    """

    name: str

    def shapes(self, layer: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        """The tensors of the layer and their shapes."""
        ...

    def read(self, store: TensorStore, layer: str) -> Weight: ...


_FORMATS: dict[str, Callable[[Mapping[str, Any]], LinearFormat]] = {}


def format_of(config: Mapping[str, Any]) -> LinearFormat:
    """The format that config.json declares.

    Args:
        config: The whole of config.json.

    Raises:
        ValueError: for a method that isn't supported.
    """
    declared = config.get("quantization_config")
    if declared is None:
        return Dense()
    method = declared.get("quant_method") if isinstance(declared, dict) else declared
    if method not in _FORMATS:
        supported = ", ".join(_FORMATS) or "none yet"
        raise ValueError(
            f"quantization method {method!r:.40} is not supported; supported are {supported}"
        )
    return _FORMATS[method](declared)
