"""The CUDA linear ops against the fp32 reference."""

from __future__ import annotations

import pytest
import torch

from kernels.linear_add import reference as linear_add_reference
from kernels.norm_linear import reference as norm_linear_reference
from kernels.norm_swiglu import reference as norm_swiglu_reference
from kernels.weights import Weight
from tests.kernels.triton.compare import assert_near, dense_weight, int4_weight, row_weight

EPS = 1e-5
INT4_SHAPES = [(48, 64, 32), (80, 576, 32), (112, 320, 64), (64, 512, 128), (32, 512, 256)]


def pack(weight: Weight, device: torch.device, compute: str = "memory"):
    from kernels.pack.triton import pack as pack_triton

    return pack_triton((weight,), device, compute)


@pytest.mark.parametrize(("rows", "columns", "group"), INT4_SHAPES)
@pytest.mark.parametrize("num_tokens", [1, 2, 7, 17])
def test_int4_norm_linear(
    device: torch.device, dtype: torch.dtype, rows: int, columns: int, group: int, num_tokens: int
) -> None:
    from kernels.norm_linear.triton import norm_linear

    weight = int4_weight(rows, columns, group, minimum=num_tokens != 2)
    x = torch.randn(num_tokens, columns).to(dtype)
    norm = torch.rand(columns).to(dtype) + 0.5
    bias = torch.randn(rows).to(dtype) if num_tokens == 7 else None
    expected = norm_linear_reference.norm_linear(x, norm, EPS, weight, bias)
    actual = norm_linear(
        x.to(device), norm.to(device), EPS, pack(weight, device),
        None if bias is None else bias.to(device),
    )  # fmt: skip
    assert_near(actual, expected, 8e-3)


@pytest.mark.parametrize("num_tokens", [1, 3, 33, 70])
def test_int4_linear_add_with_strided_rows(
    device: torch.device, dtype: torch.dtype, num_tokens: int
) -> None:
    from kernels.linear_add.triton import linear_add

    weight = int4_weight(96, 320, 32)
    x = torch.randn(num_tokens, 336).to(dtype)[:, :320]
    wide = torch.randn(num_tokens, 112).to(dtype)
    residual = wide[:, :96]
    expected = residual.float()
    linear_add_reference.linear_add(x, weight, expected)
    moved = wide.to(device)
    actual = moved[:, :96]
    strided = torch.zeros(num_tokens, 336, dtype=dtype, device=device)
    strided[:, :320] = x.to(device)
    linear_add(strided[:, :320], pack(weight, device), actual)
    assert_near(actual, expected, 8e-3)
    assert torch.equal(moved[:, 96:].cpu(), wide[:, 96:]), "wrote past the residual"


@pytest.mark.parametrize("num_tokens", [1, 5, 16])
@pytest.mark.parametrize("half", [32, 64, 192])
def test_int4_norm_swiglu(
    device: torch.device, dtype: torch.dtype, num_tokens: int, half: int
) -> None:
    from kernels.norm_swiglu.triton import norm_swiglu

    weight = int4_weight(2 * half, 256, 128)
    x = torch.randn(num_tokens, 256).to(dtype) * 3
    norm = torch.rand(256).to(dtype) + 0.5
    expected = norm_swiglu_reference.norm_swiglu(x, norm, EPS, weight)
    actual = norm_swiglu(x.to(device), norm.to(device), EPS, pack(weight, device))
    assert_near(actual, expected, 1.2e-2)


@pytest.mark.parametrize("kind", ["dense", "int8", "fp8"])
@pytest.mark.parametrize("num_tokens", [1, 6])
@pytest.mark.parametrize(("rows", "columns"), [(1, 64), (37, 576), (130, 100)])
def test_row_weights(
    device: torch.device, dtype: torch.dtype, kind: str, num_tokens: int, rows: int, columns: int
) -> None:
    from kernels.linear_add.triton import linear_add
    from kernels.norm_linear.triton import norm_linear
    from kernels.norm_swiglu.triton import norm_swiglu

    weight = dense_weight(rows, columns) if kind == "dense" else row_weight(kind, rows, columns)
    packed = pack(weight, device)
    x = torch.randn(num_tokens, columns).to(dtype)
    norm = torch.rand(columns).to(dtype) + 0.5
    expected = norm_linear_reference.norm_linear(x, norm, EPS, weight)
    actual = norm_linear(x.to(device), norm.to(device), EPS, packed)
    assert_near(actual, expected, 8e-3)
    residual = torch.randn(num_tokens, rows).to(dtype)
    expected = residual.float()
    linear_add_reference.linear_add(x, weight, expected)
    moved = residual.to(device)
    linear_add(x.to(device), packed, moved)
    assert_near(moved, expected, 8e-3)
    if rows % 2 == 0:
        expected = norm_swiglu_reference.norm_swiglu(x, norm, EPS, weight)
        actual = norm_swiglu(x.to(device), norm.to(device), EPS, packed)
        assert_near(actual, expected, 1.2e-2)


