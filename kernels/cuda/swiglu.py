"""SwiGLU of a finished product, for row counts whose product is a library's."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _swiglu_kernel(gate_up_ptr, out_ptr, F, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_up_ptr + row * 2 * F + i, mask=i < F, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * F + F + i, mask=i < F, other=0.0).to(tl.float32)
    out = up * gate / (1.0 + tl.exp(-gate))
    tl.store(out_ptr + row * F + i, out.to(out_ptr.dtype.element_ty), mask=i < F)


def swiglu(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """out [T, F] = silu(g) * u of [g, u] = gate_up [T, 2 F], both contiguous."""
    rows, columns = gate_up.shape
    block = min(2048, triton.next_power_of_2(columns // 2))
    grid = (rows, triton.cdiv(columns // 2, block))
    _swiglu_kernel[grid](gate_up, out, columns // 2, block, num_warps=max(1, block // 256))
