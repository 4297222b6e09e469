"""RMSNorm on CUDA."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from kernels.checks import expect
from kernels.cuda.launch import overlap_options


@triton.jit
def _rms_norm_kernel(
    x_ptr, norm_ptr, out_ptr, x_stride, out_stride, eps, K: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    inside = k < K
    norm = tl.load(norm_ptr + k, mask=inside, other=0.0).to(tl.float32)
    if PDL:
        gdc_wait()
    x = tl.load(x_ptr + row * x_stride + k, mask=inside, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x) / K + eps)
    out = (x * inverse * norm).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * out_stride + k, out, mask=inside)


def rms_norm(x: torch.Tensor, norm: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm of x [T, K] with weights [K]; a new tensor of x's dtype."""
    expect("norm", norm, [x.shape[1]], [torch.bfloat16, torch.float32])
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    columns = x.shape[1]
    block = triton.next_power_of_2(columns)
    _rms_norm_kernel[(x.shape[0],)](
        x, norm, out, x.stride(0), out.stride(0), eps, columns, block,
        num_warps=min(8, max(1, block // 512)), **overlap_options(),
    )  # fmt: skip
    return out
