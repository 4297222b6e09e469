"""Random weights, caches and batches, and how close two results must be."""

from __future__ import annotations

import torch

from kernels.kv_cache import AttentionBatch, LayerCache, is_quantized
from kernels.rope_kv_write.reference import quantize
from kernels.weights import Weight


def make_weight(
    kind: str,
    rows: int,
    columns: int,
    *,
    group: int = 32,
    minimum: bool = False,
    scale_dtype: torch.dtype = torch.float16,
    seed: int = 0,
) -> Weight:
    """A matrix with values of about columns ** -0.5. Kinds: int4, int8, fp8, a dense dtype."""
    generator = torch.Generator().manual_seed(seed)
    if kind not in ("int4", "int8", "fp8"):
        values = torch.randn(rows, columns, generator=generator) * columns**-0.5
        return Weight("dense", values.to(getattr(torch, kind)))
    groups = (rows, columns // group)
    scale = 0.5 + torch.rand(groups, generator=generator)
    spread = {"int4": 4.6, "int8": 74.0, "fp8": 1.0}[kind]
    scale = (scale * columns**-0.5 / spread).to(scale_dtype)
    low = None
    if minimum:
        low = (torch.randn(groups, generator=generator) * columns**-0.5).to(scale_dtype)
    if kind == "int4":
        data = torch.randint(0, 256, (rows, columns // 2), generator=generator)
        return Weight("int4", data.to(torch.uint8), scale, low, group)
    if kind == "int8":
        data = torch.randint(-128, 128, (rows, columns), generator=generator)
        return Weight("int8", data.to(torch.int8), scale, low, group)
    data = torch.randn(rows, columns, generator=generator)
    return Weight("fp8", data.to(torch.float8_e4m3fn), scale, low, group)


def random(*shape: int, seed: int = 1) -> torch.Tensor:
    """Normal deviates, one outlier a row as real activations have."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    x[..., 0] *= 8
    return x


def make_batch(
    query_lens: list[int],
    context_lens: list[int],
    *,
    block_size: int = 16,
    num_kv_heads: int = 3,
    head_dim: int = 64,
    dtype: torch.dtype = torch.float32,
    seed: int = 2,
) -> tuple[LayerCache, AttentionBatch]:
    """A cache with NaN wherever no context lies, and blocks in shuffled order."""
    generator = torch.Generator().manual_seed(seed)
    num_blocks = sum(-(-length // block_size) for length in context_lens) + 3
    order = torch.randperm(num_blocks, generator=generator).tolist()
    shape = (num_blocks, num_kv_heads, block_size, head_dim)
    cache = LayerCache(torch.full(shape, torch.nan), torch.full(shape, torch.nan))
    width = max(-(-length // block_size) for length in context_lens) + 2
    tables = torch.full((len(context_lens), width), 2**30, dtype=torch.int32)
    for row, length in enumerate(context_lens):
        for index in range(-(-length // block_size)):
            block = order.pop()
            tables[row, index] = block
            filled = min(block_size, length - index * block_size)
            vectors = torch.randn(2, num_kv_heads, filled, head_dim, generator=generator)
            cache.k[block, :, :filled], cache.v[block, :, :filled] = vectors
    starts = torch.tensor([0, *query_lens]).cumsum(0).int()
    lens = torch.tensor(context_lens, dtype=torch.int32)
    batch = AttentionBatch(starts, lens, tables, max(query_lens), max(context_lens))
    return cache_as(cache, dtype), batch


def cache_as(cache: LayerCache, dtype: torch.dtype) -> LayerCache:
    """A float32 cache in another dtype; where no context lies, 8-bit values have NaN scales."""
    if not is_quantized(dtype):
        return LayerCache(cache.k.to(dtype), cache.v.to(dtype))
    (k, k_scale), (v, v_scale) = quantize(cache.k, dtype), quantize(cache.v, dtype)
    return LayerCache(k, v, k_scale, v_scale)


def assert_close(got: torch.Tensor, wanted: torch.Tensor, rms_ratio: float) -> None:
    """The RMS of the difference is at most `rms_ratio` of the RMS of `wanted`."""
    assert got.shape == wanted.shape
    difference = (got.double() - wanted.double()).square().mean().sqrt()
    size = wanted.double().square().mean().sqrt()
    largest = (got.double() - wanted.double()).abs().max()
    message = f"RMS ratio {difference / size:.3g}, largest difference {largest:.3g}"
    assert difference <= rms_ratio * size, message
