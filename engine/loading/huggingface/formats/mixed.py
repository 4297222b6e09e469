"""Layers of several formats in one directory, told apart by their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from engine.loading.huggingface.formats.dense import Dense
from engine.loading.huggingface.tensors import TensorStore
from kernels.weights import Weight

if TYPE_CHECKING:
    from engine.loading.huggingface.formats import LinearFormat

Rule = tuple[Callable[[str], bool], "LinearFormat"]


class Mixed:
    """A `LinearFormat` that asks the first of its rules that fits a layer.

    Args:
        name: For people.
        rules: Whether a layer is meant, and its format; a layer that fits none is dense.
    """

    def __init__(self, name: str, rules: Sequence[Rule]) -> None:
        self.name = name
        self._rules = tuple(rules)
        self._dense = Dense()

    def shapes(self, layer: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return self.of(layer).shapes(layer, rows, columns)

    def read(self, store: TensorStore, layer: str) -> Weight:
        return self.of(layer).read(store, layer)

    def of(self, layer: str) -> LinearFormat:
        """The format of one layer."""
        for fits, one in self._rules:
            if fits(layer):
                return one
        return self._dense
