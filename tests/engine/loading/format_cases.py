"""The quantised directories that are tested: one small case of each format and setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.engine.loading import quantized_directory as tiny
from tests.engine.loading.quantized_directory import quantized_directory

INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
CHANNEL8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
TOKEN8 = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}
FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}


def ct(layout: str, weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> Any:
    """A compressed-tensors configuration of one scheme."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors", "format": layout, "ignore": ["lm_head"],
        "quantization_status": "compressed", "config_groups": {"group_0": group},
    }  # fmt: skip


def gptq_config(bits: int, group: int, **values: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, **values}


AWQ = {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True}
# name: (packer, quantization_config, name for people, kind, group, rounds_x)
CASES: dict[str, tuple[tiny.Packer, Any, str, str, int, bool]] = {
    "awq g32": (tiny.awq(32), AWQ | {"group_size": 32}, "awq-g32", "int4", 32, False),
    "awq g64": (tiny.awq(64), AWQ | {"group_size": 64}, "awq-g64", "int4", 64, False),
    "awq row": (tiny.awq(-1), AWQ | {"group_size": -1}, "awq", "int4", 0, False),
    "ct int4": (
        tiny.ct_packed(32, 4, symmetric=True),
        ct("pack-quantized", INT4), "w4a16-g32", "int4", 32, False,
    ),
    "ct int4 zero points": (
        tiny.ct_packed(64, 4, symmetric=False),
        ct("pack-quantized", INT4 | {"group_size": 64, "symmetric": False}),
        "w4a16-g64", "int4", 64, False,
    ),
    "ct int4 act order": (
        tiny.ct_packed(32, 4, symmetric=False, act_order=True),
        ct("pack-quantized", INT4 | {"symmetric": False, "actorder": "group"}),
        "w4a16-g32", "int4", 32, False,
    ),
    "ct int4 rows bf16": (
        tiny.ct_packed(-1, 4, symmetric=False, dtype=torch.bfloat16),
        ct("pack-quantized", INT4 | {"strategy": "channel", "symmetric": False}),
        "w4a16", "int4", 0, False,
    ),
    "ct packed int8": (
        tiny.ct_packed(-1, 8, symmetric=True),
        ct("pack-quantized", CHANNEL8), "w8a16", "int8", 0, False,
    ),
    "ct w8a16": (
        tiny.int8("channel"), ct("int-quantized", CHANNEL8), "w8a16", "int8", 0, False,
    ),
    "ct w8a8": (
        tiny.int8("channel"), ct("int-quantized", CHANNEL8, TOKEN8), "w8a8", "int8", 0, True,
    ),
    "ct int8 zero points": (
        tiny.int8("group", symmetric=False),
        ct("int-quantized", CHANNEL8 | {
            "strategy": "group", "group_size": 32, "symmetric": False}),
        "w8a16", "int8", 32, False,
    ),
    "ct int8 one scale": (
        tiny.int8("tensor"), ct("naive-quantized", CHANNEL8 | {"strategy": "tensor"}), "w8a16",
        "int8", 0, False,
    ),
    "ct fp8 rows": (
        tiny.fp8(None, channel=True),
        ct("float-quantized", FLOAT8, TOKEN8 | {"type": "float"}), "fp8", "fp8", 0, True,
    ),
    "ct fp8 weights only": (
        tiny.fp8(None, channel=True), ct("float-quantized", FLOAT8), "fp8", "fp8", 0, False,
    ),
    "ct fp8 one scale": (
        tiny.fp8(None, input_scale="input_scale"),
        ct("float-quantized", FLOAT8 | {"strategy": "tensor"},
           {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}),
        "fp8", "fp8", 0, True,
    ),
    "ct fp8 blocks": (
        tiny.fp8((32, 32)),
        ct("float-quantized", FLOAT8 | {"strategy": "block", "block_structure": [32, 32]},
           TOKEN8 | {"type": "float", "strategy": "group"}),
        "fp8", "fp8", 32, True,
    ),
    "fp8 blocks": (
        tiny.fp8((48, 64), "weight_scale_inv"),
        {"quant_method": "fp8", "weight_block_size": [48, 64], "activation_scheme": "dynamic",
         "fmt": "e4m3"},
        "fp8-48x64", "fp8", 64, True,
    ),
    "fp8 one scale": (
        tiny.fp8(None, input_scale="input_scale", scalar=True),
        {"quant_method": "fp8", "activation_scheme": "static"}, "fp8", "fp8", 0, True,
    ),
    "fp8 no blocks": (
        tiny.fp8(None, "weight_scale_inv"),
        {"quant_method": "fp8", "weight_block_size": None}, "fp8", "fp8", 0, True,
    ),
}  # fmt: skip
for _bits in (4, 8):
    for _symmetric in (False, True):
        for _act_order in (False, True):
            for _version in (1, 2):
                _packer = tiny.gptq(
                    32, _bits, symmetric=_symmetric, act_order=_act_order, version=_version
                )
                CASES[f"gptq {_bits} sym={_symmetric} act={_act_order} v{_version}"] = (
                    _packer,
                    gptq_config(
                        _bits, 32, sym=_symmetric, desc_act=_act_order,
                        checkpoint_format="gptq" if _version == 1 else "gptq_v2",
                    ),
                    f"gptq-int{_bits}-g32", f"int{_bits}", 32, False,
                )  # fmt: skip


def write(directory: Path, case: str, **changes: Any) -> Any:
    packer, config = CASES[case][:2]
    return quantized_directory(
        directory, lambda layer: None if layer == "lm_head" else packer, config, **changes
    )
