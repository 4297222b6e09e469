"""What the parts of a long prompt's layer take on the card, and what other ways would.

    python -m load_tests.gpu.prompt_parts [--tokens 4096]

llama3-8b's shapes, calls back to back in a CUDA graph over rotated weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.cuda.quantize_rows import quantize_rows, swiglu_rows
from kernels.cuda.swiglu import swiglu
from kernels.rms_norm.triton import rms_norm
from load_tests.gpu.timing import time_chain

HIDDEN, MLP, HEADS, KV_HEADS, DIM = 4096, 14336, 32, 8, 128
SHAPES = {
    "qkv": ((HEADS + 2 * KV_HEADS) * DIM, HIDDEN),
    "o": (HIDDEN, HEADS * DIM),
    "gate and up": (2 * MLP, HIDDEN),
    "down": (HIDDEN, MLP),
}
COPIES = 4


def show(name: str, calls: list[Callable[[], object]]) -> None:
    print(f"{name:44s} {time_chain(calls, repeats=2, rounds=6):8.1f} us", flush=True)


def products(tokens: int) -> None:
    """FP8 with a scale a row on both sides, one a tensor, and bf16."""
    one = torch.ones((), device="cuda")
    for name, (rows, columns) in SHAPES.items():
        x = torch.randn(tokens, columns, device="cuda").bfloat16()
        q, scale = quantize_rows(x, None, 0.0, "fp8")
        row_scale = torch.ones(1, rows, device="cuda")
        dense = [
            torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) for _ in range(COPIES)
        ]
        weights = [weight.to(torch.float8_e4m3fn) for weight in dense]
        fp8 = partial(torch._scaled_mm, out_dtype=torch.bfloat16, use_fast_accum=True)
        for kind, scales in (("row", (scale.unsqueeze(1), row_scale)), ("tensor", (one, one))):
            show(f"{name}, FP8 by {kind}", [partial(fp8, q, w.T, *scales) for w in weights])
        show(f"{name}, bf16", [partial(torch.mm, x, w.T) for w in dense])


def mlp(tokens: int) -> None:
    """Gate and up with SwiGLU, whole and in pieces whose product stays in the L2."""
    weights = [
        torch.randn(2 * MLP, HIDDEN, device="cuda", dtype=torch.bfloat16) for _ in range(COPIES)
    ]
    x = torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
    out = torch.empty(tokens, MLP, device="cuda", dtype=torch.bfloat16)

    def run(weight: torch.Tensor, size: int) -> None:
        for first in range(0, tokens, size):
            swiglu(torch.mm(x[first : first + size], weight.T), out[first : first + size])

    for size in (tokens, tokens // 2, tokens // 4, tokens // 8):
        show(f"gate, up, SwiGLU, {size} rows at once", [partial(run, w, size) for w in weights])


def attention(tokens: int) -> None:
    """The library's attention on contiguous tensors and on views of q, k, v in one matrix."""
    width = (HEADS + 2 * KV_HEADS) * DIM
    matrices = [torch.randn(tokens, width, device="cuda").bfloat16() for _ in range(COPIES)]

    def attend(qkv: torch.Tensor, copies: bool) -> torch.Tensor:
        heads = qkv.view(tokens, HEADS + 2 * KV_HEADS, DIM).transpose(0, 1).unsqueeze(0)
        parts = heads.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        if copies:
            parts = tuple(part.contiguous() for part in parts)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(
                *parts, is_causal=True, enable_gqa=True
            )

    show("attention, views of q, k, v", [partial(attend, m, False) for m in matrices])
    show("attention, copied first", [partial(attend, m, True) for m in matrices])


def passes(tokens: int) -> None:
    """What runs between the products."""
    norm = torch.ones(HIDDEN, device="cuda").bfloat16()
    xs = [torch.randn(tokens, HIDDEN, device="cuda").bfloat16() for _ in range(COPIES)]
    both = [torch.randn(tokens, 2 * MLP, device="cuda").bfloat16() for _ in range(COPIES)]
    out = torch.empty(tokens, MLP, device="cuda", dtype=torch.bfloat16)
    show("norm", [partial(rms_norm, x, norm, 1e-5) for x in xs])
    show("norm to FP8", [partial(quantize_rows, x, norm, 1e-5, "fp8") for x in xs])
    show("to FP8", [partial(quantize_rows, x, None, 1e-5, "fp8") for x in xs])
    show("x += product", [partial(x.add_, y) for x, y in pairwise(xs)])
    show("SwiGLU", [partial(swiglu, b, out) for b in both])
    show("SwiGLU to FP8", [partial(swiglu_rows, b) for b in both])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4096)
    options = parser.parse_args()
    for part in (products, mlp, attention, passes):
        part(options.tokens)


if __name__ == "__main__":
    main()
