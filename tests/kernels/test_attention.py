"""Paged attention against its reference, and the same bits however a context is computed."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import kernels
from kernels.kv_cache import KV_DTYPES, AttentionBatch, LayerCache
from kernels.native.library import Library
from kernels.paged_attention import reference
from tests.kernels.samples import assert_close, cache_as, make_batch, random

SCALE = 64**-0.5
# Query and context lengths: decode, prefill, page edges, segment edges, all mixed.
MIXES = [
    ([1], [1]),
    ([1, 1, 1], [15, 16, 17]),
    ([5], [5]),
    ([33, 1, 16], [33, 300, 48]),
    ([1, 7, 0, 2], [255, 256, 0, 257]),
    ([20], [530]),
]


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize("lens", MIXES, ids=str)
def test_mixed_batches(backend: str, lens: tuple[list[int], list[int]], dtype: torch.dtype) -> None:
    cache, batch = make_batch(*lens, dtype=dtype)
    q = random(sum(lens[0]), 9, 64)
    got = kernels.paged_attention(q, cache, batch, SCALE)
    assert_close(got, reference.paged_attention(q, cache, batch, SCALE), 2e-6)


@pytest.mark.parametrize("block_size", [1, 8, 32, 48])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(4, 4, 80), (8, 2, 128), (5, 1, 16), (30, 1, 96)]
)
def test_shapes(backend: str, heads: int, kv_heads: int, dim: int, block_size: int) -> None:
    cache, batch = make_batch(
        [1, 9], [40, 70], block_size=block_size, num_kv_heads=kv_heads, head_dim=dim
    )
    q = random(10, heads, dim)
    for dtype in (torch.float32, torch.int8, torch.float8_e4m3fn):
        stored = cache_as(cache, dtype)
        got = kernels.paged_attention(q, stored, batch, dim**-0.5)
        assert_close(got, reference.paged_attention(q, stored, batch, dim**-0.5), 2e-6)


def test_large_scores_do_not_overflow(compiled: Library) -> None:
    cache, batch = make_batch([1], [40])
    q = random(1, 9, 64) * 1000
    got = kernels.paged_attention(q, cache, batch, SCALE)
    assert_close(got, reference.paged_attention(q, cache, batch, SCALE), 1e-5)


def test_padding_rows_of_q_are_left_alone(compiled: Library) -> None:
    cache, batch = make_batch([2], [20])
    q = torch.cat((random(2, 9, 64), torch.full((3, 9, 64), torch.nan)))
    got = kernels.paged_attention(q, cache, batch, SCALE)[:2]
    assert_close(got, reference.paged_attention(q[:2], cache, batch, SCALE), 2e-6)


# Batch invariance


def piece(batch: AttentionBatch, start: int, end: int) -> AttentionBatch:
    """The first sequence's query tokens at positions start .. end - 1, alone."""
    return AttentionBatch(
        torch.tensor([0, end - start], dtype=torch.int32),
        torch.tensor([end], dtype=torch.int32),
        batch.block_tables[:1].contiguous(),
        end - start,
        end,
    )


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (4, 4), (8, 1)])
def test_prefill_pieces_and_decode_have_the_same_bits(
    compiled: Library, heads: int, kv_heads: int, dtype: torch.dtype
) -> None:
    length = 600
    cache, batch = make_batch([length], [length], num_kv_heads=kv_heads, dtype=dtype)
    q = random(length, heads, 64)
    whole = kernels.paged_attention(q, cache, batch, SCALE)
    for step in (1, 3, 100, 256, 257):
        for start in range(0, length, step) if step > 3 else (0, 254, 255, 256, 511, 596, 599):
            end = min(start + step, length)
            part = kernels.paged_attention(
                q[start:end].contiguous(), cache, piece(batch, start, end), SCALE
            )
            assert torch.equal(part, whole[start:end]), (step, start)


def test_a_sequence_has_the_same_bits_in_any_batch(compiled: Library) -> None:
    contexts = [300, 17, 530, 64, 256, 1, 90, 257, 400]
    cache, batch = make_batch([1] * 9, contexts)
    q = random(9, 9, 64)
    together = kernels.paged_attention(q, cache, batch, SCALE)
    for index, context in enumerate(contexts):
        one = AttentionBatch(
            torch.tensor([0, 1], dtype=torch.int32),
            batch.context_lens[index : index + 1],
            batch.block_tables[index : index + 1],
            1,
            context,
        )
        alone = kernels.paged_attention(q[index : index + 1], cache, one, SCALE)
        assert torch.equal(alone[0], together[index])


# Sequences' contexts, how many tokens from the first on are in blocks of the first one's,
# by sequence: groups beside singles, more of them than one item takes, a common beginning
# that ends inside a segment or a block, and one query more than a decode's.
SHARING = [
    ([1] * 3, [1030, 900, 800], [0, 784, 784]),
    ([1] * 11, [600 + 37 * i for i in range(11)], [0] + [592] * 10),
    ([1] * 5, [600, 610, 90, 620, 2000], [0, 592, 0, 512, 300]),
    ([1, 3, 1, 1], [2000, 1990, 1500, 1400], [0, 1500, 1300, 1300]),
]


