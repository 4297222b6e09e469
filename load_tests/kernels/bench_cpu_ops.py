"""Times the CPU ops alone, and whole decode and prefill steps of a SmolLM2-135M-shaped model.

    python -m load_tests.kernels.bench_cpu_ops [--threads 2] [--compute int16] [--avx2]

Weights are random (INT4 by groups of 32 with minimums, an INT8 output layer tied to the
embedding), a set for each layer, so that they come from memory as in a real step. Times
are medians with the 20th and 80th percentile; GB/s counts weight and KV bytes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

import kernels
from kernels import native
from kernels.kv_cache import AttentionBatch, LayerCache
from kernels.native.build import build
from kernels.native.library import Library
from kernels.pack.cpu import COMPUTE, DEFAULT_COMPUTE
from kernels.weights import PackedWeight, Weight

HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, DIM, VOCABULARY = 576, 1536, 30, 9, 3, 64, 49152
BLOCK_SIZE = 16
EPS = 1e-5


def random_weight(kind: str, rows: int, columns: int) -> Weight:
    scale = (torch.rand(rows, columns // 32) * 0.01 + 0.005).half()
    if kind == "int4":
        data = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8)
        return Weight("int4", data, scale, (scale * -7.3).half(), 32)
    data = torch.randint(-127, 128, (rows, columns), dtype=torch.int8)
    return Weight("int8", data, (scale / 16).half(), None, 32)


@dataclass
class Layer:
    qkv: PackedWeight
    out: PackedWeight
    gate_up: PackedWeight
    down: PackedWeight
    cache: LayerCache


class Model:
    """The model's ops in order, without an engine around them."""

    def __init__(self, num_blocks: int, cache_dtype: torch.dtype, compute: str) -> None:
        def pack(kind: str, rows: int, columns: int) -> PackedWeight:
            return kernels.pack(random_weight(kind, rows, columns), "cpu", compute)

        self.norm = 1 + 0.1 * torch.randn(HIDDEN)
        self.rope = kernels.rope_table(10000.0 ** (-torch.arange(DIM // 2) / (DIM / 2)), 8192)
        self.head = pack("int8", VOCABULARY, HIDDEN)
        shape = (num_blocks, KV_HEADS, BLOCK_SIZE, DIM)
        self.layers = [
            Layer(
                pack("int4", (HEADS + 2 * KV_HEADS) * DIM, HIDDEN),
                pack("int4", HIDDEN, HIDDEN),
                pack("int4", 2 * FFN, HIDDEN),
                pack("int4", HIDDEN, FFN),
                LayerCache(torch.randn(shape).to(cache_dtype), torch.randn(shape).to(cache_dtype)),
            )
            for _ in range(LAYERS)
        ]

    @property
    def body_bytes(self) -> int:
        return sum(
            weight.nbytes
            for layer in self.layers
            for weight in (layer.qkv, layer.out, layer.gate_up, layer.down)
        )

    def step(self, ids: torch.Tensor, batch: AttentionBatch, last: torch.Tensor) -> torch.Tensor:
        """Logits of rows `last`."""
        positions, slots = positions_and_slots(batch)
        x = kernels.embedding(ids, self.head)
        for layer in self.layers:
            qkv = kernels.norm_linear(x, self.norm, EPS, layer.qkv)
            q = kernels.rope_kv_write(qkv, positions, self.rope, layer.cache, slots)
            y = kernels.paged_attention(q, layer.cache, batch, DIM**-0.5)
            kernels.linear_add(y, layer.out, x)
            y = kernels.norm_swiglu(x, self.norm, EPS, layer.gate_up)
            kernels.linear_add(y, layer.down, x)
        return kernels.norm_linear(x[last], self.norm, EPS, self.head)


def make_batch(query_lens: list[int], context: int) -> AttentionBatch:
    blocks = -(-context // BLOCK_SIZE)
    tables = torch.arange(blocks * len(query_lens), dtype=torch.int32).view(len(query_lens), -1)
    starts = torch.tensor([0, *query_lens]).cumsum(0).int()
    lens = torch.full((len(query_lens),), context, dtype=torch.int32)
    return AttentionBatch(starts, lens, tables, max(query_lens), context)


def positions_and_slots(batch: AttentionBatch) -> tuple[torch.Tensor, torch.Tensor]:
    positions, slots = [], []
    starts = batch.query_starts.tolist()
    for index, context in enumerate(batch.context_lens.tolist()):
        for position in range(context - (starts[index + 1] - starts[index]), context):
            block = int(batch.block_tables[index, position // BLOCK_SIZE])
            positions.append(position)
            slots.append(block * BLOCK_SIZE + position % BLOCK_SIZE)
    return torch.tensor(positions), torch.tensor(slots)


def measure(call: Callable[[int], object], seconds: float = 1.0) -> tuple[float, float, float]:
    """20th, 50th and 80th percentile of a call's time, seconds; `call` gets a running number."""
    for index in range(3):
        call(index)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 7 or time.perf_counter() < end:
        start = time.perf_counter()
        call(len(times))
        times.append(time.perf_counter() - start)
    low, middle, high = statistics.quantiles(times, n=10)[1::3][:3]
    return low, middle, high


def report(name: str, times: tuple[float, float, float], num_bytes: int, macs: int) -> None:
    low, middle, high = times
    rates = f"{num_bytes / middle / 1e9:7.1f} GB/s {macs / middle / 1e9:8.1f} GMAC/s"
    print(f"{name:34} {middle * 1e6:10.1f} us ({low * 1e6:.1f} .. {high * 1e6:.1f}) {rates}")


def bench_ops(model: Model, tokens: int, context: int) -> None:
    x, wide = torch.randn(tokens, HIDDEN), torch.randn(tokens, FFN)
    layers = model.layers
    first = layers[0]

    def layer(index: int) -> Layer:
        return layers[index % LAYERS]

    linears: list[tuple[str, Callable[[int], object], PackedWeight]] = [
        (
            "qkv",
            lambda i: kernels.norm_linear(x, model.norm, EPS, layer(i).qkv),
            first.qkv,
        ),
        ("out", lambda i: kernels.linear_add(x, layer(i).out, x), first.out),
        (
            "gate_up",
            lambda i: kernels.norm_swiglu(x, model.norm, EPS, layer(i).gate_up),
            first.gate_up,
        ),
        ("down", lambda i: kernels.linear_add(wide, layer(i).down, x), first.down),
        ("head", lambda i: kernels.norm_linear(x, model.norm, EPS, model.head), model.head),
    ]
    for name, call, weight in linears:
        # The residual must not grow without bound from call to call.
        x.normal_()
        report(
            f"{name} {tokens}x{weight.columns}x{weight.rows}",
            measure(call),
            weight.nbytes,
            tokens * weight.rows * weight.columns,
        )
    batch = make_batch([1] * tokens, context) if tokens <= 16 else make_batch([tokens], tokens)
    positions, slots = positions_and_slots(batch)
    qkv = torch.randn(tokens, (HEADS + 2 * KV_HEADS) * DIM)
    report(
        f"rope_kv_write {tokens}",
        measure(lambda i: kernels.rope_kv_write(qkv, positions, model.rope, layer(i).cache, slots)),
        qkv.nbytes,
        0,
    )
    q = torch.randn(tokens, HEADS, DIM)
    seen = sum((positions + 1).tolist())
    kv_bytes = 2 * KV_HEADS * DIM * first.cache.k.element_size()
    report(
        f"attention {tokens} x {batch.max_context_len}",
        measure(lambda i: kernels.paged_attention(q, layer(i).cache, batch, DIM**-0.5)),
        kv_bytes * int(batch.context_lens.sum()),
        2 * HEADS * DIM * seen,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=500, help="tokens, for decode")
    parser.add_argument("--compute", choices=tuple(COMPUTE), default=DEFAULT_COMPUTE)
    parser.add_argument("--avx2", action="store_true", help="the build for older processors")
    parser.add_argument("--fp32-cache", action="store_true")
    parser.add_argument("--steps-only", action="store_true")
    arguments = parser.parse_args()
    if arguments.avx2:
        library = Library(build(("-mno-avx512f", "-mno-avxvnni")))
        native._load = lambda: (library, "")
    native.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    dtype = torch.float32 if arguments.fp32_cache else torch.bfloat16
    blocks = max(16 * -(-arguments.context // BLOCK_SIZE), 64)
    model = Model(blocks, dtype, arguments.compute)
    print(
        native.status(),
        f"body {model.body_bytes / 1e6:.1f} MB, head {model.head.nbytes / 1e6:.1f} MB",
    )
    if not arguments.steps_only:
        for tokens in (1, 8, 512):
            bench_ops(model, tokens, arguments.context)
    results: dict[str, float] = {}
    for batch_size in (1, 2, 4, 8, 16):
        batch = make_batch([1] * batch_size, arguments.context)
        ids, last = torch.randint(0, VOCABULARY, (batch_size,)), torch.arange(batch_size)
        times = measure(lambda _: model.step(ids, batch, last), 3.0)  # noqa: B023
        report(f"decode step, batch {batch_size}", times, model.body_bytes + model.head.nbytes, 0)
        results[f"decode_{batch_size}_ms"] = round(times[1] * 1e3, 3)
    for length in (64, 512):
        batch = make_batch([length], length)
        ids, last = torch.randint(0, VOCABULARY, (length,)), torch.tensor([length - 1])
        times = measure(lambda _: model.step(ids, batch, last), 3.0)  # noqa: B023
        report(f"prefill {length}: {length / times[1]:.0f} tok/s", times, 0, 0)
        results[f"prefill_{length}_tokens_per_s"] = round(length / times[1], 1)
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
