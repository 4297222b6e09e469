"""Writes tiny quantised directories from the formats' definitions, a value at a time.

Nothing here is shared with the loader: words are put together bit by bit in numpy.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from tests.engine.loading.tiny_directory import change_json, tiny_model, write_directory

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
Tensors = dict[str, torch.Tensor]


@dataclass
class Packed:
    """One layer in a format: its tensors by the end of their names, and its exact values."""

    tensors: Tensors
    values: torch.Tensor


Packer = Callable[[int, int], Packed]


def bits_to_words(rows: np.ndarray, bits: int, places: Any = None) -> np.ndarray:
    """[..., count] small numbers to int32 words along the last axis."""
    per = 32 // bits
    places = places or range(per)
    words = np.zeros((*rows.shape[:-1], -(-rows.shape[-1] // per)), np.uint64)
    for index in range(rows.shape[-1]):
        word, inner = divmod(index, per)
        place = list(places).index(inner)
        words[..., word] |= rows[..., index].astype(np.uint64) << np.uint64(bits * place)
    return words.astype(np.uint32).view(np.int32)


def spread(values: np.ndarray, group: int) -> np.ndarray:
    """[rows, groups] to [rows, columns]."""
    return np.repeat(values, group, axis=1)


def draw(
    rows: int, columns: int, bits: int, group: int, symmetric: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """q [rows, columns], zero and float16 scale [rows, groups], and the group's size."""
    random = np.random.default_rng(rows * 7919 + columns)
    group = columns if group == -1 else group
    q = random.integers(0, 2**bits, (rows, columns))
    zero = random.integers(0, 2**bits, (rows, columns // group))
    zero.flat[:2] = 0, 2**bits - 1
    if symmetric:
        zero[:] = 2 ** (bits - 1)
    scale = (random.uniform(0.5, 1.5, zero.shape) * 0.4 / 2**bits).astype(np.float16)
    return q, zero, scale, group


def values_of(q: np.ndarray, zero: np.ndarray, scale: np.ndarray, group: int) -> torch.Tensor:
    exact = (q - spread(zero, group)) * spread(scale.astype(np.float64), group)
    return torch.from_numpy(exact.astype(np.float32))


def tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def awq(group: int) -> Packer:
    def pack(rows: int, columns: int) -> Packed:
        q, zero, scale, size = draw(rows, columns, 4, group, False)
        tensors = {
            "qweight": tensor(bits_to_words(q.T, 4, AWQ_ORDER)),
            "qzeros": tensor(bits_to_words(zero.T, 4, AWQ_ORDER)),
            "scales": tensor(scale.T),
        }
        return Packed(tensors, values_of(q, zero, scale, size))

    return pack


def gptq(
    group: int, bits: int, *, symmetric: bool, act_order: bool, version: int, seed: int = 1
) -> Packer:
    def pack(rows: int, columns: int) -> Packed:
        q, zero, scale, size = draw(rows, columns, bits, group, symmetric)
        members = np.arange(columns) // size
        if act_order:
            members = np.random.default_rng(seed).permutation(members)
        stored = zero if version == 2 else (zero - 1) % 2**bits
        tensors = {
            "qweight": tensor(bits_to_words(q, bits).T),
            "qzeros": tensor(bits_to_words(stored.T, bits)),
            "scales": tensor(scale.T),
            "g_idx": tensor(members.astype(np.int32)),
        }
        exact = (q - zero[:, members]) * scale.astype(np.float64)[:, members]
        return Packed(tensors, tensor(exact.astype(np.float32)))

    return pack


def ct_packed(
    group: int, bits: int, *, symmetric: bool, dtype: torch.dtype = torch.float16,
    act_order: bool = False,
) -> Packer:  # fmt: skip
    def pack(rows: int, columns: int) -> Packed:
        q, zero, scale, size = draw(rows, columns, bits, group, symmetric)
        scale = torch.from_numpy(scale).to(dtype)
        members = np.arange(columns) // size
        tensors = {
            "weight_packed": tensor(bits_to_words(q, bits)),
            "weight_scale": scale,
            "weight_shape": torch.tensor([rows, columns]),
        }
        if act_order:
            members = np.random.default_rng(3).permutation(members)
            tensors["weight_g_idx"] = tensor(members.astype(np.int32))
        if not symmetric:
            tensors["weight_zero_point"] = tensor(bits_to_words(zero.T, bits).T)
        wide = scale.double().numpy()
        exact = (q - zero[:, members]) * wide[:, members]
        return Packed(tensors, tensor(exact.astype(np.float32)))

    return pack


def int8(strategy: str, *, symmetric: bool = True, group: int = 32) -> Packer:
    def pack(rows: int, columns: int) -> Packed:
        random = np.random.default_rng(rows + columns)
        q = random.integers(-128, 128, (rows, columns)).astype(np.int8)
        shape = {"tensor": (1,), "channel": (rows, 1), "group": (rows, columns // group)}[strategy]
        # Of few bits, as in files: a zero point times a scale of 24 would round.
        scale = random.uniform(0.001, 0.002, shape).astype(np.float16).astype(np.float32)
        tensors = {"weight": tensor(q), "weight_scale": tensor(scale)}
        zero = np.zeros(shape)
        if not symmetric:
            zero = random.integers(-128, 128, shape).astype(np.int8)
            tensors["weight_zero_point"] = tensor(zero)
        width = columns // (scale.shape[-1] if strategy != "tensor" else 1)
        grid = [np.repeat(each.reshape(-1, scale.shape[-1]), width, axis=1)
                for each in (zero.astype(np.float64), scale.astype(np.float64))]  # fmt: skip
        return Packed(tensors, tensor(((q - grid[0]) * grid[1]).astype(np.float32)))

    return pack


def fp8(
    block: tuple[int, int] | None, scale_name: str = "weight_scale", *, channel: bool = False,
    input_scale: str = "", scalar: bool = False,
) -> Packer:  # fmt: skip
    """One scale a matrix, a row or a block of rows and columns."""

    def pack(rows: int, columns: int) -> Packed:
        generator = torch.Generator().manual_seed(rows + columns)
        q = torch.randn(rows, columns, generator=generator).to(torch.float8_e4m3fn)
        high, wide = block or ((1, columns) if channel else (rows, columns))
        shape = (-(-rows // high), columns // wide)
        scale = torch.rand(shape, generator=generator) * 0.1 + 0.05
        values = torch.empty(rows, columns)
        for row in range(rows):
            for column in range(columns):
                values[row, column] = q[row, column].float() * scale[row // high, column // wide]
        stored = scale if block or channel else scale.reshape(() if scalar else (1,))
        tensors = {"weight": q, scale_name: stored}
        if input_scale:
            tensors[input_scale] = torch.tensor([0.7])
        return Packed(tensors, values)

    return pack


def linear_layers(num_layers: int) -> list[str]:
    inner = [f"self_attn.{name}_proj" for name in "qkvo"]
    inner += [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    return [f"model.layers.{index}.{name}" for index in range(num_layers) for name in inner]


def quantized_directory(
    directory: Path, packers: Callable[[str], Packer | None], config: dict[str, Any],
    **changes: Any,
) -> PreTrainedModel:  # fmt: skip
    """Write a tiny Llama whose layers `packers` names are packed; those of None stay as is.

    Returns:
        The same model with the packed layers' exact values.
    """
    changes = {"num_hidden_layers": 2, "intermediate_size": 128, **changes}
    model = tiny_model("llama", **changes)
    write_directory(directory, model)
    tensors = dict(model.state_dict())
    for layer in [*linear_layers(changes["num_hidden_layers"]), "lm_head"]:
        packer = packers(layer)
        if packer is None:
            continue
        weight = model.get_submodule(layer).weight
        packed = packer(*weight.shape)
        with torch.no_grad():
            weight.copy_(packed.values)
        del tensors[f"{layer}.weight"]
        tensors |= {f"{layer}.{name}": value for name, value in packed.tensors.items()}
    copies = {name: value.clone().contiguous() for name, value in tensors.items()}
    save_file(copies, directory / "model.safetensors")
    change_json(directory / "config.json", quantization_config=config)
    return model


def change_quantization(directory: Path, **changes: Any) -> None:
    """Set fields of quantization_config; None removes one."""
    path = directory / "config.json"
    config = json.loads(path.read_text())["quantization_config"] | changes
    config = {key: value for key, value in config.items() if value is not None}
    change_json(path, quantization_config=config)
