"""INT8 and FP8 products, activations rounded to 8 or 16 bits, against the fp32 reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.linear_add import reference as linear_add_reference
from kernels.norm_linear import reference as norm_linear_reference
from kernels.norm_swiglu import reference as norm_swiglu_reference
from kernels.weights import Weight
from tests.kernels.triton.compare import assert_near, row_weight
from tests.kernels.triton.conftest import DEVICE

EPS = 1e-5
# Rows, columns, and the columns that share a scale.
SHAPES = [(1, 64, 64), (37, 576, 576), (66, 100, 100), (34, 384, 128), (32, 192, 64)]
# Sums in another order; on the card outputs are bf16 as well.
TOLERANCE = 2e-5 if DEVICE == "cpu" else 6e-3


def pack(weight: Weight, device: torch.device):
    from kernels.pack.triton import pack as pack_triton

    return pack_triton((weight,), device, "memory")


def grouped(weight: Weight, group: int, rounds_x: bool) -> Weight:
    """The weight with scales of its own for each group of columns."""
    scale = weight.scale * (torch.rand(weight.rows, weight.columns // group) + 0.5)
    return replace(weight, scale=scale, group=group, rounds_x=rounds_x)


def met_by(x: torch.Tensor, norm: torch.Tensor | None, weight: Weight) -> torch.Tensor:
    """What the weight meets: RMSNorm(x), rounded as the kernels round it."""
    from kernels.cuda.byte_linear import rounding_of
    from kernels.cuda.quantize_rows import quantize_rows

    rounding = rounding_of(pack(weight, x.device))
    if rounding is None or len(x) == 1:
        return norm_linear_reference.rms_norm(x, norm, EPS)
    q, scale = quantize_rows(x, norm, EPS, rounding)
    return whole(q, len(x)) * scale.unsqueeze(1)


def whole(q: torch.Tensor, rows: int) -> torch.Tensor:
    """The numbers of `rows` rows, of which INT16 has two bytes apart."""
    return q.float() if len(q) == rows else 256 * q[:rows].float() + q[rows:].float()


@pytest.mark.parametrize("kind", ["int8", "int16", "fp8"])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(1, 64), (5, 576), (3, 100), (2, 1537)])
def test_rows_are_rounded(
    device: torch.device, dtype: torch.dtype, kind: str, normed: bool, rows: int, columns: int
) -> None:
    from kernels.cuda.quantize_rows import LIMITS, quantize_rows

    wide = torch.randn(rows, columns + 8).to(dtype)
    wide[0, 0] = 40.0
    x = wide[:, :columns].to(device)
    norm = (torch.rand(columns) + 0.5).to(dtype).to(device) if normed else None
    q, scale = quantize_rows(x, norm, EPS, kind)  # type: ignore[arg-type]
    exact = norm_linear_reference.rms_norm(x, norm, EPS)
    assert_near(scale, exact.abs().amax(1) / LIMITS[kind], 1e-5)
    assert len(q) == rows * (2 if kind == "int16" else 1)
    q = whole(q, rows)
    assert q.abs().amax(1).tolist() == [LIMITS[kind]] * rows
    error = (q * scale.unsqueeze(1) - exact).abs()
    if kind != "fp8":
        # Half a step, and what float32 loses of a 16-bit number before it is rounded.
        step = 0.51 * scale.unsqueeze(1)
    else:
        # Half a step of three mantissa bits.
        step = (exact.abs() * 2**-4).clamp_min(2**-10 * scale.unsqueeze(1)) * 1.001
    assert bool((error <= step).all())
    if kind == "fp8" and not normed:
        wanted = x.float() * (LIMITS["fp8"] / x.float().abs().amax(1, keepdim=True))
        assert torch.equal(q, wanted.clamp(-448, 448).to(torch.float8_e4m3fn).float())


@pytest.mark.parametrize("kind", ["int8", "int16", "fp8"])
def test_rows_of_zeros_have_no_scale(device: torch.device, dtype: torch.dtype, kind: str) -> None:
    from kernels.cuda.quantize_rows import quantize_rows

    x = torch.zeros(2, 64, dtype=dtype, device=device)
    x[1, 3] = 1.0
    q, scale = quantize_rows(x, None, EPS, kind)  # type: ignore[arg-type]
    q = whole(q, 2)
    assert scale[0] == 0.0 and q[0].abs().sum() == 0.0
    assert float(q[1].sum() * scale[1]) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("rounds_x", [False, True])
@pytest.mark.parametrize(("rows", "columns", "group"), SHAPES)
@pytest.mark.parametrize("num_tokens", [1, 19])
def test_products(
    device: torch.device, dtype: torch.dtype, kind: str, rounds_x: bool, rows: int, columns: int,
    group: int, num_tokens: int,
) -> None:  # fmt: skip
    from kernels.linear_add.triton import linear_add
    from kernels.norm_linear.triton import norm_linear
    from kernels.norm_swiglu.triton import norm_swiglu

    weight = grouped(row_weight(kind, rows, columns), group, rounds_x)
    packed = pack(weight, device)
    assert (packed.kind, packed.group, packed.rounds_x) == (kind, group, rounds_x)
    assert packed.dense is None
    x = torch.randn(num_tokens, columns).to(dtype).to(device)
    norm = (torch.rand(columns) + 0.5).to(dtype).to(device)
    bias = torch.randn(rows).to(dtype).to(device)
    met = met_by(x, norm, weight).cpu()
    expected = norm_linear_reference.norm_linear(met, None, EPS, weight, bias.cpu())
    assert_near(norm_linear(x, norm, EPS, packed, bias), expected, TOLERANCE)
    if rows % 2 == 0:
        expected = norm_swiglu_reference.norm_swiglu(met, None, EPS, weight)
        assert_near(norm_swiglu(x, norm, EPS, packed), expected, 2 * TOLERANCE)
    wide = torch.randn(num_tokens, rows + 16).to(dtype).to(device)
    before = wide.clone()
    expected = before[:, :rows].float().cpu()
    linear_add_reference.linear_add(met_by(x, None, weight).cpu(), weight, expected)
    linear_add(x, packed, wide[:, :rows])
    assert_near(wide[:, :rows], expected, TOLERANCE)
    assert torch.equal(wide[:, rows:], before[:, rows:]), "wrote past the residual"


@pytest.mark.parametrize(("kind", "rounds_x"), [("int8", True), ("int8", False), ("fp8", True)])
@pytest.mark.parametrize(("gated", "group"), [(False, 640), (True, 128)])
def test_parts_of_k_add_up(
    device: torch.device, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, kind: str,
    rounds_x: bool, gated: bool, group: int,
) -> None:  # fmt: skip
    from kernels.cuda import byte_linear
    from kernels.cuda.linear import linear
    from kernels.cuda.scratch import tickets

    tile = byte_linear.Tile(16, 32, 128, split=3, warps=4, stages=3)
    monkeypatch.setattr(byte_linear, "dot_tile", lambda *_: tile)
    weight = grouped(row_weight(kind, 96, 640), group, rounds_x)
    packed = pack(weight, device)
    x = torch.randn(21, 640).to(dtype).to(device)
    met = met_by(x, None, weight).cpu()
    reference = norm_swiglu_reference.norm_swiglu if gated else norm_linear_reference.norm_linear
    expected = reference(met, None, EPS, weight)
    for _ in range(2):
        assert_near(linear(x, None, EPS, packed, gated=gated), expected, 2 * TOLERANCE)
    assert int(tickets(device, 64).abs().sum()) == 0


@pytest.mark.parametrize("num_tokens", [1, 9])
def test_fp8_on_a_card_without_fp8(
    device: torch.device, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, num_tokens: int
) -> None:
    """Every byte of e4m3 that is a number, decoded in the kernel."""
    from kernels.cuda import byte_linear
    from kernels.cuda.linear import linear

    monkeypatch.setattr(byte_linear, "multiplies", lambda kind: False)
    values = torch.arange(256, dtype=torch.uint8).repeat(2, 1).view(torch.float8_e4m3fn)
    values = torch.where(values.isnan(), torch.zeros(()), values.float())
    scale = torch.tensor([[0.5], [2.0]])
    weight = Weight("fp8", values.to(torch.float8_e4m3fn), scale, None, 256, rounds_x=True)
    x = torch.randn(num_tokens, 256).to(dtype).to(device)
    expected = norm_linear_reference.norm_linear(x.cpu(), None, EPS, weight)
    assert_near(linear(x, None, EPS, pack(weight, device)), expected, TOLERANCE)


def test_kinds_of_rounding_do_not_share_a_matrix(device: torch.device) -> None:
    from kernels.pack.triton import pack as pack_triton

    precise = row_weight("int8", 16, 64)
    packed = pack_triton((precise, replace(precise, rounds_x=True)), device, None)
    assert packed.kind == "bf16"
    stacked = pack_triton((precise, precise), device, None)
    assert (stacked.kind, stacked.rows, stacked.rounds_x) == ("int8", 32, False)
    assert stacked.dense is None


# Row counts and widths of real models, which only a card runs in time:
# (rows, columns, columns that share a scale, gated).
CARD_SHAPES = [
    (6144, 4096, 4096, False), (4096, 14336, 14336, False), (28672, 4096, 4096, True),
    (4096, 4096, 128, False), (28672, 4096, 128, True), (960, 576, 64, False),
    (3072, 576, 576, True),
] if DEVICE == "cuda" else [(32, 160, 160, False), (32, 192, 64, True)]  # fmt: skip
CARD_TOKENS = (1, 2, 8, 31, 64, 127, 300, 520) if DEVICE == "cuda" else (1, 17)


@pytest.mark.parametrize(("kind", "rounds_x"), [("int8", True), ("int8", False), ("fp8", True)])
@pytest.mark.parametrize(("rows", "columns", "group", "gated"), CARD_SHAPES)
def test_real_shapes_on_the_card(
    device: torch.device, dtype: torch.dtype, kind: str, rounds_x: bool, rows: int, columns: int,
    group: int, gated: bool,
) -> None:  # fmt: skip
    from kernels.cuda.linear import linear

    weight = grouped(row_weight(kind, rows, columns), group, rounds_x).to(device)
    packed = pack(weight, device)
    matrix = weight.dequantize()
    norm = (torch.rand(columns) + 0.5).to(dtype).to(device)
    for num_tokens in CARD_TOKENS:
        # Of a size that float16 does not hold, as the residual stream's may be.
        x = (torch.randn(num_tokens, columns) * 3e5).to(dtype).to(device)
        product = met_by(x, norm, weight) @ matrix.T
        if gated:
            gate, up = product.chunk(2, dim=1)
            assert_near(
                linear(x, norm, EPS, packed, gated=True),
                torch.nn.functional.silu(gate) * up, 2 * TOLERANCE,
            )  # fmt: skip
            continue
        residual = torch.randn(num_tokens, rows).to(dtype).to(device)
        expected = product + residual.float()
        assert_near(linear(x, norm, EPS, packed, residual=residual), expected, TOLERANCE)
        x *= 1e-9
        expected = met_by(x, None, weight) @ matrix.T
        assert_near(linear(x, None, EPS, packed), expected, TOLERANCE)


def test_embedding_rows_of_grouped_bytes(device: torch.device) -> None:
    from kernels.embedding.triton import embedding

    weight = grouped(row_weight("int8", 40, 192), 64, False)
    ids = torch.tensor([3, 39, 0], device=device)
    found = embedding(ids, pack(weight, device))
    assert_near(found, weight.dequantize()[ids.cpu()], 8e-3)


@pytest.mark.parametrize("num_tokens", [2, 40])
def test_library_products_from_one_to_the_next(
    device: torch.device, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, num_tokens: int
) -> None:
    """The MLP of FP8 in one go, and as its two ops."""
    from kernels.cuda import byte_linear
    from kernels.cuda.linear import linear
    from kernels.mlp_add import triton as fused

    monkeypatch.setattr(byte_linear, "library_rows", lambda *_: 2)
    monkeypatch.setattr(fused, "library_rows", lambda *_: 2)
    gate_up = replace(row_weight("fp8", 192, 64), rounds_x=True)
    down = replace(row_weight("fp8", 64, 96), rounds_x=True)
    packed = pack(gate_up, device), pack(down, device)
    wide = torch.randn(num_tokens, 80).to(dtype).to(device)
    x = wide[:, :64]
    norm = (torch.rand(64) + 0.5).to(dtype).to(device)
    assert fused.fits(x, *packed)
    met = met_by(x, norm, gate_up).cpu()
    gated = norm_swiglu_reference.norm_swiglu(met, None, EPS, gate_up)
    assert_near(linear(x, norm, EPS, packed[0], gated=True), gated, 1e-2)
    expected = x.float().cpu()
    met = met_by(gated.to(device), None, down).cpu()
    linear_add_reference.linear_add(met, down, expected)
    apart = x.clone()
    linear(linear(x, norm, EPS, packed[0], gated=True), None, EPS, packed[1], None, apart)
    fused.mlp_add(x, norm, EPS, *packed)
    # Rounding to FP8 again what differs by a bf16's last bit moves some of it by a step.
    assert_near(x, expected, 2e-2)
    assert_near(apart, expected, 2e-2)
    with pytest.raises(ValueError, match="down: expected 96 columns"):
        fused.mlp_add(x, norm, EPS, packed[0], pack(row_weight("fp8", 64, 32), device))


def test_what_goes_as_two_ops(device: torch.device, dtype: torch.dtype) -> None:
    from kernels.mlp_add import triton as fused

    x = torch.zeros(300, 64, dtype=dtype, device=device)
    for kind, rounds_x in (("int8", True), ("fp8", False)):
        gate_up = pack(replace(row_weight(kind, 192, 64), rounds_x=rounds_x), device)
        down = pack(replace(row_weight(kind, 64, 96), rounds_x=rounds_x), device)
        assert not fused.fits(x, gate_up, down)
