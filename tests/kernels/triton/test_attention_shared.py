"""CUDA decode attention over shared prefixes: the same as every row for itself."""

from __future__ import annotations

import importlib

import pytest
import torch

from engine.shared_prefix import tile_sequences
from kernels.kv_cache import AttentionBatch, LayerCache, SharedPrefix
from kernels.paged_attention import reference
from tests.kernels.samples import cache_as
from tests.kernels.triton.compare import assert_near
from tests.kernels.triton.test_attention_triton import make_case

BLOCK = 16


def share(
    batch: AttentionBatch, groups: list[tuple[list[int], int]], sequences: int, spare: int = 1
) -> SharedPrefix:
    """Give the rows of each group the same leading blocks, and put them in tiles."""
    tiles, lens = [], []
    row_lens = torch.zeros(len(batch.context_lens), dtype=torch.int32)
    for rows, blocks in groups:
        for row in rows:
            assert int(batch.context_lens[row]) > blocks * BLOCK
            batch.block_tables[row, :blocks] = batch.block_tables[rows[0], :blocks]
            row_lens[row] = blocks * BLOCK
        for first in range(0, len(rows), sequences):
            part = rows[first : first + sequences]
            tiles.append(part + [-1] * (sequences - len(part)))
            lens.append(blocks * BLOCK)
    tiles += [[-1] * sequences] * spare
    lens += [0] * spare
    return SharedPrefix(
        torch.tensor(tiles, dtype=torch.int32), torch.tensor(lens, dtype=torch.int32), row_lens
    )


def run_shared(
    device: torch.device, q: torch.Tensor, cache: LayerCache, batch: AttentionBatch,
    shared: SharedPrefix,
) -> None:  # fmt: skip
    from kernels.paged_attention.triton import paged_attention

    scale = q.shape[2] ** -0.5
    expected = reference.paged_attention(q, cache, batch, scale)
    moved = AttentionBatch(
        batch.query_starts.to(device), batch.context_lens.to(device),
        batch.block_tables.to(device), 1, batch.max_context_len,
        SharedPrefix(
            shared.tile_rows.to(device), shared.tile_lens.to(device), shared.row_lens.to(device)
        ),
    )  # fmt: skip
    on_device = LayerCache(*(tensor.to(device) for tensor in cache.tensors()))
    for _ in range(2):
        actual = paged_attention(q.to(device), on_device, moved, scale)
        assert_near(actual, expected, 8e-3)


# Contexts, and groups as (rows, shared blocks): pairs, page edges, one token behind the
# prefix, groups beside singles, more rows than a tile takes, the whole batch.
MIXES = [
    ([33, 40], [([0, 1], 2)]),
    ([17, 64, 100, 18], [([3, 0], 1), ([1, 2], 3)]),
    ([90, 5, 85, 16, 129, 81], [([0, 2, 4, 5], 5)]),
    ([49 + i for i in range(7)], [(list(range(7)), 3)]),
    ([1, 16, 17], []),
]


@pytest.mark.parametrize("kind", [None, torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize(("num_q", "num_kv", "head_dim"), [(3, 3, 64), (6, 2, 32), (8, 1, 48)])
@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_groups_and_singles(
    device: torch.device, dtype: torch.dtype, kind: torch.dtype | None, num_q: int, num_kv: int,
    head_dim: int, mix: tuple[list[int], list[tuple[list[int], int]]],
) -> None:  # fmt: skip
    context_lens, groups = mix
    q, cache, batch = make_case(
        [1] * len(context_lens), context_lens, num_q, num_kv, head_dim, BLOCK, torch.float32
    )
    sequences = 4 if num_q == 8 else tile_sequences(num_q // num_kv)
    shared = share(batch, groups, sequences)
    run_shared(device, q.to(dtype), cache_as(cache, kind or dtype), batch, shared)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("prefix_splits", [1, 2, 5])
def test_every_split_count_gives_the_same(
    device: torch.device, dtype: torch.dtype, splits: int, prefix_splits: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    subject = importlib.import_module("kernels.paged_attention.triton")
    monkeypatch.setattr(subject, "num_splits", lambda *_: splits)
    monkeypatch.setattr(subject, "_prefix_splits", lambda *_: prefix_splits)
    q, cache, batch = make_case([1] * 4, [150, 160, 40, 161], 4, 2, 32, BLOCK, dtype)
    run_shared(device, q, cache, batch, share(batch, [([0, 1, 3], 9)], 4))


def test_padding_rows_beside_a_group_are_zero(device: torch.device, dtype: torch.dtype) -> None:
    from kernels.paged_attention.triton import paged_attention

    q, cache, batch = make_case([1] * 4, [40, 50, 0, 0], 4, 2, 32, BLOCK, dtype)
    shared = share(batch, [([0, 1], 2)], 4)
    expected = reference.paged_attention(
        q[:2], cache,
        AttentionBatch(
            batch.query_starts[:3], batch.context_lens[:2], batch.block_tables[:2], 1, 50
        ), 0.2,
    )  # fmt: skip
    moved = AttentionBatch(
        batch.query_starts.to(device), batch.context_lens.to(device),
        batch.block_tables.to(device), 1, 50,
        SharedPrefix(
            shared.tile_rows.to(device), shared.tile_lens.to(device), shared.row_lens.to(device)
        ),
    )  # fmt: skip
    on_device = LayerCache(cache.k.to(device), cache.v.to(device))
    actual = paged_attention(q.to(device), on_device, moved, 0.2)
    assert_near(actual[:2], expected, 8e-3)
    assert not actual[2:].any()


def test_real_shapes_on_the_card(device: torch.device, dtype: torch.dtype) -> None:
    rows, blocks, num_kv = (64, 40, 8) if device.type == "cuda" else (5, 4, 2)
    extra = torch.randint(1, 300 if device.type == "cuda" else 30, (rows,)).tolist()
    lens = [blocks * BLOCK + more for more in extra]
    q, cache, batch = make_case([1] * rows, lens, num_kv * 4, num_kv, 128, BLOCK, dtype)
    run_shared(device, q, cache, batch, share(batch, [(list(range(1, rows)), blocks)], 16, 4))
