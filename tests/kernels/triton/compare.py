"""How a kernel's output is compared with the fp32 reference."""

from __future__ import annotations

import torch

from kernels.weights import Weight


def assert_near(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Fail unless |actual - expected| / |expected| (root mean square) is within tolerance."""
    actual, expected = actual.detach().float().cpu(), expected.float().cpu()
    assert actual.shape == expected.shape
    assert torch.isfinite(actual).all(), "not every element was written"
    difference = actual - expected
    ratio = difference.square().mean().sqrt() / expected.square().mean().sqrt().clamp_min(1e-30)
    worst = difference.abs().max()
    assert ratio <= tolerance, f"RMS ratio {ratio:.3e} > {tolerance:.1e}, largest {worst:.3e}"
    # A single wrong element hides in the mean of many: bound it as well.
    bound = 40 * tolerance * expected.square().mean().sqrt()
    assert worst <= bound, f"largest difference {worst:.3e} > {bound:.3e}"


def int4_weight(rows: int, columns: int, group: int, minimum: bool = True) -> Weight:
    """A random INT4 weight with values of about 1 / sqrt(columns)."""
    data = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8)
    scale = (torch.rand(rows, columns // group) + 0.5) / (5 * columns**0.5)
    zero = torch.rand(rows, columns // group) * 3 + 6
    low = (-zero * scale).half() if minimum else None
    return Weight("int4", data, scale.half(), low, group)


def dense_weight(rows: int, columns: int) -> Weight:
    """A random bf16 weight."""
    return Weight("dense", (torch.randn(rows, columns) / columns**0.5).bfloat16())


def row_weight(kind: str, rows: int, columns: int) -> Weight:
    """A random INT8 or FP8 weight with one scale a row."""
    scale = (torch.rand(rows, 1) + 0.5) / columns**0.5
    if kind == "int8":
        data = torch.randint(-127, 128, (rows, columns), dtype=torch.int8)
        return Weight("int8", data, scale / 64, None, columns)
    return Weight("fp8", torch.randn(rows, columns).to(torch.float8_e4m3fn), scale, None, columns)
