"""The CUDA attention kernels against the fp32 reference, page edges and empty rows included."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from kernels.kv_cache import AttentionBatch, LayerCache
from kernels.paged_attention import reference
from tests.kernels.triton.compare import assert_near


def make_case(
    query_lens: list[int], context_lens: list[int], num_q: int, num_kv: int, head_dim: int,
    block_size: int, dtype: torch.dtype,
) -> tuple[torch.Tensor, LayerCache, AttentionBatch]:  # fmt: skip
    """Random q and cache, blocks in random order, NaN in every slot no token lives in."""
    needed = [-(-length // block_size) for length in context_lens]
    num_blocks = sum(needed) + 3
    order = torch.randperm(num_blocks).tolist()
    tables = torch.full((len(needed), max(max(needed), 1) + 1), 10**9, dtype=torch.int32)
    shape = (num_blocks, num_kv, block_size, head_dim)
    k, v = torch.full(shape, float("nan")), torch.full(shape, float("nan"))
    for row, count in enumerate(needed):
        for index in range(count):
            block = order.pop()
            tables[row, index] = block
            filled = min(block_size, context_lens[row] - index * block_size)
            k[block, :, :filled] = torch.randn(num_kv, filled, head_dim)
            v[block, :, :filled] = torch.randn(num_kv, filled, head_dim)
    starts = torch.tensor([0, *query_lens]).cumsum(0).int()
    batch = AttentionBatch(
        starts, torch.tensor(context_lens, dtype=torch.int32), tables, max(query_lens),
        max(context_lens),
    )  # fmt: skip
    q = torch.randn(int(starts[-1]), num_q, head_dim).to(dtype)
    return q, LayerCache(k.to(dtype), v.to(dtype)), batch


def run(device: torch.device, q: torch.Tensor, cache: LayerCache, batch: AttentionBatch) -> None:
    from kernels.paged_attention.triton import paged_attention

    scale = q.shape[2] ** -0.5
    expected = reference.paged_attention(q, cache, batch, scale)
    moved = AttentionBatch(
        batch.query_starts.to(device), batch.context_lens.to(device),
        batch.block_tables.to(device), batch.max_query_len, batch.max_context_len,
    )  # fmt: skip
    on_device = LayerCache(*(tensor.to(device) for tensor in cache.tensors()))
    # Twice: the counters of the first launch must be back at zero.
    for _ in range(2):
        actual = paged_attention(q.to(device), on_device, moved, scale)
        assert_near(actual, expected, 8e-3)


@pytest.mark.parametrize(
    ("num_q", "num_kv", "head_dim", "block_size"),
    [(4, 1, 32, 16), (3, 3, 64, 16), (6, 2, 48, 4), (9, 3, 64, 32)],
)
@pytest.mark.parametrize("context_lens", [[1], [16, 17], [5, 64, 33], [130, 1, 15, 95]], ids=str)
def test_decode(
    device: torch.device, dtype: torch.dtype, num_q: int, num_kv: int, head_dim: int,
    block_size: int, context_lens: list[int],
) -> None:  # fmt: skip
    case = make_case(
        [1] * len(context_lens), context_lens, num_q, num_kv, head_dim, block_size, dtype
    )
    run(device, *case)


def test_decode_with_padding_rows(device: torch.device, dtype: torch.dtype) -> None:
    from kernels.paged_attention.triton import paged_attention

    q, cache, batch = make_case([1, 1, 1], [40, 0, 0], 4, 2, 32, 16, dtype)
    real = AttentionBatch(
        batch.query_starts[:2], batch.context_lens[:1], batch.block_tables[:1], 1, 40
    )
    expected = reference.paged_attention(q[:1], cache, real, 0.2)
    moved = AttentionBatch(
        batch.query_starts.to(device), batch.context_lens.to(device),
        batch.block_tables.to(device), 1, 40,
    )  # fmt: skip
    on_device = LayerCache(*(tensor.to(device) for tensor in cache.tensors()))
    actual = paged_attention(q.to(device), on_device, moved, 0.2)
    assert_near(actual[:1], expected, 8e-3)
    assert not actual[1:].any(), "padding rows must be zero"


@pytest.mark.parametrize("splits", [1, 2, 5, 16])
def test_every_split_count_gives_the_same(
    device: torch.device, dtype: torch.dtype, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The package's function of the same name hides the module from plain imports.
    subject = importlib.import_module("kernels.paged_attention.triton")
    monkeypatch.setattr(subject, "num_splits", lambda *_: splits)
    run(device, *make_case([1, 1], [77, 160], 8, 2, 32, 16, dtype))


@pytest.mark.parametrize(
    ("query_lens", "context_lens"),
    [([1, 3], [9, 3]), ([17, 40], [17, 71]), ([65, 1, 130], [65, 50, 131]), ([2, 0, 5], [2, 7, 5])],
)
@pytest.mark.parametrize(("num_q", "num_kv", "head_dim"), [(4, 1, 32), (3, 3, 64), (6, 2, 16)])
def test_prefill(
    device: torch.device, dtype: torch.dtype, query_lens: list[int], context_lens: list[int],
    num_q: int, num_kv: int, head_dim: int,
) -> None:  # fmt: skip
    run(device, *make_case(query_lens, context_lens, num_q, num_kv, head_dim, 16, dtype))


CARD_CASES = [
    ([1] * 32, 8, 4, 128), ([1] * 3, 32, 1, 128), ([512, 700], 8, 4, 128), ([300], 32, 1, 128),
    ([1, 1, 90, 1], 3, 3, 64),
]  # fmt: skip


@pytest.mark.parametrize(("query_lens", "num_kv", "group", "head_dim"), CARD_CASES, ids=str)
def test_real_shapes_on_the_card(
    device: torch.device, dtype: torch.dtype, query_lens: list[int], num_kv: int, group: int,
    head_dim: int,
) -> None:  # fmt: skip
    if device.type == "cpu":
        query_lens, num_kv = [min(length, 20) for length in query_lens[:2]], 2
    extra = torch.randint(0, 900 if device.type == "cuda" else 40, (len(query_lens),)).tolist()
    context_lens = [length + more for length, more in zip(query_lens, extra, strict=True)]
    run(
        device,
        *make_case(query_lens, context_lens, num_kv * group, num_kv, head_dim, 16, dtype),
    )


def test_decodes_beside_pieces_take_kernels_of_their_own(
    device: torch.device, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.cuda_eager import EagerPass

    subject = importlib.import_module("kernels.paged_attention.triton")
    kinds: list[tuple[str, int]] = []
    for name in ("_decode", "_prefill", "_verify"):
        kernel = getattr(subject, name)

        def noted(q: torch.Tensor, *rest: Any, name: str = name, kernel: Any = kernel) -> None:
            kinds.append((name, len(q)))
            kernel(q, *rest)

        monkeypatch.setattr(subject, name, noted)
    q, cache, batch = make_case([1, 1, 1, 40, 9], [70, 1, 33, 40, 25], 4, 2, 32, 16, dtype)
    nothing: Any = None
    apart = EagerPass(nothing, (), device)._batch(batch)
    assert apart.apart is not None
    assert apart.apart[0].block_tables.shape[1] % 16 == 1
    expected = reference.paged_attention(q, cache, batch, 0.2)
    on_device = LayerCache(*(tensor.to(device) for tensor in cache.tensors()))
    actual = subject.paged_attention(q.to(device), on_device, apart, 0.2)
    assert_near(actual, expected, 8e-3)
    assert kinds[0] == ("_decode", 3)
    # Pieces this short are one kernel's or the other's by the card's multiprocessors.
    assert kinds[1:] in ([("_prefill", 49)], [("_verify", 49)])
