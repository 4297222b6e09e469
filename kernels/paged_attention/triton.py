"""Paged attention on CUDA: split-KV for decode, tiles of queries for prefill pieces."""

from __future__ import annotations

import torch
import triton

from kernels.checks import expect
from kernels.cuda.launch import (
    OVERLAP_ROWS,
    capability,
    num_multiprocessors,
    overlap_options,
    overlapped_launches,
    tuned,
)
from kernels.cuda.scratch import FLOATS, float_scratch, tickets
from kernels.kv_cache import KV_DTYPES, AttentionBatch, LayerCache, SharedPrefix
from kernels.paged_attention.decode_kernel import decode_kernel
from kernels.paged_attention.prefill_kernel import prefill_kernel
from kernels.paged_attention.prefix_kernel import prefix_kernel
from kernels.paged_attention.verify_kernel import verify_kernel

LOG2_E = 1.4426950408889634
MAX_SPLITS = 32
# Numbers of sequences that decode are told apart as far as this: each has a kernel to be
# compiled.
ROW_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
# Query rows, tokens by heads of a KV head, that a program of `verify_kernel` takes at most.
_VERIFY_ROWS = 128


def paged_attention(
    q: torch.Tensor, cache: LayerCache, batch: AttentionBatch, scale: float
) -> torch.Tensor:
    """See `kernels.paged_attention`; bf16, or float32 in the interpreter."""
    _, num_kv, _, head_dim = cache.k.shape
    num_sequences = len(batch.context_lens)
    expect("q", q, [None, None, head_dim], [torch.bfloat16, torch.float32])
    expect("cache.k", cache.k, [None] * 4, KV_DTYPES)
    expect("query_starts", batch.query_starts, [num_sequences + 1], [torch.int32])
    expect("context_lens", batch.context_lens, [num_sequences], [torch.int32])
    expect(
        "block_tables", batch.block_tables, [num_sequences, None], [torch.int32], contiguous=False
    )
    if q.shape[1] % num_kv:
        raise ValueError(f"q: expected a multiple of {num_kv} heads, got {q.shape[1]}")
    out = torch.empty(q.shape[0], q.shape[1] * head_dim, dtype=q.dtype, device=q.device)
    if batch.apart is None:
        _attend(q, cache, batch, scale, out)
        return out
    singles, pieces = batch.apart
    first = len(singles.context_lens)
    out[:first] = attend_singles(q[:first], cache, singles, scale)
    _attend(q[first:], cache, pieces, scale, out[first:])
    return out


def attend_singles(
    q: torch.Tensor, cache: LayerCache, singles: AttentionBatch, scale: float
) -> torch.Tensor:
    """`paged_attention` of sequences of one token each, of which a batch with pieces begins.

    Launched as in a graph of decodes, so that it is the same kernel.
    """
    out = torch.empty(q.shape[0], q.shape[1] * q.shape[2], dtype=q.dtype, device=q.device)
    with overlapped_launches(len(q) < OVERLAP_ROWS):
        _attend(q, cache, singles, scale, out)
    return out


def _attend(
    q: torch.Tensor, cache: LayerCache, batch: AttentionBatch, scale: float, out: torch.Tensor
) -> None:
    """The kernel for this kind of batch, into `out`."""
    if batch.max_query_len == 1 and len(batch.context_lens) == q.shape[0]:
        _decode(q, cache, batch, scale, out)
    elif _is_verify(q, cache, batch):
        _verify(q, cache, batch, scale, out)
    else:
        _prefill(q, cache, batch, scale, out)


