"""The linear ops against their references, and the same bits whatever the batch."""

from __future__ import annotations

import pytest
import torch

import kernels
from kernels.linear_add import reference as linear_add_reference
from kernels.native.library import Library
from kernels.norm_linear import reference as norm_linear_reference
from kernels.norm_swiglu import reference as norm_swiglu_reference
from kernels.weights import Weight
from tests.kernels.samples import assert_close, make_weight, random

EPS = 1e-5
# Largest RMS ratio of the error by `compute`.
TOLERANCE = {"fp32": 2e-6, "int16": 5e-5, "int8": 1.2e-2}
EXACT = TOLERANCE["fp32"]

# kind, group, minimum, scale dtype
QUANTIZED = [
    ("int4", 32, True, torch.float16),
    ("int4", 32, False, torch.float16),
    ("int4", 64, True, torch.float32),
    ("int4", 128, False, torch.float32),
    ("int8", 32, False, torch.float16),
    ("int8", 16, False, torch.float32),
    ("int8", 16, True, torch.float16),
    ("int8", 64, True, torch.float32),
    ("int8", 128, False, torch.float16),
]
DENSE = ["float32", "bfloat16", "float16"]
# Dense weights take float32 activations always.
CASES = [
    *((case, compute) for case in QUANTIZED for compute in TOLERANCE),
    *((dtype, "fp32") for dtype in DENSE),
]


def quantized(case: tuple[str, int, bool, torch.dtype], rows: int, columns: int) -> Weight:
    kind, group, minimum, dtype = case
    return make_weight(
        kind, rows, columns, group=group, minimum=minimum, scale_dtype=dtype, seed=rows
    )


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """New tensors start as NaN, so that an element left unwritten shows."""
    empty = torch.empty

    def filled(*args: object, **kwargs: object) -> torch.Tensor:
        tensor = empty(*args, **kwargs)
        return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", filled)


