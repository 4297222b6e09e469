"""compressed-tensors: packed INT4 and INT8, plain INT8, FP8; several schemes in one file.

Packed (`pack-quantized`): weight_packed int32 [N, K * bits / 32], lowest bits first, each
value stored plus 2 ** (bits - 1); weight_scale [N, groups]; weight_zero_point packed in the
same way along N; weight_g_idx int32 [K], each input's group, with `actorder: group`. Else
(`int-quantized`, `float-quantized`, `naive-quantized`) weight [N, K] as it is. See
compressed-tensors, `compressors/pack_quantized/` and `quantization/quant_args.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from engine.loading.huggingface.formats.fp8 import block_size
from engine.loading.huggingface.formats.mixed import Mixed, Rule
from engine.loading.huggingface.formats.reading import (
    WORD_BITS,
    affine,
    input_order,
    pair_nibbles,
    read_as,
    read_scale,
    unpack,
)
from engine.loading.huggingface.formats.scaled_bytes import ScaledBytes
from engine.loading.huggingface.formats.settings import Settings, groups
from engine.loading.huggingface.tensors import TensorStore
from kernels.weights import Weight

if TYPE_CHECKING:
    from engine.loading.huggingface.formats import LinearFormat

_PLAIN = {"int-quantized": "int", "float-quantized": "float", "naive-quantized": None}


def compressed_tensors_format(settings: Settings) -> Mixed:
    """The schemes that config.json describes, each for the layers it targets.

    Raises:
        ValueError: naming a setting that isn't supported.
    """
    settings.choice("quantization_status", ("compressed",), "compressed")
    for name in ("kv_cache_scheme", "transform_config"):
        settings.unset(name)
    if settings.get("sparsity_config"):
        settings.part("sparsity_config").choice("format", ("dense",), "dense")
    ignored = _matcher(settings.names("ignore"))
    schemes = settings.part("config_groups")
    rules: list[Rule] = [(ignored, Mixed("dense", []))]
    names = []
    for key in schemes.keys():  # noqa: SIM118  (no mapping)
        scheme = schemes.part(key)
        one = _scheme(scheme, settings)
        names.append(one.name)
        rules.append((_matcher(scheme.names("targets")), one))
    if not names:
        raise settings.refusal("config_groups", {}, "at least one scheme")
    return Mixed("+".join(dict.fromkeys(names)), rules)


def _matcher(targets: Sequence[str]) -> Callable[[str], bool]:
    """Whether a layer is one of `targets`: its name, "re:" and a pattern, or any Linear."""
    try:
        patterns = [re.compile(each[3:]) for each in targets if each.startswith("re:")]
    except re.error as error:
        raise ValueError(f"quantization_config has a bad pattern among {targets!r:.80}") from error

    def matches(layer: str) -> bool:
        return (
            layer in targets or "Linear" in targets or any(each.match(layer) for each in patterns)
        )

    return matches


def _scheme(scheme: Settings, settings: Settings) -> LinearFormat:
    """One of `config_groups`."""
    layout = scheme.get("format", settings.get("format"))
    scheme.unset("output_activations")
    weights = scheme.part("weights")
    if weights.get("dynamic"):
        raise weights.refusal("dynamic", weights.get("dynamic"), "false")
    if layout == "pack-quantized":
        scheme.unset("input_activations")
        return _packed(weights)
    if layout in _PLAIN:
        return _plain(scheme, weights, _PLAIN[layout])
    supported = " or ".join(("pack-quantized", *_PLAIN))
    raise settings.refusal("format", layout, supported)


def _packed(weights: Settings) -> Packed:
    weights.choice("type", ("int",), "int")
    bits = weights.choice("num_bits", (4, 8))
    strategy = weights.choice("strategy", ("group", "channel"))
    size = weights.choice("group_size", (32, 64, 128)) if strategy == "group" else -1
    order = weights.get("actorder")
    if order not in (None, False, "weight", "static", "group", True):
        raise weights.refusal("actorder", order, "null, weight, static or group")
    return Packed(bits, size, weights.flag("symmetric", True), order in ("group", True))


def _plain(scheme: Settings, weights: Settings, wanted: str | None) -> ScaledBytes:
    weights.choice("num_bits", (8,), 8)
    kind = weights.choice("type", (wanted,) if wanted else ("int", "float"), "int")
    symmetric = weights.choice("symmetric", (True,) if kind == "float" else (True, False), True)
    strategy = weights.choice("strategy", ("tensor", "channel", "group", "block"), "tensor")
    block = {"tensor": (0, 0), "channel": (1, 0)}.get(strategy)
    if strategy == "group":
        block = (1, weights.choice("group_size", (32, 64, 128)))
    elif strategy == "block":
        block = block_size(weights, "block_structure")
    assert block is not None
    rounds, static = False, False
    if scheme.get("input_activations") is not None:
        rounds, static = True, _static_inputs(scheme.part("input_activations"), kind)
    name = "fp8" if kind == "float" else "w8a8" if rounds else "w8a16"
    return ScaledBytes(
        name, "fp8" if kind == "float" else "int8", block, rounds, "weight_scale",
        "input_scale" if static else "", symmetric,
    )  # fmt: skip


def _static_inputs(inputs: Settings, kind: str) -> bool:
    """Whether activations have a fixed scale in the file, which only FP8 may have."""
    inputs.choice("num_bits", (8,), 8)
    inputs.choice("type", (kind,), "int")
    inputs.choice("symmetric", (True,), True)
    dynamic = inputs.choice("dynamic", (True,) if kind == "int" else (True, False), False)
    strategies = ("token", "group") if dynamic else ("tensor",)
    inputs.choice("strategy", strategies, strategies[0])
    return not dynamic


@dataclass(frozen=True, slots=True)
class Packed:
    """Reads `pack-quantized` layers.

    Attributes:
        bits: 4 or 8.
        size: Columns that share a scale; -1 is a whole row.
        symmetric: Whether there are no zero points.
        ordered: Whether groups hold columns that g_idx names, not neighbours.
    """

    bits: int
    size: int
    symmetric: bool
    ordered: bool

    @property
    def name(self) -> str:
        return f"w{self.bits}a16" + ("" if self.size == -1 else f"-g{self.size}")

    def shapes(self, layer: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        word = WORD_BITS // self.bits
        if columns % word:
            raise ValueError(f"{layer} has {columns} inputs; its words need a multiple of {word}")
        count = groups(columns, self.size, layer)
        tensors: dict[str, tuple[int, ...]] = {
            f"{layer}.weight_packed": (rows, columns // word),
            f"{layer}.weight_scale": (rows, count),
            f"{layer}.weight_shape": (2,),
        }
        if not self.symmetric:
            tensors[f"{layer}.weight_zero_point"] = (-(-rows // word), count)
        if self.ordered:
            tensors[f"{layer}.weight_g_idx"] = (columns,)
        return tensors

    def read(self, store: TensorStore, layer: str) -> Weight:
        words = read_as(store, f"{layer}.weight_packed", torch.int32)
        scale = read_scale(store, f"{layer}.weight_scale")
        rows, columns = len(words), words.shape[1] * WORD_BITS // self.bits
        group = columns // scale.shape[1]
        zero: torch.Tensor | int = 2 ** (self.bits - 1)
        if not self.symmetric:
            name = f"{layer}.weight_zero_point"
            zero = unpack(read_as(store, name, torch.int32).T, self.bits).int()[:, :rows].T
        order = (
            input_order(store, f"{layer}.weight_g_idx", columns, group) if self.ordered else None
        )
        # Four bits of two inputs to a byte, lower input in the lower half: so `Weight` has it.
        data = words.contiguous().view(torch.uint8)
        if order is not None:
            q = unpack(words, self.bits)[:, order]
            data = pair_nibbles(q) if self.bits == 4 else q
        return affine(self.bits, data, scale, zero, group, order)
