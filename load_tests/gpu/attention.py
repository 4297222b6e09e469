"""Paged decode and prefill attention on the card: settings, bandwidth, and torch's SDPA beside.

python -m load_tests.gpu.attention [--sweep]
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.cuda import launch
from kernels.kv_cache import AttentionBatch, LayerCache
from kernels.paged_attention.triton import paged_attention
from load_tests.gpu.timing import read_bandwidth, time_chain

BLOCK = 16
HEAD_DIM = 128


def make(batch: int, queries: int, context: int, num_q: int, num_kv: int) -> tuple[Any, ...]:
    """q, caches of several layers (cold L2) and the batch."""
    blocks = -(-context // BLOCK)
    bytes_each = 2 * batch * blocks * num_kv * BLOCK * HEAD_DIM * 2
    layers = max(2, min(64, 500_000_000 // bytes_each))
    shape = (batch * blocks, num_kv, BLOCK, HEAD_DIM)
    caches = [
        LayerCache(
            torch.randn(shape, dtype=torch.bfloat16, device="cuda"),
            torch.randn(shape, dtype=torch.bfloat16, device="cuda"),
        )
        for _ in range(layers)
    ]
    tables = torch.randperm(batch * blocks, device="cuda").int().view(batch, blocks)
    q = torch.randn(batch * queries, num_q, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
    attention = AttentionBatch(
        torch.arange(0, batch * queries + 1, queries, dtype=torch.int32, device="cuda"),
        torch.full((batch,), context, dtype=torch.int32, device="cuda"), tables, queries, context,
    )  # fmt: skip
    return q, caches, attention


def decode_table(sweep: bool) -> None:
    """Microseconds a layer by batch, against the bytes of K and V."""
    ceiling = read_bandwidth()
    for num_q, num_kv, batch, context in (
        (32, 8, 1, 640), (32, 8, 8, 640), (32, 8, 32, 640), (32, 8, 128, 640), (32, 8, 1, 8192),
        (32, 32, 32, 640),
    ):  # fmt: skip
        q, caches, attention = make(batch, 1, context, num_q, num_kv)
        key = f"{num_kv}x{num_q // num_kv}x{HEAD_DIM},{batch}"
        table = launch.tuned_settings().setdefault("paged_attention_decode", {})
        default = table.get(key, {})
        splits = [
            s for s in (1, 2, 3, 4, 6, 8, 12, 16, 20, 24) if 100 <= s * batch * num_kv <= 1600
        ]
        tries = [default]
        if sweep:
            tries += [
                {"splits": s, "tile": t, "warps": w, "stages": st}
                for s, t, w, st in itertools.product(splits or [24], (64,), (4,), (1, 3))
            ]
        results = []
        for settings in tries:
            table[key] = settings
            with launch.overlapped_launches(batch == 1):
                calls = [
                    lambda c=c, q=q, a=attention: paged_attention(q, c, a, 0.09) for c in caches
                ]
                try:
                    results.append((time_chain(calls, 1, 5), settings))
                except Exception as error:
                    print("failed", settings, repr(error)[:100])
        table[key] = default
        results.sort(key=lambda result: result[0])
        size = 2 * batch * context * num_kv * HEAD_DIM * 2
        best = results[0]
        print(
            f"decode {key:14s} context {context:5d} {best[0]:7.2f} us {size / best[0] / 1e3:6.0f} "
            f"GB/s {size / best[0] / 1e3 / ceiling:5.1%} {best[1]} next {results[1:3]}",
            flush=True,
        )


def prefill_table(sweep: bool) -> None:
    """Microseconds and TFLOP/s of one prompt's attention, SDPA on contiguous tensors beside."""
    for context in (512, 4096):
        q, caches, attention = make(1, context, context, 32, 8)
        flops = 4 * context * context / 2 * HEAD_DIM * 32
        table = launch.tuned_settings().setdefault("paged_attention_prefill", {})
        default = table.get(str(HEAD_DIM), {})
        tries = [default]
        if sweep:
            tries += [
                {"rows": r, "tile": t, "warps": w, "stages": s}
                for r, t, w, s in itertools.product((128,), (64, 128), (4, 8), (2, 3))
            ]
        results = []
        for settings in tries:
            table[str(HEAD_DIM)] = settings
            calls = [
                lambda c=c, q=q, a=attention: paged_attention(q, c, a, 0.09) for c in caches[:4]
            ]
            try:
                results.append((time_chain(calls, 1, 5), settings))
            except Exception as error:
                print("failed", settings, repr(error)[:100])
        table[str(HEAD_DIM)] = default
        results.sort(key=lambda result: result[0])
        qs = q.transpose(0, 1).unsqueeze(0).contiguous()
        k = torch.randn(1, 8, context, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
        beside = []
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            with sdpa_kernel(backend):
                try:
                    sdpa = time_chain([lambda q=qs, k=k: _sdpa(q, k)], 3, 5)
                except RuntimeError as error:
                    beside.append(f"{backend.name} {repr(error)[:60]}")
                    continue
            beside.append(f"{backend.name} {sdpa:.1f} us {flops / sdpa / 1e6:.0f} TFLOP/s")
        best = results[0]
        print(
            f"prefill {context:5d} {best[0]:8.1f} us {flops / best[0] / 1e6:6.0f} TFLOP/s "
            f"{best[1]} next {results[1:3]}; {', '.join(beside)}",
            flush=True,
        )


def _sdpa(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, k, is_causal=True, enable_gqa=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", action="store_true")
    options = parser.parse_args()
    decode_table(options.sweep)
    prefill_table(options.sweep)


if __name__ == "__main__":
    main()