@pytest.mark.parametrize("compute", TOLERANCE)
@pytest.mark.parametrize("case", QUANTIZED, ids=str)
def test_norm_linear_of_quantized_weights(
    backend: str,
    case: tuple[str, int, bool, torch.dtype],
    compute: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    poison(monkeypatch)
    for rows, columns, tokens in [(1, 128, 1), (37, 384, 7), (64, 640, 19)]:
        weight = quantized(case, rows, columns)
        packed = kernels.pack(weight, "cpu", compute)
        x, norm = random(tokens, columns), 1 + 0.1 * random(columns)
        bias = random(rows)
        got = kernels.norm_linear(x, norm, EPS, packed, bias)
        wanted = norm_linear_reference.norm_linear(x, norm, EPS, weight, bias)
        assert_close(got, wanted, TOLERANCE[compute])


@pytest.mark.parametrize("dtype", DENSE)
def test_norm_linear_of_dense_weights(backend: str, dtype: str) -> None:
    for rows, columns, tokens in [(1, 1, 1), (17, 45, 9), (48, 96, 3)]:
        weight = make_weight(dtype, rows, columns)
        x, norm = random(tokens, columns), random(columns)
        got = kernels.norm_linear(x, norm, EPS, kernels.pack(weight, "cpu"))
        assert_close(got, norm_linear_reference.norm_linear(x, norm, EPS, weight), EXACT)


def test_fp8_weights_are_exact(backend: str) -> None:
    weight = make_weight("fp8", 33, 256, group=128)
    x = random(3, 256)
    got = kernels.norm_linear(x, None, 0.0, kernels.pack(weight, "cpu"))
    assert_close(got, norm_linear_reference.norm_linear(x, None, 0.0, weight), EXACT)


@pytest.mark.parametrize("compute", TOLERANCE)
def test_a_minimum_of_minus_eight_scales_needs_no_memory(compiled: Library, compute: str) -> None:
    weight = make_weight("int4", 40, 192)
    assert weight.scale is not None
    centred = Weight("int4", weight.data, weight.scale, weight.scale * -8, 32)
    packed = kernels.pack(centred, "cpu", compute)
    x = random(5, 192)
    wanted = norm_linear_reference.norm_linear(x, None, 0.0, centred)
    got = kernels.norm_linear(x, None, 0.0, packed)
    assert_close(got, wanted, TOLERANCE[compute])
    # 40 rows are padded to 48.
    assert packed.nbytes == 48 * 192 // 2 + 48 * 6 * 2


def test_int4_stays_int4_in_memory(compiled: Library) -> None:
    packed = kernels.pack(make_weight("int4", 64, 256, minimum=True), "cpu")
    assert packed.nbytes == 64 * 256 // 2 + 2 * 64 * 8 * 2


def test_strided_rows(backend: str) -> None:
    weight = make_weight("int4", 32, 64, minimum=True)
    wide = random(6, 160)
    residual = random(6, 96, seed=3)
    view, out = wide[:, 32:96], residual.clone()
    packed = kernels.pack(weight, "cpu", "fp32")
    kernels.linear_add(view, packed, out[:, 64:])
    wanted = residual.clone()
    linear_add_reference.linear_add(view, weight, wanted[:, 64:])
    assert_close(out, wanted, EXACT)
    assert torch.equal(out[:, :64], residual[:, :64])
    got = kernels.norm_linear(view, None, 0.0, packed)
    assert_close(got, norm_linear_reference.norm_linear(view, None, 0.0, weight), EXACT)


@pytest.mark.parametrize("case", QUANTIZED[:1] + QUANTIZED[4:6], ids=str)
def test_linear_add(backend: str, case: tuple[str, int, bool, torch.dtype]) -> None:
    weight = quantized(case, 50, 256)
    x, residual, bias = random(9, 256), random(9, 50, seed=5), random(50)
    wanted = residual.clone()
    linear_add_reference.linear_add(x, weight, wanted, bias)
    for compute, tolerance in TOLERANCE.items():
        got = residual.clone()
        kernels.linear_add(x, kernels.pack(weight, "cpu", compute), got, bias)
        assert_close(got, wanted, tolerance)


@pytest.mark.parametrize("width", [32, 21])
@pytest.mark.parametrize("kind", ["int4", "int8", "bfloat16"])
def test_norm_swiglu(backend: str, kind: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)
    weight = make_weight(kind, 2 * width, 192, minimum=True)
    x, norm = random(11, 192), 1 + 0.1 * random(192)
    wanted = norm_swiglu_reference.norm_swiglu(x, norm, EPS, weight)
    for compute, tolerance in TOLERANCE.items():
        got = kernels.norm_swiglu(x, norm, EPS, kernels.pack(weight, "cpu", compute))
        assert_close(got, wanted, 2 * tolerance)


def test_silu_at_its_ends(compiled: Library) -> None:
    weight = Weight("dense", torch.cat((torch.eye(16), torch.ones(16, 16) / 16)))
    x = torch.tensor([[-1e30, -200.0, -90.0, -1.0, 0.0, 1.0, 90.0, 200.0, *[0.0] * 8]])
    got = kernels.norm_swiglu(x, None, 0.0, kernels.pack(weight, "cpu"))
    wanted = torch.nn.functional.silu(x) * (x / 16).sum()
    assert torch.isfinite(got[:, 1:]).all()
    assert_close(got[:, 1:], wanted[:, 1:], 1e-5)


def test_parts_of_different_kinds_are_stacked(backend: str) -> None:
    parts = [
        make_weight("int4", 33, 256, minimum=True),
        make_weight("int8", 20, 256, group=16, scale_dtype=torch.float32),
        make_weight("bfloat16", 5, 256),
    ]
    packed = kernels.pack(parts, "cpu", "fp32")
    x, bias = random(4, 256), random(58)
    values = Weight("dense", torch.cat([part.dequantize() for part in parts]))
    assert (packed.rows, packed.columns) == (58, 256)
    got = kernels.norm_linear(x, None, 0.0, packed, bias)
    assert_close(got, norm_linear_reference.norm_linear(x, None, 0.0, values, bias), EXACT)
    got = kernels.norm_swiglu(x, None, 0.0, packed)
    assert_close(got, norm_swiglu_reference.norm_swiglu(x, None, 0.0, values), EXACT)
    rows = kernels.embedding(torch.tensor([0, 32, 33, 52, 53, 57]), packed)
    assert torch.equal(rows, values.data[[0, 32, 33, 52, 53, 57]])


def test_parts_of_one_kind_become_one_matrix(compiled: Library) -> None:
    parts = [make_weight("int4", rows, 128, minimum=True, seed=rows) for rows in (24, 8, 8)]
    packed = kernels.pack(parts, "cpu")
    assert len(packed.segments) == 1
    x = random(2, 128)
    whole = kernels.pack(Weight.concatenate(parts), "cpu")
    assert torch.equal(
        kernels.norm_linear(x, None, 0.0, packed), kernels.norm_linear(x, None, 0.0, whole)
    )


# Batch invariance


@pytest.mark.parametrize(("case", "compute"), CASES, ids=str)
def test_a_row_has_the_same_bits_in_any_batch(
    compiled: Library, case: tuple[str, int, bool, torch.dtype] | str, compute: str
) -> None:
    weight = make_weight(case, 70, 256) if isinstance(case, str) else quantized(case, 70, 256)
    packed = kernels.pack(weight, "cpu", compute)
    gated = kernels.pack(weight, "cpu", compute)
    x, norm = random(150, 256), 1 + 0.1 * random(256)
    alone = torch.cat([kernels.norm_linear(row[None], norm, EPS, packed) for row in x])
    gated_alone = torch.cat([kernels.norm_swiglu(row[None], norm, EPS, gated) for row in x])
    added_alone = torch.ones(150, 70)
    for row, out in zip(x, added_alone, strict=True):
        kernels.linear_add(row[None], packed, out[None])
    for rows in (1, 2, 3, 5, 6, 7, 8, 17, 64, 150):
        part = x[-rows:].clone()
        assert torch.equal(kernels.norm_linear(part, norm, EPS, packed), alone[-rows:])
        assert torch.equal(kernels.norm_swiglu(part, norm, EPS, gated), gated_alone[-rows:])
        added = torch.ones(rows, 70)
        kernels.linear_add(part, packed, added)
        assert torch.equal(added, added_alone[-rows:])


def test_bits_do_not_depend_on_the_number_of_threads(compiled: Library) -> None:
    packed = kernels.pack(make_weight("int4", 1000, 256, minimum=True), "cpu")
    x, norm = random(40, 256), random(256)
    results = []
    for count in (1, 2, 5):
        compiled.set_num_threads(count)
        results.append(kernels.norm_linear(x, norm, EPS, packed))
    compiled.set_num_threads(2)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize(("case", "compute"), CASES, ids=str)
def test_bits_do_not_depend_on_the_instruction_set(
    native_library: Library,
    avx2_library: Library,
    case: tuple[str, int, bool, torch.dtype] | str,
    compute: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kernels import native

    weight = make_weight(case, 96, 384) if isinstance(case, str) else quantized(case, 96, 384)
    packed = kernels.pack(weight, "cpu", compute)
    x, norm = random(5, 384), 1 + 0.1 * random(384)
    results = []
    for library in (native_library, avx2_library):
        monkeypatch.setattr(native, "_load", lambda library=library: (library, ""))
        results.append(kernels.norm_swiglu(x, norm, EPS, packed))
    assert torch.equal(*results)


@pytest.mark.parametrize("compute", TOLERANCE)
def test_an_all_zero_row_gives_zeros(compiled: Library, compute: str) -> None:
    packed = kernels.pack(make_weight("int4", 32, 64, minimum=True), "cpu", compute)
    assert torch.equal(
        kernels.norm_linear(torch.zeros(2, 64), None, 0.0, packed), torch.zeros(2, 32)
    )


@pytest.mark.parametrize("compute", ["int16", "int8"])
def test_a_block_too_small_for_a_scale_is_zeros(compiled: Library, compute: str) -> None:
    packed = kernels.pack(make_weight("int4", 32, 64, minimum=True), "cpu", compute)
    x = torch.full((1, 64), 1e-37)
    assert torch.equal(kernels.norm_linear(x, None, 0.0, packed), torch.zeros(1, 32))


@pytest.mark.parametrize("compute", ["int16", "int8"])
@pytest.mark.parametrize("group", [16, 32])
def test_the_largest_products_do_not_overflow(compiled: Library, group: int, compute: str) -> None:
    data = torch.tensor([127, -128, 127, -128], dtype=torch.int8)[:, None].expand(4, 64)
    weight = Weight("int8", data.contiguous(), torch.ones(4, 64 // group), None, group)
    packed = kernels.pack(weight, "cpu", compute)
    x = torch.tensor([[1.0], [-1.0]]).expand(2, 64).contiguous()
    got = kernels.norm_linear(x, None, 0.0, packed)
    assert_close(got, x @ data.float().T, 1e-6)


def test_int16_keeps_small_values_beside_a_large_one(compiled: Library) -> None:
    """Each within half a step of the largest / 32767."""
    values = torch.cat((torch.tensor([-100.0]), random(31).flatten()))
    identity = Weight("int8", torch.eye(32, dtype=torch.int8), torch.ones(32, 1), None, 32)
    got = kernels.norm_linear(values[None], None, 0.0, kernels.pack(identity, "cpu", "int16"))
    assert (got[0] - values).abs().max() <= 1.001 * 100 / 32767 / 2


def test_no_rows(backend: str) -> None:
    packed = kernels.pack(make_weight("int4", 32, 64), "cpu")
    assert kernels.norm_linear(torch.empty(0, 64), None, 0.0, packed).shape == (0, 32)


# Refusals


def test_wrong_arguments_are_named(backend: str) -> None:
    packed = kernels.pack(make_weight("int4", 32, 64), "cpu")
    x = torch.zeros(2, 64)
    with pytest.raises(ValueError, match=r"x: expected float32 \[any, 64\], got float32 \[2, 63\]"):
        kernels.norm_linear(torch.zeros(2, 63), None, 0.0, packed)
    with pytest.raises(ValueError, match=r"x: expected float32 .* got bfloat16"):
        kernels.norm_linear(x.bfloat16(), None, 0.0, packed)
    with pytest.raises(ValueError, match="x: expected stride 1"):
        kernels.norm_linear(torch.zeros(64, 2).T, None, 0.0, packed)
    with pytest.raises(ValueError, match=r"norm: expected float32 \[64\], got float32 \[32\]"):
        kernels.norm_linear(x, torch.zeros(32), 0.0, packed)
    with pytest.raises(ValueError, match=r"bias: expected float32 \[32\]"):
        kernels.norm_linear(x, None, 0.0, packed, torch.zeros(64))
    with pytest.raises(ValueError, match=r"residual: expected float32 \[2, 32\]"):
        kernels.linear_add(x, packed, torch.zeros(3, 32))
    with pytest.raises(ValueError, match="gate_up: expected an even number of rows, got 31"):
        kernels.norm_swiglu(x, None, 0.0, kernels.pack(make_weight("int4", 31, 64), "cpu"))
