"""The CUDA embedding, RoPE and norm kernels against the fp32 references."""

from __future__ import annotations

import pytest
import torch

from kernels.embedding import reference as embedding_reference
from kernels.kv_cache import LayerCache
from kernels.rms_norm import reference as rms_norm_reference
from kernels.rope_kv_write import reference as rope_reference
from kernels.rope_kv_write import rope_table
from kernels.weights import Weight
from tests.kernels.triton.compare import assert_near, dense_weight, int4_weight, row_weight


@pytest.mark.parametrize(
    "weight",
    [
        int4_weight(50, 96, 32), int4_weight(70, 320, 64), int4_weight(33, 512, 128),
        dense_weight(40, 1100), row_weight("int8", 9, 64),
    ],
    ids=["int4-g32", "int4-g64", "int4-g128", "bf16", "int8"],
)  # fmt: skip
@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
def test_embedding(device: torch.device, weight: Weight, id_dtype: torch.dtype) -> None:
    from kernels.embedding.triton import embedding
    from kernels.pack.triton import pack

    ids = torch.tensor([weight.rows - 1, 0, 3, 3, 1], dtype=id_dtype)
    actual = embedding(ids.to(device), pack((weight,), device, "memory"))
    assert_near(actual, embedding_reference.embedding(ids, weight), 4e-3)


@pytest.mark.parametrize("head_dim", [16, 48, 128])
@pytest.mark.parametrize("normed", [False, True])
def test_rope_kv_write(
    device: torch.device, dtype: torch.dtype, head_dim: int, normed: bool
) -> None:
    from kernels.rope_kv_write.triton import rope_kv_write

    num_q, num_kv, block_size, num_blocks = 6, 2, 4, 5
    width = (num_q + 2 * num_kv) * head_dim
    positions = torch.tensor([0, 7, 3, 1000, 12])
    slots = torch.tensor([19, 0, -1, 7, 8])
    qkv = torch.randn(5, width + 16).to(dtype)
    rope = rope_table(10000.0 ** -(torch.arange(0, head_dim, 2) / head_dim), 1001)
    norms = [(torch.rand(head_dim) + 0.5).to(dtype) if normed else None for _ in range(2)]
    shape = (num_blocks, num_kv, block_size, head_dim)
    expected_cache = LayerCache(torch.zeros(shape), torch.zeros(shape))
    expected = rope_reference.rope_kv_write(
        qkv[:, :width], positions, rope, expected_cache, slots, *norms, 1e-6
    )
    cache = LayerCache(
        torch.zeros(shape, dtype=dtype, device=device),
        torch.zeros(shape, dtype=dtype, device=device),
    )
    actual = rope_kv_write(
        qkv.to(device)[:, :width], positions.to(device), rope.to(device), cache,
        slots.to(device), *(None if n is None else n.to(device) for n in norms), 1e-6,
    )  # fmt: skip
    assert_near(actual, expected, 4e-3)
    assert_near(cache.k, expected_cache.k, 4e-3)
    assert_near(cache.v, expected_cache.v, 4e-3)
    written = expected_cache.k.abs().sum((1, 3)).flatten() > 0
    assert written.nonzero().flatten().tolist() == [0, 7, 8, 19]
    assert not cache.k.cpu().transpose(1, 2).flatten(0, 1)[~written].any()


@pytest.mark.parametrize(("num_q", "num_kv"), [(6, 2), (32, 8), (9, 3)])
@pytest.mark.parametrize("in_place", [False, True])
def test_many_tokens_take_several_heads_a_program(
    device: torch.device, dtype: torch.dtype, num_q: int, num_kv: int, in_place: bool
) -> None:
    from kernels.rope_kv_write.triton import MANY_TOKENS, rope_in_place, rope_kv_write

    count, head_dim, block_size = MANY_TOKENS + 3, 64, 16
    positions, order = torch.arange(count) + 5, torch.randperm(count + 9)[:count]
    qkv = torch.randn(count, (num_q + 2 * num_kv) * head_dim).to(dtype)
    rope = rope_table(10000.0 ** -(torch.arange(0, head_dim, 2) / head_dim), count + 5)
    norm = (torch.rand(head_dim) + 0.5).to(dtype)
    shape = (-(-(count + 9) // block_size), num_kv, block_size, head_dim)
    expected_cache = LayerCache(torch.zeros(shape), torch.zeros(shape))
    expected = rope_reference.rope_kv_write(
        qkv, positions, rope, expected_cache, order, norm, norm, 1e-6
    )
    cache = LayerCache.zeros(shape, dtype, device)
    given = qkv.to(device)
    arguments = (
        given, positions.to(device), rope.to(device), cache, order.to(device), norm.to(device),
        norm.to(device), 1e-6,
    )  # fmt: skip
    if in_place:
        rope_in_place(*arguments)
        q, k, v = given.view(count, -1, head_dim).split([num_q, num_kv, num_kv], 1)
        at = order // block_size, slice(None), order % block_size
        assert_near(k, expected_cache.k[at], 4e-3)
        assert torch.equal(v.cpu(), qkv.view(count, -1, head_dim)[:, num_q + num_kv :])
    else:
        q = rope_kv_write(*arguments)
        assert torch.equal(given.cpu(), qkv)
    assert_near(q, expected, 4e-3)
    assert_near(cache.k, expected_cache.k, 4e-3)
    assert_near(cache.v, expected_cache.v, 4e-3)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 576), (2, 4100)])
def test_rms_norm(device: torch.device, dtype: torch.dtype, rows: int, columns: int) -> None:
    from kernels.rms_norm.triton import rms_norm

    x = torch.randn(rows, columns + 3).to(dtype)[:, :columns]
    norm = torch.rand(columns).to(dtype) + 0.5
    strided = torch.zeros(rows, columns + 3, dtype=dtype, device=device)
    strided[:, :columns] = x.to(device)
    actual = rms_norm(strided[:, :columns], norm.to(device), 1e-5)
    assert_near(actual, rms_norm_reference.rms_norm(x, norm, 1e-5), 4e-3)
