"""Rotation and cache writes against their reference."""

from __future__ import annotations

import pytest
import torch

import kernels
from kernels.kv_cache import LayerCache
from kernels.native.library import Library
from kernels.rope_kv_write import reference
from tests.kernels.samples import assert_close, random

DIM = 64


def new_cache(dtype: torch.dtype, block_size: int = 16) -> LayerCache:
    shape = (6, 3, block_size, DIM)
    return LayerCache(
        torch.full(shape, torch.nan, dtype=dtype), torch.full(shape, torch.nan, dtype=dtype)
    )


@pytest.fixture
def rope() -> torch.Tensor:
    return kernels.rope_table(10000.0 ** (-torch.arange(DIM // 2) / (DIM / 2)), 100)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_against_reference(
    backend: str,
    rope: torch.Tensor,
    tokens: int,
    norms: bool,
    dtype: torch.dtype,
    index: torch.dtype,
) -> None:
    qkv = random(tokens, 15 * DIM + 8)[:, 8:]
    positions = torch.arange(tokens).flip(0).to(index) + 59
    slots = torch.randperm(96, generator=torch.Generator().manual_seed(0))[:tokens].to(index)
    slots[tokens // 2] = -1
    q_norm, k_norm = (
        (1 + 0.1 * random(DIM), 1 + 0.1 * random(DIM, seed=9)) if norms else (None, None)
    )
    got_cache, cache = new_cache(dtype), new_cache(dtype)
    got = kernels.rope_kv_write(qkv, positions, rope, got_cache, slots, q_norm, k_norm, 1e-6)
    wanted = reference.rope_kv_write(qkv, positions, rope, cache, slots, q_norm, k_norm, 1e-6)
    assert_close(got, wanted, 1e-6)
    assert torch.equal(got_cache.v.isnan(), cache.v.isnan())
    assert torch.equal(got_cache.k.isnan(), cache.k.isnan())
    assert torch.equal(got_cache.v.nan_to_num(), cache.v.nan_to_num())
    tolerance = 1e-6 if dtype is torch.float32 else 1e-3
    if not got_cache.k.isnan().all():
        assert_close(got_cache.k.nan_to_num().float(), cache.k.nan_to_num().float(), tolerance)


def test_bfloat16_rounds_to_nearest_even(compiled: Library, rope: torch.Tensor) -> None:
    qkv = torch.zeros(1, 15 * DIM)
    # Ties, a value that rounds up into the next exponent, the largest float, infinity, NaN.
    values = [
        1.00390625,
        1.01171875,
        1.9999999,
        3.4028235e38,
        torch.inf,
        -torch.inf,
        torch.nan,
        1e-40,
    ]
    qkv[0, 12 * DIM : 12 * DIM + 8] = torch.tensor(values)
    cache = new_cache(torch.bfloat16)
    kernels.rope_kv_write(qkv, torch.tensor([0]), rope, cache, torch.tensor([0]))
    wanted = torch.tensor(values).bfloat16()
    assert torch.equal(cache.v[0, 0, 0, :8].isnan(), wanted.isnan())
    assert torch.equal(cache.v[0, 0, 0, :8].nan_to_num(), wanted.nan_to_num())


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("tokens", [1, 40])
def test_8_bit_values_and_scales(
    backend: str, rope: torch.Tensor, tokens: int, dtype: torch.dtype
) -> None:
    qkv, norm = random(tokens, 15 * DIM), 1 + 0.1 * random(DIM)
    # A vector of zeros, and one whose magnitudes are far apart.
    qkv[0, 9 * DIM : 10 * DIM] = 0
    qkv[-1, 13 * DIM : 14 * DIM] *= 10.0 ** torch.linspace(-9, 3, DIM)
    positions = torch.arange(tokens)
    slots = torch.randperm(96, generator=torch.Generator().manual_seed(0))[:tokens]
    slots[tokens // 2 :: 7] = -1
    caches = [LayerCache.zeros((6, 3, 16, DIM), dtype, "cpu") for _ in range(2)]
    for cache in caches:
        for scale in cache.tensors()[2:]:
            scale.fill_(torch.nan)
    kernels.rope_kv_write(qkv, positions, rope, caches[0], slots, norm, norm, 1e-6)
    reference.rope_kv_write(qkv, positions, rope, caches[1], slots, norm, norm, 1e-6)
    got, wanted = (cache.tensors() for cache in caches)
    assert torch.equal(got[1].view(torch.uint8), wanted[1].view(torch.uint8))
    assert torch.equal(got[3].nan_to_num(9.0), wanted[3].nan_to_num(9.0))
    assert torch.equal(got[2].isnan(), wanted[2].isnan())
    written = ~got[2].isnan()
    # k is rotated by another order of the same products: all but a few round alike.
    if written.any():
        assert_close(got[2][written], wanted[2][written], 1e-6)
        same = got[0].view(torch.uint8) == wanted[0].view(torch.uint8)
        assert same[written].float().mean() > 0.99


def test_8_bit_values_are_the_nearest(compiled: Library, rope: torch.Tensor) -> None:
    # Of a vector whose largest is 127 or 448, values are as they are: ties go to even.
    for dtype, top in ((torch.int8, 127.0), (torch.float8_e4m3fn, 448.0)):
        values = torch.cat((torch.tensor([top, 0.5, 1.5, -2.5, 447.9]), random(59) * 3))
        values = values.clamp(-top, top)
        if dtype is torch.float8_e4m3fn:
            values[5:13] = torch.tensor([2**-9, 1.5 * 2**-9, 2**-10, 17.0, 19.0, -0.0, 1e-9, 7.75])
        qkv = torch.zeros(1, 15 * DIM)
        qkv[0, 12 * DIM : 13 * DIM] = values
        cache = LayerCache.zeros((6, 3, 16, DIM), dtype, "cpu")
        kernels.rope_kv_write(qkv, torch.tensor([0]), rope, cache, torch.tensor([0]))
        wanted = values.round() if dtype is torch.int8 else values
        assert torch.equal(cache.v[0, 0, 0].float(), wanted.to(dtype).float())
        assert cache.tensors()[3][0, 0, 0] == 1.0


def test_nan_and_infinity_show_in_the_scale(backend: str, rope: torch.Tensor) -> None:
    for dtype in (torch.int8, torch.float8_e4m3fn):
        qkv = torch.ones(2, 15 * DIM)
        qkv[0, 12 * DIM + 3] = torch.nan
        qkv[1, 12 * DIM + 3] = torch.inf
        cache = LayerCache.zeros((6, 3, 16, DIM), dtype, "cpu")
        kernels.rope_kv_write(qkv, torch.tensor([0, 1]), rope, cache, torch.tensor([0, 1]))
        assert not cache.tensors()[3][0, 0, :2].isfinite().any()


def test_a_token_has_the_same_bits_in_any_batch(compiled: Library, rope: torch.Tensor) -> None:
    qkv, norm = random(40, 15 * DIM), 1 + 0.1 * random(DIM)
    positions, slots = torch.arange(40), torch.arange(40) + 20
    cache = new_cache(torch.float32)
    together = kernels.rope_kv_write(qkv, positions, rope, cache, slots, norm, norm, 1e-6)
    one = new_cache(torch.float32)
    for t in range(40):
        here = slice(t, t + 1)
        alone = kernels.rope_kv_write(
            qkv[here], positions[here], rope, one, slots[here], norm, norm, 1e-6
        )
        assert torch.equal(alone[0], together[t])
    assert torch.equal(one.k.nan_to_num(), cache.k.nan_to_num())
    assert torch.equal(one.v.nan_to_num(), cache.v.nan_to_num())


def test_the_table_of_position_zero_is_the_identity() -> None:
    table = kernels.rope_table(torch.tensor([1.0, 0.1]), 3)
    assert table[0].tolist() == [1, 1, 0, 0]
    assert table[2].tolist() == pytest.approx([-0.4161468, 0.9800666, 0.9092974, 0.1986693])


def test_wrong_arguments_are_named(backend: str, rope: torch.Tensor) -> None:
    qkv, zero = random(1, 15 * DIM), torch.tensor([0])
    cache = new_cache(torch.float32)

    def write(**changes: torch.Tensor) -> None:
        arguments = {"qkv": qkv, "positions": zero, "rope": rope, "slots": zero, **changes}
        kernels.rope_kv_write(cache=cache, **arguments)

    with pytest.raises(ValueError, match=r"positions: expected 0 \.\. 99, got 100 \.\. 100"):
        write(positions=torch.tensor([100]))
    with pytest.raises(ValueError, match=r"positions: expected 0 \.\. 99, got -1 \.\. -1"):
        write(positions=torch.tensor([-1]))
    with pytest.raises(ValueError, match=r"slots: expected 0 \.\. 95, got 96 \.\. 96"):
        write(slots=torch.tensor([96]))
    with pytest.raises(ValueError, match=r"slots: expected int64 \[1\], got int32"):
        write(slots=zero.int())
    with pytest.raises(
        ValueError, match=r"qkv: expected \(q heads \+ 2 \* 3\) \* 64 columns, got 384"
    ):
        write(qkv=random(1, 6 * DIM))
    with pytest.raises(ValueError, match=r"rope: expected float32 \[any, 64\]"):
        write(rope=rope[:, :32].contiguous())
    with pytest.raises(ValueError, match=r"q_norm: expected float32 \[64\]"):
        write(q_norm=torch.ones(32))
    assert cache.k.isnan().all()
