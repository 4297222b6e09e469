"""The KV pool's memory: its size a token, its tensors, and whole blocks in and out of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.config import EngineConfig
from engine.model.config import ModelConfig
from kernels.kv_cache import LayerCache, is_quantized, kv_vector_bytes

# As the command line names them; "auto" is the choice of what builds the engine.
KV_DTYPES = {"bf16": torch.bfloat16, "int8": torch.int8, "fp8": torch.float8_e4m3fn}

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def kv_bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """Memory that one token's KV takes over all layers, scales included."""
    return 2 * config.num_layers * config.num_kv_heads * kv_vector_bytes(config.head_dim, dtype)


def make_caches(
    model: ModelConfig, config: EngineConfig, dtype: torch.dtype, device: torch.device | str
) -> list[LayerCache]:
    """The empty KV pool, one cache a layer."""
    shape = (config.num_blocks, model.num_kv_heads, config.block_size, model.head_dim)
    return [LayerCache.zeros(shape, dtype, device) for _ in range(model.num_layers)]


def block_shape(
    model: ModelConfig, block_size: int, dtype: torch.dtype
) -> tuple[tuple[int, ...], int]:
    """Shape of one block as `read_kv_blocks` gives it, and bytes of each element.

    8-bit vectors have the four bytes of their scale behind them.
    """
    vector = kv_vector_bytes(model.head_dim, dtype) if is_quantized(dtype) else model.head_dim
    return (model.num_layers, 2, model.num_kv_heads, block_size, vector), dtype.itemsize


def copy_kv_blocks(caches: Sequence[LayerCache], pairs: Sequence[tuple[int, int]]) -> None:
    """Copy whole blocks, (source, destination)."""
    device = caches[0].k.device
    sources = torch.tensor([source for source, _ in pairs], device=device)
    targets = torch.tensor([target for _, target in pairs], device=device)
    for cache in caches:
        for bits in map(_bits, cache.tensors()):
            bits[targets] = bits[sources]


def read_kv_blocks(caches: Sequence[LayerCache], blocks: Sequence[int]) -> np.ndarray:
    """Copies of whole KV blocks, on the host.

    Args:
        caches: Each layer's.
        blocks: Which.

    Returns:
        [len(blocks), num_layers, 2 (K, V), num_kv_heads, block_size, head_dim], the bits
        of the values as unsigned integers of their size. Of 8-bit values the last axis
        is head_dim + 4: the bytes of their scale follow.
    """
    which = torch.tensor(blocks, device=caches[0].k.device)
    copies = torch.stack([torch.stack(_vectors(cache, which), 1) for cache in caches], 1)
    array = copies.cpu().numpy()
    return array.view(f"u{array.itemsize}")


def write_kv_blocks(
    caches: Sequence[LayerCache], blocks: Sequence[int], contents: Sequence[np.ndarray]
) -> None:
    """Put back what `read_kv_blocks` returned, one array a block."""
    device, head_dim = caches[0].k.device, caches[0].k.shape[-1]
    which = torch.tensor(blocks, device=device)
    bits = np.stack(contents)
    bits = bits.view(f"i{bits.itemsize}") if bits.itemsize > 1 else bits
    values = torch.from_numpy(bits).to(device)
    for layer, cache in enumerate(caches):
        for kind, tensor in enumerate((cache.k, cache.v)):
            _bits(tensor)[which] = values[:, layer, kind, ..., :head_dim]
        if cache.is_quantized:
            for kind, scale in enumerate(cache.tensors()[2:]):
                scale_bytes = values[:, layer, kind, ..., head_dim:].contiguous()
                scale[which] = scale_bytes.view(torch.float32).squeeze(-1)


def _vectors(cache: LayerCache, which: torch.Tensor) -> list[torch.Tensor]:
    """Bits of K and V of some blocks, [blocks, num_kv_heads, block_size, elements]."""
    bits = [_bits(tensor)[which] for tensor in (cache.k, cache.v)]
    if not cache.is_quantized:
        return bits
    scales = [
        scale[which].unsqueeze(-1).contiguous().view(torch.uint8) for scale in cache.tensors()[2:]
    ]
    return [torch.cat(pair, -1) for pair in zip(bits, scales, strict=True)]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers: indexing of 8-bit floats is not everywhere to be had."""
    return tensor.view(_BITS[tensor.itemsize])
