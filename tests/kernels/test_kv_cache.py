"""What a layer's cache and a batch's shared prefixes must look like."""

from __future__ import annotations

import pytest
import torch

from kernels.kv_cache import (
    KV_DTYPES,
    AttentionBatch,
    LayerCache,
    SharedPrefix,
    is_quantized,
    kv_vector_bytes,
)

SHAPE = (5, 3, 16, 64)


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
def test_an_empty_cache_has_scales_where_values_are_8_bit(dtype: torch.dtype) -> None:
    cache = LayerCache.zeros(SHAPE, dtype, "cpu")
    assert cache.is_quantized == (dtype.itemsize == 1) == is_quantized(dtype)
    assert cache.block_size == 16
    assert len(cache.tensors()) == (4 if cache.is_quantized else 2)
    num_bytes = sum(tensor.nbytes for tensor in cache.tensors())
    assert num_bytes == 2 * 5 * 3 * 16 * kv_vector_bytes(64, dtype)


def test_scales_that_are_missing_superfluous_or_of_another_shape_are_refused() -> None:
    values = torch.zeros(SHAPE, dtype=torch.int8)
    scale = torch.ones(SHAPE[:3])
    with pytest.raises(ValueError, match=r"cache\.k_scale: expected float32 scales beside"):
        LayerCache(values, values)
    with pytest.raises(ValueError, match=r"cache\.v_scale: expected float32 scales beside"):
        LayerCache(values, values, scale)
    with pytest.raises(ValueError, match=r"cache\.k_scale: expected None beside torch.float32"):
        LayerCache(values.float(), values.float(), scale, scale)
    with pytest.raises(ValueError, match=r"cache\.v_scale: expected float32 \[5, 3, 16\], got"):
        LayerCache(values, values, scale, scale[:, :, :8].contiguous())
    with pytest.raises(ValueError, match=r"cache\.v: expected int8"):
        LayerCache(values, values.float(), scale, scale)


def test_shared_prefixes_are_of_the_batch() -> None:
    def ints(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int32)

    with pytest.raises(ValueError, match="tile_rows: expected int32"):
        SharedPrefix(ints(2, 4), ints(3), ints(6))
    shared = SharedPrefix(ints(3, 4), ints(3), ints(6))
    with pytest.raises(ValueError, match="row_lens: expected int32"):
        AttentionBatch(ints(6), ints(5), ints(5, 2), 1, 32, shared)
