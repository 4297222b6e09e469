"""Every block type against the format's independent reader, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from engine.loading.gguf.blocks import read_weight
from engine.loading.gguf.reader import TENSOR_TYPES, BlockType
from kernels.weights import Weight

ROWS, BLOCKS = 10, 10


def random_blocks(block: BlockType, seed: int = 0) -> np.ndarray:
    """100 blocks of random bits, uint8 [ROWS, bytes]."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (ROWS, BLOCKS * block.size_bytes), dtype=np.uint8)


def weight_of(raw: np.ndarray, block: BlockType) -> Weight:
    return read_weight(raw.reshape(-1), block, raw.shape[0], BLOCKS * block.elements)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("code", TENSOR_TYPES, ids=lambda code: TENSOR_TYPES[code].name)
def test_random_blocks_dequantise_to_the_same_bits(code: int) -> None:
    block = TENSOR_TYPES[code]
    raw = random_blocks(block)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(code)).astype(np.float32)
    values = weight_of(raw, block).dequantize().numpy()
    assert values.shape == expected.shape == (ROWS, BLOCKS * block.elements)
    if block.name == "Q4_0":
        # Stored as q and a minimum, where d * 0 with a negative d is +0 and not -0.
        values, expected = values + 0.0, expected + 0.0
    number = ~np.isnan(expected)
    assert number.any()
    assert np.array_equal(np.isnan(values), ~number)
    assert np.array_equal(values.view(np.uint32)[number], expected.view(np.uint32)[number])


@pytest.mark.parametrize(
    ("name", "kind", "group", "has_minimum", "scale"),
    [
        ("Q4_0", "int4", 32, True, torch.float16),
        ("Q4_1", "int4", 32, True, torch.float16),
        ("Q5_0", "int8", 32, False, torch.float16),
        ("Q5_1", "int8", 32, True, torch.float16),
        ("Q8_0", "int8", 32, False, torch.float16),
        ("Q4_K", "int4", 32, True, torch.float32),
        ("Q5_K", "int8", 32, True, torch.float32),
        ("Q6_K", "int8", 16, False, torch.float32),
    ],
)
def test_quants_stay_integers(
    name: str, kind: str, group: int, has_minimum: bool, scale: torch.dtype
) -> None:
    block = next(block for block in TENSOR_TYPES.values() if block.name == name)
    raw = random_blocks(block)
    # Scales of 1: random bits make scales that Q4_0 keeps in float32.
    raw.reshape(ROWS, BLOCKS, -1)[:, :, :2] = (0, 60)
    weight = weight_of(raw, block)
    weight.validate()
    assert weight.scale is not None
    assert (weight.kind, weight.group, weight.scale.dtype) == (kind, group, scale)
    assert (weight.minimum is not None) == has_minimum


def test_a_q4_0_scale_near_the_end_of_float16_stays_exact() -> None:
    block = TENSOR_TYPES[2]
    raw = random_blocks(block)
    raw.reshape(ROWS, BLOCKS, -1)[:, :, :2] = np.frombuffer(np.float16(60000).tobytes(), np.uint8)
    weight = weight_of(raw, block)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.Q4_0)
    assert np.array_equal(weight.dequantize().numpy(), expected)


def test_dense_weights_own_their_memory() -> None:
    raw = np.zeros((1, 40), np.uint8)
    weight = weight_of(raw, TENSOR_TYPES[0])
    raw[:] = 255
    assert not weight.data.any()
