"""Rotation, KV write and attention of a decode step on CUDA, one launch."""

from __future__ import annotations

import torch
import triton

from kernels.checks import expect
from kernels.cuda.launch import overlap_options, tuned
from kernels.cuda.scratch import float_scratch, tickets
from kernels.kv_cache import AttentionBatch, LayerCache
from kernels.paged_attention.triton import LOG2_E, num_splits
from kernels.rope_attention.decode_kernel import rope_decode_kernel

# With more rows a program's own chain of waits, longer by the rotation, comes several times
# one after the other, and costs more than a launch.
MAX_ROWS = 4


def fits(
    qkv: torch.Tensor, cache: LayerCache, batch: AttentionBatch, q_norm: torch.Tensor | None
) -> bool:
    """Whether the fused kernel computes this: few plain decode rows over unquantised KV."""
    _, num_kv, _, head_dim = cache.k.shape
    heads = f"{num_kv}x{qkv.shape[1] // head_dim // num_kv - 2}x{head_dim}"
    return (
        batch.max_query_len == 1
        and qkv.shape[0] <= tuned("rope_attention_rows", heads).get("most", MAX_ROWS)
        and len(batch.context_lens) == qkv.shape[0]
        and batch.shared is None
        and not cache.is_quantized
        and q_norm is None
    )


def rope_attention(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    rope: torch.Tensor,
    cache: LayerCache,
    slots: torch.Tensor,
    batch: AttentionBatch,
    scale: float,
) -> torch.Tensor:
    """See `kernels.rope_attention`; only where `fits` says so."""
    _, num_kv, block_size, head_dim = cache.k.shape
    num_sequences = qkv.shape[0]
    expect("qkv", qkv, [None, None], [torch.bfloat16, torch.float32], contiguous=False)
    expect("rope", rope, [None, head_dim], [torch.float32])
    expect("positions", positions, [num_sequences], [torch.int32, torch.int64])
    expect("slots", slots, [num_sequences], [torch.int32, torch.int64])
    group, rest = divmod(qkv.shape[1] // head_dim - 2 * num_kv, num_kv)
    if rest or group < 1 or qkv.shape[1] % head_dim:
        raise ValueError(f"qkv: expected heads of {num_kv} groups, got {qkv.shape[1]} columns")
    num_q = group * num_kv
    out = torch.empty(num_sequences, num_q * head_dim, dtype=qkv.dtype, device=qkv.device)
    key = f"{num_kv}x{group}x{head_dim},{num_sequences}"
    settings = tuned("rope_attention", key) or tuned("paged_attention_decode", key)
    splits = settings.get("splits") or num_splits(num_sequences, num_kv, batch.max_context_len)
    num_parts = num_sequences * num_q * splits
    options = overlap_options()
    if "registers" in settings:
        options["maxnreg"] = settings["registers"]
    parts = float_scratch(qkv.device, num_parts * (head_dim + 2))
    rope_decode_kernel[(num_sequences, num_kv, splits)](
        qkv, rope, positions, cache.k, cache.v, slots, batch.block_tables, batch.context_lens,
        parts, parts[num_parts * head_dim :], tickets(qkv.device, num_sequences * num_kv), out,
        qkv.stride(0), batch.block_tables.stride(0), scale * LOG2_E, num_kv, group,
        max(16, triton.next_power_of_2(group)), block_size, head_dim,
        triton.next_power_of_2(head_dim), settings.get("tile", 64), splits,
        settings.get("early", num_sequences == 1), num_warps=settings.get("warps", 4),
        num_stages=settings.get("stages", 3), **options,
    )  # fmt: skip
    return out