def test_dense_copy_serves_many_rows(device: torch.device, dtype: torch.dtype) -> None:
    from kernels.norm_linear.triton import norm_linear

    weight = int4_weight(48, 128, 64)
    packed = pack(weight, device, "speed")
    assert packed.matrix is not None
    x = torch.randn(100, 128).to(dtype)
    expected = norm_linear_reference.norm_linear(x, None, EPS, weight)
    assert_near(norm_linear(x.to(device), None, EPS, packed), expected, 8e-3)


def test_wrong_arguments_are_named(device: torch.device) -> None:
    from kernels.norm_linear.triton import norm_linear

    packed = pack(int4_weight(32, 64, 32), device)
    with pytest.raises(ValueError, match=r"x: expected .* got"):
        norm_linear(torch.zeros(1, 65, dtype=torch.bfloat16, device=device), None, EPS, packed)
    with pytest.raises(ValueError, match="int4 group"):
        pack(int4_weight(8, 48, 24), device)


# The row counts, widths and settings of real models, which only a card runs in time.
CARD_SHAPES = [
    (6144, 4096, 128, False), (4096, 14336, 128, False), (28672, 4096, 128, True),
    (12288, 4096, 128, False), (4096, 11008, 128, False), (22016, 4096, 128, True),
    (960, 576, 32, False), (576, 1536, 32, False), (3072, 576, 32, True), (128, 4096, 64, False),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "columns", "group", "gated"), CARD_SHAPES)
def test_int4_of_real_shapes_on_the_card(
    device: torch.device, dtype: torch.dtype, rows: int, columns: int, group: int, gated: bool
) -> None:
    from kernels.cuda.linear import linear

    if device.type == "cpu":
        rows, columns = rows // 32 // 32 * 32 or 32, min(columns, 1024)
    weight = int4_weight(rows, columns, group)
    packed = pack(weight, device)
    matrix = weight.dequantize().to(device)
    norm = (torch.rand(columns) + 0.5).to(dtype).to(device)
    for num_tokens in (1, 2, 8, 9, 31, 64, 127) if device.type == "cuda" else (1, 9):
        x = torch.randn(num_tokens, columns).to(dtype).to(device)
        residual = torch.randn(num_tokens, rows).to(dtype).to(device)
        normed = x.float() * torch.rsqrt(x.float().square().mean(1, keepdim=True) + EPS)
        normed = (normed * norm.float()).to(dtype).float()
        product = normed @ matrix.T
        if gated:
            gate, up = product.chunk(2, dim=1)
            expected = torch.nn.functional.silu(gate) * up
            actual = linear(x, norm, EPS, packed, gated=True)
        else:
            expected = product + residual.float()
            actual = linear(x, norm, EPS, packed, residual=residual)
        assert_near(actual, expected, 1e-2 if gated else 6e-3)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("columns", "group"), [(512, 32), (512, 64), (1088, 64), (768, 256)])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_one_row_by_either_kind_of_operand(
    device: torch.device,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
    half: bool,
    gated: bool,
    columns: int,
    group: int,
    size: float,
) -> None:
    """Operands of float16 hold x of any size, and values far apart in one row."""
    from kernels.cuda import linear

    monkeypatch.setattr(linear, "tuned", lambda op, key: {"half": half})
    weight = int4_weight(96, columns, group)
    x = (torch.randn(1, columns) * (1 if gated else size)).to(dtype)
    x[0, 7] *= 300
    norm = (torch.rand(columns) + 0.5).to(dtype) if gated else None
    packed = pack(weight, device)
    moved = None if norm is None else norm.to(device)
    actual = linear.linear(x.to(device), moved, EPS, packed, gated=gated)
    if norm is None:
        expected = x.float() @ weight.dequantize().T
    else:
        expected = norm_swiglu_reference.norm_swiglu(x, norm, EPS, weight)
    assert_near(actual, expected, 1.2e-2)
