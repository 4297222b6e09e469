"""How a directory stores its linear layers: one module a format, and `mixed` for several.

A format knows which tensors make up a layer's matrix and turns them into a `Weight`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from engine.loading.huggingface.formats.awq import awq_format
from engine.loading.huggingface.formats.compressed_tensors import compressed_tensors_format
from engine.loading.huggingface.formats.dense import Dense
from engine.loading.huggingface.formats.fp8 import fp8_format
from engine.loading.huggingface.formats.gptq import gptq_format
from engine.loading.huggingface.formats.settings import Settings
from engine.loading.huggingface.tensors import TensorStore
from kernels.weights import Weight


class LinearFormat(Protocol):
    """Reads matrices [rows, columns] by the name of their layer.

    Attributes:
        name: For people.
    """

    name: str

    def shapes(self, layer: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        """The tensors of the layer and their shapes; a single value is of shape (1,) or ()."""
        ...

    def read(self, store: TensorStore, layer: str) -> Weight: ...


_FORMATS: dict[str, Callable[[Settings], LinearFormat]] = {
    "awq": awq_format,
    "gptq": gptq_format,
    "compressed-tensors": compressed_tensors_format,
    "fp8": fp8_format,
}


def format_of(config: Mapping[str, Any]) -> LinearFormat:
    """The format that config.json declares.

    Args:
        config: The whole of config.json.

    Raises:
        ValueError: for a method or setting that isn't supported.
    """
    declared = config.get("quantization_config", config.get("compression_config"))
    if declared is None:
        return Dense()
    settings = Settings(declared)
    method = settings.choice("quant_method", tuple(_FORMATS))
    return _FORMATS[method](settings)
