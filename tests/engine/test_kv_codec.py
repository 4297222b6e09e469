"""Packed KV: every bit comes back, and real KV gets smaller."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from engine.kv_codec import KvCodec

SHAPE = (2, 2, 3, 4, 8)


@settings(max_examples=200, deadline=None)
@given(bits=arrays.arrays(np.uint16, SHAPE))
def test_any_bfloat16_bits_come_back(bits: np.ndarray) -> None:
    codec = KvCodec(SHAPE, 2)
    assert np.array_equal(codec.unpack(codec.pack(bits)), bits)


@settings(max_examples=50, deadline=None)
@given(bits=arrays.arrays(np.uint32, SHAPE, elements=st.integers(0, 2**32 - 1)))
def test_any_float32_bits_come_back(bits: np.ndarray) -> None:
    codec = KvCodec(SHAPE, 4)
    assert np.array_equal(codec.unpack(codec.pack(bits)), bits)


@settings(max_examples=50, deadline=None)
@given(bits=arrays.arrays(np.uint8, SHAPE))
def test_any_8_bit_vectors_come_back(bits: np.ndarray) -> None:
    codec = KvCodec(SHAPE, 1)
    assert np.array_equal(codec.unpack(codec.pack(bits)), bits)


def test_ten_thousand_random_blocks_come_back() -> None:
    rng = np.random.default_rng(5)
    for itemsize in (1, 2):
        codec = KvCodec(SHAPE, itemsize)
        for _ in range(5_000):
            bits = rng.integers(0, 256**itemsize, SHAPE, dtype=f"u{itemsize}")
            assert np.array_equal(codec.unpack(codec.pack(bits)), bits)


def test_channels_of_like_magnitude_get_smaller() -> None:
    rng = np.random.default_rng(1)
    shape = (30, 2, 3, 16, 64)
    scales = rng.lognormal(0, 2, (30, 2, 3, 1, 64))
    values = (rng.standard_normal(shape) * scales).astype(np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    codec = KvCodec(shape, 2)
    packed = codec.pack(bits)
    assert np.array_equal(codec.unpack(packed), bits)
    assert codec.block_bytes / len(packed) > 1.4


def test_a_changed_byte_is_noticed_where_it_would_shift_values() -> None:
    codec = KvCodec(SHAPE, 2)
    packed = bytearray(codec.pack(np.arange(np.prod(SHAPE), dtype=np.uint16).reshape(SHAPE)))
    packed[-6] ^= 1
    with pytest.raises(zstandard.ZstdError):
        codec.unpack(bytes(packed))


def test_other_value_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="itemsize must be 1, 2 or 4, got 8"):
        KvCodec(SHAPE, 8)