def num_splits(num_sequences: int, num_kv_heads: int, max_context_len: int) -> int:
    """Programs that share one sequence and KV head: enough to fill the GPU, no more."""
    wanted = -(-3 * num_multiprocessors() // (num_sequences * num_kv_heads))
    # Below 32 tokens a program, adding up costs more than sharing saves.
    return max(1, min(wanted, -(-max_context_len // 32), MAX_SPLITS))


def _decode(
    q: torch.Tensor, cache: LayerCache, batch: AttentionBatch, scale: float, out: torch.Tensor
) -> None:
    _, num_kv, block_size, head_dim = cache.k.shape
    num_sequences, num_q = q.shape[0], q.shape[1]
    group = num_q // num_kv
    rows = next((count for count in ROW_COUNTS if count >= num_sequences), num_sequences)
    key = f"{num_kv}x{group}x{head_dim},{rows}"
    settings = tuned("paged_attention_decode", key)
    splits = settings.get("splits") or num_splits(rows, num_kv, batch.max_context_len)
    prefix_splits = 0
    if batch.shared is not None:
        prefix_splits = _prefix_splits(batch.shared, num_kv, key)
    # The states of splits and prefixes: weighted values, then largest scores and sums.
    num_parts = num_sequences * num_q * splits
    num_prefix_parts = num_sequences * num_q * prefix_splits
    parts = float_scratch(q.device, (num_parts + num_prefix_parts) * (head_dim + 2))
    prefix_parts = parts[num_parts * head_dim :]
    stats = prefix_parts[num_prefix_parts * head_dim :]
    prefix_stats = stats[num_parts * 2 :]
    if batch.shared is not None:
        _prefix(
            q, cache, batch, scale, batch.shared, prefix_splits, prefix_parts, prefix_stats, key
        )
    decode_kernel[(num_sequences, num_kv, splits)](
        q, cache.k, cache.v, cache.k_scale, cache.v_scale, batch.block_tables,
        batch.context_lens, None if batch.shared is None else batch.shared.row_lens,
        prefix_parts, prefix_stats, parts, stats, tickets(q.device, num_sequences * num_kv), out,
        batch.block_tables.stride(0), scale * LOG2_E, num_kv, group,
        max(16, triton.next_power_of_2(group)), block_size, head_dim,
        triton.next_power_of_2(head_dim), settings.get("tile", 64), splits, prefix_splits,
        cache.is_quantized, num_warps=settings.get("warps", 4),
        num_stages=settings.get("stages", 2), **overlap_options(),
    )  # fmt: skip


def _prefix_splits(shared: SharedPrefix, num_kv_heads: int, key: str) -> int:
    """Programs that share one tile and KV head of a prefix."""
    full_tiles = -(-len(shared.row_lens) // shared.tile_rows.shape[1])
    # More would spend on parts written and read again what they save.
    wanted = num_multiprocessors() // (full_tiles * num_kv_heads)
    return tuned("paged_attention_prefix", key).get("splits") or max(1, min(wanted, 16))


def _prefix(
    q: torch.Tensor, cache: LayerCache, batch: AttentionBatch, scale: float, shared: SharedPrefix,
    splits: int, parts: torch.Tensor, stats: torch.Tensor, key: str,
) -> None:  # fmt: skip
    """The softmax states of all rows over their shared prefixes, to `parts` and `stats`."""
    _, num_kv, block_size, head_dim = cache.k.shape
    group = q.shape[1] // num_kv
    settings = tuned("paged_attention_prefix", key)
    num_tiles, sequences = shared.tile_rows.shape
    prefix_kernel[(num_tiles, num_kv, splits)](
        q, cache.k, cache.v, cache.k_scale, cache.v_scale, batch.block_tables, shared.tile_rows,
        shared.tile_lens, parts, stats, batch.block_tables.stride(0), scale * LOG2_E, num_kv,
        group, triton.next_power_of_2(group), sequences, block_size, head_dim,
        triton.next_power_of_2(head_dim), settings.get("tile", _prefix_tile(head_dim)), splits,
        cache.is_quantized, num_warps=settings.get("warps", 4),
        num_stages=settings.get("stages", 2), **overlap_options(),
    )  # fmt: skip


def _prefix_tile(head_dim: int) -> int:
    """Tokens of a tile: twice as many where shared memory holds two stages of them."""
    return 128 if head_dim <= 128 and capability() >= (9, 0) else 64


def _is_verify(q: torch.Tensor, cache: LayerCache, batch: AttentionBatch) -> bool:
    """A few queries a sequence, and so few sequences that their KV is better shared out."""
    _, num_kv, _, head_dim = cache.k.shape
    group, num_sequences = q.shape[1] // num_kv, len(batch.context_lens)
    rows = _verify_queries(batch, group) * triton.next_power_of_2(group)
    splits = num_splits(num_sequences, num_kv, batch.max_context_len)
    floats = num_sequences * num_kv * splits * rows * (head_dim + 2)
    return splits > 1 and rows <= _VERIFY_ROWS and floats <= FLOATS


def _verify_queries(batch: AttentionBatch, group: int) -> int:
    """Queries of a sequence as the kernel pads them."""
    least = 16 // triton.next_power_of_2(group)
    return max(1, least, triton.next_power_of_2(batch.max_query_len))


def _verify(
    q: torch.Tensor, cache: LayerCache, batch: AttentionBatch, scale: float, out: torch.Tensor
) -> None:
    _, num_kv, block_size, head_dim = cache.k.shape
    num_sequences, group = len(batch.context_lens), q.shape[1] // num_kv
    queries = _verify_queries(batch, group)
    splits = num_splits(num_sequences, num_kv, batch.max_context_len)
    num_parts = num_sequences * num_kv * splits * queries * group
    parts = float_scratch(q.device, num_parts * (head_dim + 2))
    verify_kernel[(num_sequences, num_kv, splits)](
        q, cache.k, cache.v, cache.k_scale, cache.v_scale, batch.block_tables,
        batch.query_starts, batch.context_lens, parts, parts[num_parts * head_dim :],
        tickets(q.device, num_sequences * num_kv), out, batch.block_tables.stride(0),
        scale * LOG2_E, num_kv, group, triton.next_power_of_2(group), queries, block_size,
        head_dim, triton.next_power_of_2(head_dim), 64, splits, cache.is_quantized,
        num_warps=4, num_stages=2, **overlap_options(),
    )  # fmt: skip


def _prefill(
    q: torch.Tensor, cache: LayerCache, batch: AttentionBatch, scale: float, out: torch.Tensor
) -> None:
    _, num_kv, block_size, head_dim = cache.k.shape
    num_q = q.shape[1]
    group = num_q // num_kv
    settings = tuned("paged_attention_prefill", str(head_dim))
    rows = settings.get("rows", 128 if batch.max_query_len * group >= 128 else 64)
    tokens = max(1, rows // triton.next_power_of_2(group))
    grid = (triton.cdiv(batch.max_query_len, tokens), num_kv, len(batch.context_lens))
    prefill_kernel[grid](
        q, cache.k, cache.v, cache.k_scale, cache.v_scale, batch.block_tables,
        batch.query_starts, batch.context_lens, out, batch.block_tables.stride(0),
        scale * LOG2_E, num_kv, group, triton.next_power_of_2(group), tokens, block_size, head_dim,
        triton.next_power_of_2(head_dim), settings.get("tile", 64), cache.is_quantized,
        num_warps=settings.get("warps", 8 if rows >= 128 else 4),
        num_stages=settings.get("stages", 2), **overlap_options(),
    )  # fmt: skip