def share(batch: AttentionBatch, tokens: list[int], block_size: int) -> None:
    for row, count in enumerate(tokens):
        blocks = count // block_size
        batch.block_tables[row, :blocks] = batch.block_tables[0, :blocks]


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize("sharing", SHARING, ids=["three", "eleven", "mixed", "queries"])
def test_shared_prefixes_leave_the_bits_as_they_are(
    compiled: Library, sharing: tuple[list[int], list[int], list[int]], dtype: torch.dtype
) -> None:
    query_lens, contexts, shared = sharing
    cache, batch = make_batch(query_lens, contexts, dtype=dtype)
    share(batch, shared, 16)
    q = random(sum(query_lens), 9, 64)
    together = kernels.paged_attention(q, cache, batch, SCALE)
    assert_close(together, reference.paged_attention(q, cache, batch, SCALE), 2e-6)
    starts = batch.query_starts.tolist()
    for index, context in enumerate(contexts):
        one = AttentionBatch(
            torch.tensor([0, query_lens[index]], dtype=torch.int32),
            batch.context_lens[index : index + 1],
            batch.block_tables[index : index + 1],
            query_lens[index],
            context,
        )
        rows = slice(starts[index], starts[index + 1])
        alone = kernels.paged_attention(q[rows].contiguous(), cache, one, SCALE)
        assert torch.equal(alone, together[rows])


def test_shared_prefixes_in_blocks_that_cross_segments(compiled: Library) -> None:
    for threads, block_size in ((1, 48), (2, 48), (2, 100)):
        compiled.set_num_threads(threads)
        cache, batch = make_batch([1] * 4, [900, 800, 700, 620], block_size=block_size)
        share(batch, [0, 620, 600, 600], block_size)
        q = random(4, 9, 64)
        got = kernels.paged_attention(q, cache, batch, SCALE)
        assert_close(got, reference.paged_attention(q, cache, batch, SCALE), 2e-6)
    compiled.set_num_threads(2)


def test_bits_do_not_depend_on_threads_or_block_size(compiled: Library) -> None:
    q = random(2, 9, 64)
    results = []
    for threads, block_size in ((1, 16), (2, 16), (7, 16), (2, 5)):
        compiled.set_num_threads(threads)
        cache, batch = make_batch([2], [700], block_size=block_size)
        results.append(kernels.paged_attention(q, cache, batch, SCALE))
    compiled.set_num_threads(2)
    assert all(torch.equal(results[0], other) for other in results[1:3])
    # Another block size shuffles other random vectors in, so only a fixed cache compares.
    cache, batch = make_batch([2], [700], block_size=10**4)
    again = make_batch([2], [700], block_size=16)
    for position in range(700):
        block = int(again[1].block_tables[0, position // 16])
        source = int(batch.block_tables[0, 0])
        again[0].k[block, :, position % 16] = cache.k[source, :, position]
        again[0].v[block, :, position % 16] = cache.v[source, :, position]
    assert torch.equal(
        kernels.paged_attention(q, cache, batch, SCALE), kernels.paged_attention(q, *again, SCALE)
    )


def test_bits_do_not_depend_on_the_instruction_set(
    native_library: Library, avx2_library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels import native

    cache, batch = make_batch([3, 1], [300, 40])
    q = random(4, 9, 64)
    for stored in (cache_as(cache, dtype) for dtype in KV_DTYPES):
        results = []
        for library in (native_library, avx2_library):
            monkeypatch.setattr(native, "_load", lambda library=library: (library, ""))
            results.append(kernels.paged_attention(q, stored, batch, SCALE))
        assert torch.equal(*results)


def test_every_8_bit_value_is_read_as_what_it_is(backend: str) -> None:
    """One key is all that there is to see, so the output is its value."""
    for dtype in (torch.int8, torch.float8_e4m3fn):
        values = torch.arange(256, dtype=torch.uint8).view(dtype)
        values = values[values.float().isfinite()][:240].view(15, 1, 1, 16)
        scale = torch.full((15, 1, 1), 0.5)
        cache = LayerCache(values, values, scale, scale)
        tables = torch.arange(15, dtype=torch.int32).view(15, 1)
        ones = torch.ones(15, dtype=torch.int32)
        batch = AttentionBatch(torch.arange(16, dtype=torch.int32), ones, tables, 1, 1)
        got = kernels.paged_attention(torch.zeros(15, 1, 16), cache, batch, 1.0)
        assert torch.equal(got.flatten(), values.float().flatten() * 0.5)


# Refusals


def test_wrong_arguments_are_named(backend: str) -> None:
    cache, batch = make_batch([1, 2], [20, 30])
    q = random(3, 9, 64)

    def attend(**changes: torch.Tensor) -> None:
        kernels.paged_attention(q, cache, dataclasses.replace(batch, **changes), SCALE)

    with pytest.raises(ValueError, match=r"query_starts: expected 0 \.\. 3, got 0 \.\. 4"):
        attend(query_starts=torch.tensor([0, 1, 4], dtype=torch.int32))
    with pytest.raises(ValueError, match=r"context_lens\[1\]: expected 2 query tokens .* got 1"):
        attend(context_lens=torch.tensor([20, 1], dtype=torch.int32))
    with pytest.raises(ValueError, match=r"context_lens\[0\]: .* got 1000"):
        attend(context_lens=torch.tensor([1000, 30], dtype=torch.int32))
    with pytest.raises(ValueError, match=r"block_tables\[0\]: expected 0 \.\. 6, got"):
        attend(block_tables=torch.full_like(batch.block_tables, 7))
    with pytest.raises(ValueError, match="context_lens: expected int32"):
        attend(context_lens=batch.context_lens.long())
    with pytest.raises(ValueError, match=r"q: expected 1 \.\. 256 heads for each of 3, got 8"):
        kernels.paged_attention(random(3, 8, 64), cache, batch, SCALE)
    with pytest.raises(ValueError, match=r"q: expected float32 \[any, any, 64\]"):
        kernels.paged_attention(random(3, 9, 32), cache, batch, SCALE)
