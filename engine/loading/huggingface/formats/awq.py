"""AWQ's GEMM layout: INT4 with zero points, eight outputs to a word.

qweight int32 [K, N / 8], qzeros int32 [K / group, N / 8], scales float16 [K / group, N];
nibble i of a word belongs to output 0, 2, 4, 6, 1, 3, 5, 7 of its eight, and
value = (q - zero) * scale (AutoAWQ, `awq/utils/packing_utils.py`).
"""

from __future__ import annotations

import torch

from engine.loading.huggingface.formats.mixed import Mixed
from engine.loading.huggingface.formats.reading import affine, read_as, read_scale
from engine.loading.huggingface.formats.settings import Settings, group_size, groups, within
from engine.loading.huggingface.tensors import TensorStore
from kernels.weights import Weight

# Where in a word the nibble of each of its eight outputs is.
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
_WORD = len(_PLACES)
# Brings a nibble of the upper of two words to the upper half of the lower one's byte.
_UPPER = 32 - 4


def awq_format(settings: Settings) -> Mixed:
    """AWQ as config.json describes it.

    Raises:
        ValueError: naming a setting that isn't supported.
    """
    settings.choice("bits", (4,), 4)
    version = settings.get("version", settings.get("format", "gemm"))
    if str(version).lower() != "gemm":
        raise settings.refusal("version", version, "gemm")
    settings.choice("zero_point", (True,), True)
    size = group_size(settings)
    excluded = ("lm_head", *settings.names("modules_to_not_convert"))
    name = "awq" if size == -1 else f"awq-g{size}"
    return Mixed(
        name, [(lambda layer: not any(within(each, layer) for each in excluded), Awq(size))]
    )


class Awq:
    """Reads layers in AWQ's GEMM layout.

    Args:
        size: Columns that share a scale; -1 is a whole row.
    """

    name = "awq"

    def __init__(self, size: int) -> None:
        self._size = size

    def shapes(self, layer: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        if rows % _WORD:
            raise ValueError(f"{layer} has {rows} outputs; AWQ needs a multiple of {_WORD}")
        count = groups(columns, self._size, layer)
        return {
            f"{layer}.qweight": (columns, rows // _WORD),
            f"{layer}.qzeros": (count, rows // _WORD),
            f"{layer}.scales": (count, rows),
        }

    def read(self, store: TensorStore, layer: str) -> Weight:
        words = read_as(store, f"{layer}.qweight", torch.int32)
        scale = read_scale(store, f"{layer}.scales")
        zeros = read_as(store, f"{layer}.qzeros", torch.int32)
        zero = torch.stack([(zeros >> (4 * place)) & 15 for place in _PLACES], dim=-1).flatten(1)
        return affine(4, _paired(words), scale.T, zero.T, len(words) // len(scale))


def _paired(words: torch.Tensor) -> torch.Tensor:
    """int32 [K, N / 8] to uint8 [N, K / 2]: the nibbles of two columns to a byte."""
    # The words of two columns in one of twice the width, so that each step makes a byte.
    both = words.T.contiguous().view(torch.int64)
    out = torch.empty(both.shape[0], _WORD, both.shape[1], dtype=torch.uint8)
    for row, place in enumerate(_PLACES):
        low, high = both >> (4 * place), both >> (_UPPER + 4 * place)
        out[:, row] = (low & 15) | (high & 0xF0)
    return out.flatten(0, 1)
