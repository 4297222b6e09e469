"""KV blocks as bytes: what is read is what is written back, of every dtype."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.kv_blocks import (
    block_shape,
    copy_kv_blocks,
    kv_bytes_per_token,
    make_caches,
    read_kv_blocks,
    write_kv_blocks,
)
from engine.kv_codec import KvCodec
from kernels.kv_cache import KV_DTYPES, LayerCache

MODEL = SimpleNamespace(num_layers=2, num_kv_heads=3, head_dim=8)
CONFIG = EngineConfig(num_blocks=6, block_size=4)


def filled(dtype: torch.dtype, seed: int) -> list[LayerCache]:
    """Caches of random bits, NaN and infinity among them."""
    caches = make_caches(MODEL, CONFIG, dtype, "cpu")
    generator = torch.Generator().manual_seed(seed)
    for cache in caches:
        for tensor in cache.tensors():
            bits = tensor.view(torch.uint8)
            bits.copy_(torch.randint(0, 256, bits.shape, dtype=torch.uint8, generator=generator))
    return caches


def bytes_of(caches: list[LayerCache], block: int) -> list[bytes]:
    return [
        tensor[block].view(torch.uint8).numpy().tobytes()
        for cache in caches
        for tensor in cache.tensors()
    ]


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
def test_blocks_go_out_packed_and_come_back_bit_by_bit(dtype: torch.dtype) -> None:
    source, target = filled(dtype, 1), filled(dtype, 2)
    shape, itemsize = block_shape(MODEL, CONFIG.block_size, dtype)
    contents = read_kv_blocks(source, [4, 0, 5])
    assert contents.shape == (3, *shape) and contents.itemsize == itemsize
    assert contents[0].nbytes == kv_bytes_per_token(MODEL, dtype) * CONFIG.block_size
    codec = KvCodec(shape, itemsize)
    assert codec.block_bytes == contents[0].nbytes
    back = [codec.unpack(codec.pack(bits)) for bits in contents]
    kept = bytes_of(target, 2)
    write_kv_blocks(target, [1, 3, 0], back)
    for old, new in ((4, 1), (0, 3), (5, 0)):
        assert bytes_of(source, old) == bytes_of(target, new)
    assert bytes_of(target, 2) == kept


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
def test_copies_take_scales_along(dtype: torch.dtype) -> None:
    caches = filled(dtype, 3)
    wanted = bytes_of(caches, 1), bytes_of(caches, 2)
    copy_kv_blocks(caches, [(1, 5), (2, 0)])
    assert (bytes_of(caches, 5), bytes_of(caches, 0)) == wanted


def test_scales_follow_their_vector() -> None:
    caches = make_caches(MODEL, CONFIG, torch.int8, "cpu")
    assert caches[1].v_scale is not None
    caches[1].v[2, 1, 3] = torch.arange(8)
    caches[1].v_scale[2, 1, 3] = 0.25
    vector = read_kv_blocks(caches, [2])[0, 1, 1, 1, 3]
    assert vector[:8].tolist() == list(range(8))
    assert vector[8:].view(np.float32).tolist() == [0.25]
