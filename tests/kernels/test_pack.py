"""What `pack` refuses, and lookups in packed tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import kernels
from kernels.embedding import reference
from kernels.native.library import Library
from kernels.rms_norm import reference as rms_norm_reference
from kernels.weights import Weight
from tests.kernels.samples import assert_close, make_weight, random


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind", ["int4", "int8", "float32", "bfloat16", "float16"])
def test_embedding_is_exact(backend: str, kind: str, dtype: torch.dtype) -> None:
    table = make_weight(kind, 45, 128, minimum=True)
    ids = torch.tensor([44, 0, 15, 16, 16, 31], dtype=dtype)
    packed = kernels.pack(table, "cpu")
    assert torch.equal(kernels.embedding(ids, packed), reference.embedding(ids, table))
    many = torch.arange(45, dtype=dtype)
    assert torch.equal(kernels.embedding(many, packed), table.dequantize())


@pytest.mark.parametrize("group", [16, 64])
def test_embedding_of_other_groups(compiled: Library, group: int) -> None:
    table = make_weight("int8", 20, 128, group=group, scale_dtype=torch.float32)
    ids = torch.arange(20)
    assert torch.equal(kernels.embedding(ids, kernels.pack(table, "cpu")), table.dequantize())


def test_embedding_refuses_ids_out_of_range(backend: str) -> None:
    packed = kernels.pack(make_weight("int8", 45, 64), "cpu")
    for ids in ([45], [0, -1]):
        with pytest.raises(ValueError, match=r"ids: expected 0 \.\. 44, got"):
            kernels.embedding(torch.tensor(ids), packed)
    with pytest.raises(ValueError, match="ids: expected int32 or int64"):
        kernels.embedding(torch.zeros(2), packed)


@pytest.mark.parametrize("columns", [1, 45, 576])
def test_rms_norm(backend: str, columns: int) -> None:
    x, norm = random(20, columns + 3)[:, 3:], random(columns)
    got = kernels.rms_norm(x, norm, 1e-5)
    assert_close(got, rms_norm_reference.rms_norm(x, norm, 1e-5), 1e-6)
    assert torch.equal(kernels.rms_norm(x[7:8], norm, 1e-5), got[7:8]) or backend == "torch"


def test_unsupported_weights_are_named(backend: str) -> None:
    good = make_weight("int4", 8, 64)
    with pytest.raises(ValueError, match=r"compute: expected one of .* got 'bf16'"):
        kernels.pack(good, "cpu", "bf16")
    with pytest.raises(ValueError, match="expected at least one matrix"):
        kernels.pack([], "cpu")
    with pytest.raises(ValueError, match="expected 64 columns in each part, got 32"):
        kernels.pack([good, make_weight("int4", 8, 32)], "cpu")
    with pytest.raises(ValueError, match=r"multiples of 32 .* got group 16"):
        kernels.pack(make_weight("int4", 8, 64, group=16), "cpu")
    with pytest.raises(ValueError, match="got group 24, 48 columns"):
        kernels.pack(make_weight("int8", 8, 48, group=24), "cpu")


def test_weights_that_contradict_themselves_are_named() -> None:
    data = torch.zeros(8, 32, dtype=torch.uint8)
    scale = torch.ones(8, 2, dtype=torch.float16)
    with pytest.raises(ValueError, match="kind: expected one of"):
        kernels.pack(Weight("int3", data, scale, None, 32), "cpu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="int4 data: expected"):
        kernels.pack(Weight("int4", data.to(torch.int8), scale, None, 32), "cpu")
    with pytest.raises(ValueError, match="group: expected a divisor of 64, got 48"):
        kernels.pack(Weight("int4", data, scale, None, 48), "cpu")
    with pytest.raises(ValueError, match="int4 weight: expected a scale, got None"):
        kernels.pack(Weight("int4", data, None, None, 32), "cpu")
    with pytest.raises(ValueError, match=r"scale: expected float16 or float32 \[8, 1\]"):
        kernels.pack(Weight("int4", data, scale, None, 64), "cpu")
    with pytest.raises(ValueError, match=r"minimum: expected torch.float16, got torch.float32"):
        kernels.pack(Weight("int4", data, scale, scale.float(), 32), "cpu")
    with pytest.raises(ValueError, match="dense weight: expected no scale"):
        kernels.pack(Weight("dense", torch.zeros(8, 32), scale), "cpu")


def test_only_weights_of_one_layout_are_concatenated() -> None:
    with pytest.raises(ValueError, match="expected weights of one layout, got"):
        Weight.concatenate([make_weight("int4", 8, 64), make_weight("int8", 8, 64)])


def ordered(kind: str, seed: int) -> Weight:
    weight = make_weight(kind, 48, 96, minimum=True, seed=seed)
    order = torch.randperm(96, generator=torch.Generator().manual_seed(seed))
    return replace(weight, order=order)


@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_columns_in_an_order_of_their_own(kind: str) -> None:
    """As groups of inputs that are no neighbours give: the ops put the inputs right."""
    weight = ordered(kind, 1)
    plain = replace(weight, order=None)
    assert torch.equal(weight.dequantize()[:, weight.order], plain.dequantize())
    packed = kernels.pack(weight, "cpu", "fp32")
    x, norm = random(3, 96), random(96, seed=2).abs()
    matrix = weight.dequantize()
    normed = rms_norm_reference.rms_norm(x, norm, 1e-5)
    assert_close(kernels.norm_linear(x, norm, 1e-5, packed), normed @ matrix.T, 1e-5)
    gate, up = (normed @ matrix.T).chunk(2, dim=1)
    swiglu = torch.nn.functional.silu(gate) * up
    assert_close(kernels.norm_swiglu(x, norm, 1e-5, packed), swiglu, 1e-5)
    residual = torch.ones(3, 48)
    kernels.linear_add(x, packed, residual)
    assert_close(residual, 1 + x @ matrix.T, 1e-5)


@pytest.mark.parametrize("seeds", [(1, 1), (1, 2)])
def test_stacked_matrices_of_one_and_of_several_orders(seeds: tuple[int, int]) -> None:
    parts = [ordered("int4", seed) for seed in seeds]
    packed = kernels.pack(parts, "cpu", "fp32")
    assert (packed.order is not None) == (seeds[0] == seeds[1])
    x = random(2, 96)
    matrix = torch.cat([part.dequantize() for part in parts])
    assert_close(kernels.norm_linear(x, None, 0.0, packed), x @ matrix.T, 1e-5)


def test_orders_that_are_refused() -> None:
    weight = make_weight("int4", 16, 64)
    for order in (torch.zeros(64, dtype=torch.int64), torch.arange(64).int(), torch.arange(65)):
        with pytest.raises(ValueError, match="order: expected 0 to 63, each once"):
            replace(weight, order=order).validate()
    dense = make_weight("float32", 16, 64)
    with pytest.raises(ValueError, match="dense weight: expected no"):
        replace(dense, order=torch.arange(64)).validate()
    with pytest.raises(ValueError, match="int4 weight: expected rounds_x"):
        replace(weight, rounds_x=True).validate()
