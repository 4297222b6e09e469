"""Causal attention over the paged cache on the CPU."""

from __future__ import annotations

import torch

from kernels import native
from kernels.checks import expect
from kernels.kv_cache import KV_DTYPES, AttentionBatch, LayerCache
from kernels.native.library import KV_KINDS
from kernels.paged_attention import reference

# Of src/attention.h: vectors of a head are read 16 floats at a time, and the query heads
# of one KV head go together.
_HEAD_DIM_STEP = 16
_MAX_GROUP = 256


def paged_attention(
    q: torch.Tensor, cache: LayerCache, batch: AttentionBatch, scale: float
) -> torch.Tensor:
    """See `kernels.paged_attention`."""
    _check(q, cache)
    num_blocks, num_kv_heads, block_size, head_dim = cache.k.shape
    num_tokens, num_q_heads, _ = q.shape
    library = native.library()
    if library is None:
        _check_ranges(num_tokens, num_blocks, block_size, batch)
        return reference.paged_attention(q, cache, batch, scale)
    out = torch.empty(num_tokens, num_q_heads * head_dim)
    failed = library.paged_attention(
        q.data_ptr(),
        num_tokens,
        num_q_heads,
        batch.query_starts.data_ptr(),
        batch.context_lens.data_ptr(),
        batch.block_tables.data_ptr(),
        batch.context_lens.size(0),
        batch.block_tables.size(1),
        cache.k.data_ptr(),
        cache.v.data_ptr(),
        None if cache.k_scale is None else cache.k_scale.data_ptr(),
        None if cache.v_scale is None else cache.v_scale.data_ptr(),
        num_blocks,
        num_kv_heads,
        block_size,
        head_dim,
        KV_KINDS[cache.k.dtype],
        scale,
        out.data_ptr(),
    )
    if failed:
        _check_ranges(num_tokens, num_blocks, block_size, batch)
    return out


def _check(q: torch.Tensor, cache: LayerCache) -> None:
    if cache.k.dtype not in KV_KINDS:
        expect("cache.k", cache.k, [None] * 4, KV_DTYPES)
    _, num_kv_heads, _, head_dim = cache.k.shape
    # This runs for each layer of each token: the cheap questions first.
    if (
        q.dtype is not torch.float32
        or q.dim() != 3
        or q.size(2) != head_dim
        or not q.is_contiguous()
    ):
        expect("q", q, [None, None, head_dim], [torch.float32])
    group, rest = divmod(q.size(1), num_kv_heads)
    if rest or not 1 <= group <= _MAX_GROUP:
        raise ValueError(
            f"q: expected 1 .. {_MAX_GROUP} heads for each of {num_kv_heads}, got {q.size(1)}"
        )
    if head_dim % _HEAD_DIM_STEP:
        raise ValueError(f"q: expected heads of a multiple of {_HEAD_DIM_STEP}, got {head_dim}")


def _check_ranges(num_tokens: int, num_blocks: int, block_size: int, batch: AttentionBatch) -> None:
    starts = batch.query_starts.tolist()
    if starts[0] != 0 or starts[-1] > num_tokens:
        raise ValueError(
            f"query_starts: expected 0 .. {num_tokens}, got {starts[0]} .. {starts[-1]}"
        )
    for index, context_len in enumerate(batch.context_lens.tolist()):
        num_queries = starts[index + 1] - starts[index]
        capacity = batch.block_tables.size(1) * block_size
        if num_queries < 0 or not num_queries <= context_len <= capacity:
            raise ValueError(
                f"context_lens[{index}]: expected {num_queries} query tokens .. {capacity} "
                f"table slots, got {context_len}"
            )
        blocks = batch.block_tables[index, : -(-context_len // block_size)]
        if num_queries and (int(blocks.min()) < 0 or int(blocks.max()) >= num_blocks):
            raise ValueError(
                f"block_tables[{index}]: expected 0 .. {num_blocks - 1}, got {blocks.tolist()}"
            )
