"""GPTQ: 4 or 8 bits, eight or four inputs to a word, with or without act order.

qweight int32 [K * bits / 32, N], lowest bits first; qzeros int32 [groups, N * bits / 32];
scales [groups, N]; g_idx int32 [K], each input's group; value = (q - zero) * scale. Files of
version 1 hold zero - 1, of which 0 wraps around (AutoGPTQ, `qlinear_cuda_old.py`; GPTQModel,
`utils/model.py: convert_gptq_v1_to_v2_format`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

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
from engine.loading.huggingface.formats.settings import Settings, group_size, groups, within
from engine.loading.huggingface.tensors import TensorStore
from kernels.weights import Weight

_VERSIONS = {"gptq": 1, "gptq_v2": 2}


def gptq_format(settings: Settings) -> Mixed:
    """GPTQ as config.json describes it, with what `dynamic` changes by layer.

    Raises:
        ValueError: naming a setting that isn't supported.
    """
    layout = settings.get("checkpoint_format", settings.get("format", "gptq"))
    if layout not in _VERSIONS:
        raise settings.refusal("checkpoint_format", layout, " or ".join(_VERSIONS))
    settings.unset("is_marlin_format")
    settings.choice("pack_dtype", ("int32",), "int32")
    base = _gptq(settings, _VERSIONS[layout])
    rules = [*_changes(settings, _VERSIONS[layout]), (_meant(settings), base)]
    return Mixed(base.name, rules)


def _gptq(settings: Settings, version: int) -> Gptq:
    # Both change how the file was made, not how it is read: g_idx says all.
    settings.flag("desc_act", False)
    settings.flag("sym", True)
    return Gptq(settings.choice("bits", (4, 8)), group_size(settings), version)


def _meant(settings: Settings) -> Any:
    """Whether a layer is quantised: all within blocks, or those that are listed."""
    head = settings.flag("lm_head", False)
    excluded = settings.names("modules_to_not_convert")
    listed = settings.get("modules_in_block_to_quantize", [])
    if not isinstance(listed, list):
        raise settings.refusal("modules_in_block_to_quantize", listed, "lists of names")
    inner = [each for part in listed for each in (part if isinstance(part, list) else [part])]

    def meant(layer: str) -> bool:
        if layer == "lm_head":
            return head
        if any(within(each, layer) for each in excluded):
            return False
        return not inner or any(within(str(each), layer) for each in inner)

    return meant


def _changes(settings: Settings, version: int) -> list[Rule]:
    """The layers that `dynamic` excludes ("-:pattern") or gives other settings."""
    dynamic = settings.get("dynamic")
    if not dynamic:
        return []
    part = settings.part("dynamic")
    rules: list[Rule] = []
    for key in part.keys():  # noqa: SIM118  (no mapping)
        try:
            pattern = re.compile(key[2:] if key[:2] in ("+:", "-:") else key)
        except re.error as error:
            raise ValueError(f"quantization_config.dynamic has the pattern {key!r:.60}") from error
        if key.startswith("-:"):
            rules.append((lambda layer, p=pattern: bool(p.match(layer)), Mixed("dense", [])))
            continue
        values = {name: settings.get(name) for name in ("bits", "group_size", "sym", "desc_act")}
        changed = Settings({**values, **_object(part, key)}, f"quantization_config.dynamic.{key}")
        one = _gptq(changed, version)
        rules.append((lambda layer, p=pattern: bool(p.match(layer)), one))
    return rules


def _object(settings: Settings, name: str) -> dict[str, Any]:
    value = settings.get(name, {})
    if not isinstance(value, dict):
        raise settings.refusal(name, value, "an object")
    return value


@dataclass(frozen=True, slots=True)
class Gptq:
    """Reads layers in GPTQ's layout.

    Attributes:
        bits: 4 or 8.
        size: Inputs that share a scale; -1 is all.
        version: 1 or 2, of the zero points.
    """

    bits: int
    size: int
    version: int

    @property
    def name(self) -> str:
        group = "" if self.size == -1 else f"-g{self.size}"
        return f"gptq-int{self.bits}{group}"

    def shapes(self, layer: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        word = WORD_BITS // self.bits
        for axis, count in (("outputs", rows), ("inputs", columns)):
            if count % word:
                raise ValueError(f"{layer} has {count} {axis}; GPTQ needs a multiple of {word}")
        count = groups(columns, self.size, layer)
        return {
            f"{layer}.qweight": (columns // word, rows),
            f"{layer}.qzeros": (count, rows // word),
            f"{layer}.scales": (count, rows),
            f"{layer}.g_idx": (columns,),
        }

    def read(self, store: TensorStore, layer: str) -> Weight:
        words = read_as(store, f"{layer}.qweight", torch.int32)
        scale = read_scale(store, f"{layer}.scales")
        zero = unpack(read_as(store, f"{layer}.qzeros", torch.int32), self.bits).int()
        if self.version == 1:
            zero = (zero + 1) & (2**self.bits - 1)
        columns = len(words) * WORD_BITS // self.bits
        group = columns // len(scale)
        order = input_order(store, f"{layer}.g_idx", columns, group)
        # Four bits of two inputs to a byte, lower input in the lower half: so `Weight` has it.
        data = words.T.contiguous().view(torch.uint8)
        if order is not None:
            q = (unpack(words.T, self.bits))[:, order]
            data = pair_nibbles(q) if self.bits == 4 else q
        return affine(self.bits, data, scale.T, zero.T, group, order)
