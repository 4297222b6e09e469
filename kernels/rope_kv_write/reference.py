"""Rotary embedding and the write to the paged cache, in plain fp32 PyTorch."""

from __future__ import annotations

import torch

from kernels.kv_cache import LARGEST, LayerCache
from kernels.rms_norm.reference import rms_norm


def rotate(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rotate x [T, heads, D] by table [T, D]: D / 2 cosines, then D / 2 sines.

    Element i pairs with i + D / 2, the layout of Hugging Face checkpoints.
    """
    cos, sin = table.float().unsqueeze(1).chunk(2, dim=-1)
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def quantize(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """8-bit values of x [..., D] and their scales, float32 [...]: x is about values * scale."""
    largest = x.abs().amax(-1)
    inverse = torch.where(largest > 0, LARGEST[dtype] / largest, 0.0)
    scaled = x * inverse.unsqueeze(-1)
    values = scaled.round() if dtype is torch.int8 else scaled
    return values.to(dtype), largest / LARGEST[dtype]


def rope_kv_write(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    rope: torch.Tensor,
    cache: LayerCache,
    slots: torch.Tensor,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """Rotate q and k, write k and v to their slots, return q float32 [T, q heads, D]."""
    _, num_kv_heads, block_size, head_dim = cache.k.shape
    heads = qkv.float().unflatten(1, (-1, head_dim))
    num_q_heads = heads.shape[1] - 2 * num_kv_heads
    q, k, v = heads.split((num_q_heads, num_kv_heads, num_kv_heads), dim=1)
    table = rope[positions.long()]
    q = rotate(rms_norm(q, q_norm, eps), table)
    k = rotate(rms_norm(k, k_norm, eps), table)
    kept = slots >= 0
    block, offset = slots[kept].long() // block_size, slots[kept].long() % block_size
    if cache.k_scale is not None and cache.v_scale is not None:
        cache.k[block, :, offset], cache.k_scale[block, :, offset] = quantize(
            k[kept], cache.k.dtype
        )
        cache.v[block, :, offset], cache.v_scale[block, :, offset] = quantize(
            v[kept], cache.v.dtype
        )
    else:
        cache.k[block, :, offset] = k[kept].to(cache.k.dtype)
        cache.v[block, :, offset] = v[kept].to(cache.v.dtype)
    return q
