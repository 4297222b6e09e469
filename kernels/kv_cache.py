"""The paged KV cache's tensors and the description of one step over them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.checks import expect

# What every device's kernels read and write.
KV_DTYPES = (torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn)
# Largest magnitude that an 8-bit value holds; a vector's largest element becomes it.
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


def is_quantized(dtype: torch.dtype) -> bool:
    """Whether KV of this dtype has a scale for each token and head."""
    return dtype in LARGEST


def kv_vector_bytes(head_dim: int, dtype: torch.dtype) -> int:
    """Memory of one token's K (or V) of one head, its scale included."""
    return head_dim * dtype.itemsize + (4 if is_quantized(dtype) else 0)


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's K and V.

    8-bit values (int8, float8_e4m3fn) are multiplied by the scale of their token and
    head: the vector's largest magnitude over `LARGEST`, so that a vector depends on
    nothing but itself.

    Raises ValueError if k and v differ in shape or dtype, or are not contiguous, or if
    scales are missing or superfluous.

    Attributes:
        k: [num_blocks, num_kv_heads, block_size, head_dim].
        v: Same shape and dtype as k.
        k_scale: float32 [num_blocks, num_kv_heads, block_size] beside 8-bit values;
            else None.
        v_scale: The same for v.
    """

    k: torch.Tensor
    v: torch.Tensor
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None

    def __post_init__(self) -> None:
        expect("cache.k", self.k, [None] * 4, [self.k.dtype])
        expect("cache.v", self.v, self.k.shape, [self.k.dtype])
        for name, scale in (("cache.k_scale", self.k_scale), ("cache.v_scale", self.v_scale)):
            if (scale is not None) != self.is_quantized:
                wanted = "float32 scales" if self.is_quantized else "None"
                raise ValueError(f"{name}: expected {wanted} beside {self.k.dtype} values")
            if scale is not None:
                expect(name, scale, self.k.shape[:3], [torch.float32])

    @classmethod
    def zeros(
        cls, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device | str
    ) -> LayerCache:
        """An empty cache of `shape` [num_blocks, num_kv_heads, block_size, head_dim]."""
        k, v = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        if not is_quantized(dtype):
            return cls(k, v)
        return cls(k, v, *(torch.zeros(shape[:3], device=device) for _ in range(2)))

    @property
    def block_size(self) -> int:
        return self.k.shape[2]

    @property
    def is_quantized(self) -> bool:
        """Whether values are 8-bit with scales."""
        return is_quantized(self.k.dtype)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All of the cache's tensors; the first axis of each counts blocks."""
        if self.k_scale is None or self.v_scale is None:
            return self.k, self.v
        return self.k, self.v, self.k_scale, self.v_scale


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Which sequences of a decode batch begin with the same blocks, for CUDA.

    Rows of equal leading blocks are put together in tiles, so that attention reads the
    shared KV once a tile instead of once a row. All shapes are fixed by the batch size,
    so that the contents may change under a CUDA graph.

    Attributes:
        tile_rows: int32 [tiles, rows a tile]: the batch's rows of each tile; -1 for none.
        tile_lens: int32 [tiles]: tokens that the tile's rows share, from the first on; 0
            for a tile that isn't used. A row is in at most one tile.
        row_lens: int32 [B]: of each row of the batch, the tokens its tile covers; less
            than its context.
    """

    tile_rows: torch.Tensor
    tile_lens: torch.Tensor
    row_lens: torch.Tensor

    def __post_init__(self) -> None:
        num_tiles = self.tile_lens.numel()
        expect("tile_rows", self.tile_rows, [num_tiles, None], [torch.int32])
        expect("tile_lens", self.tile_lens, [num_tiles], [torch.int32])
        expect("row_lens", self.row_lens, [None], [torch.int32])


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Which query tokens belong to which sequence, and where their KV lies.

    T query tokens of B sequences, concatenated in order. Sequence b's query
    tokens are rows query_starts[b] : query_starts[b + 1], and the last of them is
    at position context_lens[b] - 1, so the first is at context_lens[b] minus its
    number of query tokens. A decode step has one query token a sequence.

    Attributes:
        query_starts: int32 [B + 1].
        context_lens: int32 [B]; KV tokens in all, this step's own included.
        block_tables: int32 [B, max_blocks]; entries past a sequence's blocks are
            never read.
        max_query_len: The longest sequence piece in this batch.
        max_context_len: The longest context in this batch.
        shared: On CUDA, for a decode step: which prefixes are read together; None reads
            each sequence's own. The CPU finds them by itself.
        apart: On CUDA: the same sequences in two batches, first those that decode, one
            query token each, then those with longer pieces, which other kernels compute;
            None takes all for pieces. The CPU tells them apart by itself.
    """

    query_starts: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    max_query_len: int
    max_context_len: int
    shared: SharedPrefix | None = None
    apart: tuple[AttentionBatch, AttentionBatch] | None = None

    def __post_init__(self) -> None:
        num_sequences = self.context_lens.numel()
        expect("query_starts", self.query_starts, [num_sequences + 1], [torch.int32])
        expect("context_lens", self.context_lens, [num_sequences], [torch.int32])
        expect("block_tables", self.block_tables, [num_sequences, None], [torch.int32])
        if self.shared is not None:
            expect("row_lens", self.shared.row_lens, [num_sequences], [torch.int32])
