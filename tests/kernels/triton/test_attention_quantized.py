"""The CUDA kernels over 8-bit KV: writes against the reference, and attention over them."""

from __future__ import annotations

import pytest
import torch

from kernels.kv_cache import LayerCache
from kernels.rope_kv_write import reference as rope_reference
from kernels.rope_kv_write import rope_table
from tests.kernels.samples import cache_as
from tests.kernels.triton.compare import assert_near
from tests.kernels.triton.test_attention_triton import make_case, run

KINDS = [torch.int8, torch.float8_e4m3fn]
kinds = pytest.mark.parametrize("kind", KINDS, ids=["int8", "fp8"])


@kinds
@pytest.mark.parametrize(
    ("num_q", "num_kv", "head_dim", "block_size"),
    [(4, 1, 32, 16), (6, 2, 48, 4), (9, 3, 64, 32)],
)
@pytest.mark.parametrize("context_lens", [[1, 16, 17], [130, 33]], ids=str)
def test_decode(
    device: torch.device, dtype: torch.dtype, kind: torch.dtype, num_q: int, num_kv: int,
    head_dim: int, block_size: int, context_lens: list[int],
) -> None:  # fmt: skip
    q, cache, batch = make_case(
        [1] * len(context_lens), context_lens, num_q, num_kv, head_dim, block_size, torch.float32
    )
    run(device, q.to(dtype), cache_as(cache, kind), batch)


@kinds
@pytest.mark.parametrize(("query_lens", "context_lens"), [([1, 3], [9, 3]), ([17, 35], [17, 71])])
@pytest.mark.parametrize(("num_q", "num_kv", "head_dim"), [(4, 1, 32), (2, 2, 64)])
def test_prefill(
    device: torch.device, dtype: torch.dtype, kind: torch.dtype, query_lens: list[int],
    context_lens: list[int], num_q: int, num_kv: int, head_dim: int,
) -> None:  # fmt: skip
    q, cache, batch = make_case(
        query_lens, context_lens, num_q, num_kv, head_dim, 16, torch.float32
    )
    run(device, q.to(dtype), cache_as(cache, kind), batch)


@kinds
@pytest.mark.parametrize("head_dim", [16, 48])
@pytest.mark.parametrize("normed", [False, True])
def test_rope_kv_write(
    device: torch.device, dtype: torch.dtype, kind: torch.dtype, head_dim: int, normed: bool
) -> None:
    from kernels.rope_kv_write.triton import rope_kv_write

    num_q, num_kv, shape = 6, 2, (5, 2, 4, head_dim)
    positions = torch.tensor([0, 7, 3, 1000, 12, 5])
    slots = torch.tensor([19, 0, -1, 7, 8, 11])
    qkv = torch.randn(6, (num_q + 2 * num_kv) * head_dim).to(dtype)
    # A vector of zeros has the scale 0.
    qkv[5] = 0
    rope = rope_table(10000.0 ** -(torch.arange(0, head_dim, 2) / head_dim), 1001)
    norms = [(torch.rand(head_dim) + 0.5).to(dtype) if normed else None for _ in range(2)]
    expected_cache = LayerCache.zeros(shape, kind, "cpu")
    expected = rope_reference.rope_kv_write(
        qkv, positions, rope, expected_cache, slots, *norms, 1e-6
    )
    cache = LayerCache.zeros(shape, kind, device)
    for scale in cache.tensors()[2:]:
        scale.fill_(torch.nan)
    actual = rope_kv_write(
        qkv.to(device), positions.to(device), rope.to(device), cache, slots.to(device),
        *(None if n is None else n.to(device) for n in norms), 1e-6,
    )  # fmt: skip
    assert_near(actual, expected, 4e-3)
    written = torch.zeros(5, 4, dtype=torch.bool)
    written.view(-1)[slots[slots >= 0]] = True
    written = written.unsqueeze(1).expand(5, num_kv, 4)
    for values, scale, wanted, wanted_scale in (
        (cache.k, cache.k_scale, expected_cache.k, expected_cache.k_scale),
        (cache.v, cache.v_scale, expected_cache.v, expected_cache.v_scale),
    ):
        assert torch.equal(scale.cpu().isnan(), ~written)
        assert_near(scale.cpu()[written], wanted_scale[written], 1e-5)
        compared = written.unsqueeze(-1).expand(wanted.shape)
        if device.type == "cpu" and kind is torch.float8_e4m3fn:
            # The interpreter loses the carry of what is rounded up to a power of two.
            compared = compared & (wanted.view(torch.uint8) & 7 != 0)
        found = (values.cpu().float() * scale.cpu().unsqueeze(-1))[compared]
        assert_near(found, (wanted.float() * wanted_scale.unsqueeze(-1))[compared], 8e-3)
        assert not values.cpu().float()[~written].any()
        # Rounded to the nearest: all but a few values, at the edges, are the very same.
        same = values.cpu().view(torch.uint8) == wanted.view(torch.uint8)
        assert same[compared].float().mean() > 0.99
