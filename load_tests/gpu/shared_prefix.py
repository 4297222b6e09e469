"""Chats on one system prompt: attention that reads it once, against once a chat.

    python -m load_tests.gpu.shared_prefix layer [--sweep]
    python -m load_tests.gpu.shared_prefix step [--kind int4] [--kv bf16]
    python -m load_tests.gpu.shared_prefix dtypes

`layer`: microseconds of one layer's attention, and how far the outputs are apart. `step`:
a whole decode step (forward and greedy choice) in one CUDA graph, tokens a second. Both
with all chats' tables beginning with the same blocks; without the kernel, these come from
L2 for all chats but the first. `dtypes`: decode and prefill attention by KV dtype.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
import time

import numpy as np
import torch

import engine.loading  # noqa: F401 - before engine.model, which it imports back
from engine.kv_blocks import KV_DTYPES
from engine.model.llama import CausalLM
from engine.shared_prefix import fill_tiles, find_groups, num_tiles, tile_sequences
from kernels.cuda import launch
from kernels.cuda.launch import overlapped_launches
from kernels.kv_cache import AttentionBatch, LayerCache, SharedPrefix
from kernels.paged_attention.triton import paged_attention
from kernels.rope_kv_write.reference import quantize
from load_tests.gpu.shapes import SHAPES, RandomCheckpoint
from load_tests.gpu.timing import replay_times, time_chain

BLOCK = 16


def make_tables(rows: int, prefix: int, tail: int) -> torch.Tensor:
    """int32 [rows, blocks]: `prefix` tokens in the same blocks, `tail` in each row's own."""
    shared, own = prefix // BLOCK, -(-tail // BLOCK)
    order = torch.randperm(shared + rows * own).int()
    tables = order[shared:].view(rows, own)
    return torch.cat((order[:shared].expand(rows, shared), tables), 1).contiguous()


def make_batch(rows: int, prefix: int, tail: int, group: int) -> AttentionBatch:
    """A decode step over `make_tables`, with its shared prefix."""
    tables = make_tables(rows, prefix, tail)
    tiles = np.zeros((num_tiles(rows, group), tile_sequences(group)), np.int32)
    lens, row_lens = np.zeros(len(tiles), np.int32), np.zeros(rows, np.int32)
    limits = [(prefix + tail - 1) // BLOCK] * rows
    started = time.perf_counter()
    groups = find_groups(tables.numpy(), limits, 1)
    fill_tiles(groups, BLOCK, tiles, lens, row_lens)
    took = time.perf_counter() - started
    print(f"{rows} chats: groups found in {took * 1e6:.0f} us, {(lens > 0).sum()} tiles")
    shared = SharedPrefix(*(torch.from_numpy(part).cuda() for part in (tiles, lens, row_lens)))
    context = torch.full((rows,), prefix + tail, dtype=torch.int32, device="cuda")
    starts = torch.arange(rows + 1, dtype=torch.int32, device="cuda")
    return AttentionBatch(starts, context, tables.cuda(), 1, prefix + tail, shared)


def make_caches(
    num_blocks: int, num_kv: int, head_dim: int, layers: int, dtype: torch.dtype
) -> list[LayerCache]:
    """Random KV."""
    shape = (num_blocks, num_kv, BLOCK, head_dim)
    caches = []
    for _ in range(layers):
        k, v = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        if dtype is not torch.bfloat16:
            (k, k_scale), (v, v_scale) = quantize(k.float(), dtype), quantize(v.float(), dtype)
            caches.append(LayerCache(k, v, k_scale, v_scale))
        else:
            caches.append(LayerCache(k, v))
    return caches


def attention_us(q: torch.Tensor, caches: list[LayerCache], batch: AttentionBatch) -> float:
    scale = q.shape[-1] ** -0.5
    return time_chain([lambda c=c: paged_attention(q, c, batch, scale) for c in caches], 1, 7)


def layer_table(sweep: bool) -> None:
    """One layer's attention with and without sharing, by batch and length."""
    num_q, num_kv, dim = 32, 8, 128
    for rows, prefix, tail in ((64, 4096, 256), (16, 4096, 256), (64, 1024, 256), (4, 1024, 256)):
        batch = make_batch(rows, prefix, tail, num_q // num_kv)
        apart = dataclasses.replace(batch, shared=None)
        q = torch.randn(rows, num_q, dim, dtype=torch.bfloat16, device="cuda")
        for name in ("bf16", "int8", "fp8") if rows == 64 else ("bf16",):
            num_blocks = int(batch.block_tables.max()) + 1
            caches = make_caches(num_blocks, num_kv, dim, 8, KV_DTYPES[name])
            one = paged_attention(q, caches[0], apart, dim**-0.5).float()
            other = paged_attention(q, caches[0], batch, dim**-0.5).float()
            error = ((one - other).square().mean().sqrt() / one.square().mean().sqrt()).item()
            without, shared = (attention_us(q, caches, part) for part in (apart, batch))
            print(
                f"{rows:3d} chats, prefix {prefix}, tail {tail}, {name}: apart {without:7.1f} us, "
                f"shared {shared:6.1f} us, {without / shared:5.2f}x, differ by {error:.1e}",
                flush=True,
            )
            if sweep and (rows, prefix, name) == (64, 4096, "bf16"):
                _sweep(q, caches, batch, f"{num_kv}x{num_q // num_kv}x{dim},{rows}")


def _sweep(q: torch.Tensor, caches: list[LayerCache], batch: AttentionBatch, key: str) -> None:
    table = launch.tuned_settings().setdefault("paged_attention_prefix", {})
    results = []
    for splits, tile, warps, stages in itertools.product(
        (4, 8, 16), (64, 128), (4, 8), (2,)
    ):  # fmt: skip
        table[key] = {"splits": splits, "tile": tile, "warps": warps, "stages": stages}
        try:
            results.append((round(attention_us(q, caches, batch), 1), table[key]))
        except Exception as error:
            print("failed", table[key], repr(error)[:80])
    table.pop(key)
    results.sort(key=lambda result: result[0])
    print("   best", results[:4], flush=True)


def step_table(shape: str, kind: str, kv: str) -> None:
    """A whole decode step of a batch, tokens a second with and without sharing."""
    config = SHAPES[shape]
    model = CausalLM(RandomCheckpoint(config, kind, "bf16"), "cuda")
    group = config.num_heads // config.num_kv_heads
    for rows, prefix in ((64, 4096), (16, 4096), (64, 1024)):
        batch = make_batch(rows, prefix, 256, group)
        num_blocks = int(batch.block_tables.max()) + 1
        caches = make_caches(
            num_blocks, config.num_kv_heads, config.head_dim, config.num_layers, KV_DTYPES[kv]
        )
        without = _step_us(model, caches, dataclasses.replace(batch, shared=None))
        shared = _step_us(model, caches, batch)
        print(
            f"{shape} {kind}, KV {kv}, {rows} chats on {prefix} tokens: "
            f"{rows * 1e6 / without:7.0f} tok/s apart, {rows * 1e6 / shared:7.0f} shared, "
            f"{without / shared:.2f}x ({without:.0f} and {shared:.0f} us a step)",
            flush=True,
        )


def _step_us(model: CausalLM, caches: list[LayerCache], batch: AttentionBatch) -> float:
    rows, last = len(batch.context_lens), batch.max_context_len - 1
    positions = torch.full((rows,), last, dtype=torch.int64, device="cuda")
    slots = batch.block_tables[:, last // BLOCK].long() * BLOCK + last % BLOCK
    ids = torch.randint(0, model.config.vocab_size, (rows,), device="cuda")
    wanted = torch.arange(rows, device="cuda")

    def step() -> torch.Tensor:
        return model.forward(ids, positions, slots, batch, caches, wanted).argmax(dim=-1)

    with overlapped_launches(rows < 64):
        step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
    return statistics.median(replay_times(graph, 12)) * 1000


def dtype_table() -> None:
    """Decode and prefill attention by KV dtype."""
    num_q, num_kv, dim = 32, 8, 128
    for rows, queries, context in (
        (1, 1, 640), (1, 1, 8192), (8, 1, 8192), (32, 1, 640), (128, 1, 640), (1, 2048, 2048),
    ):  # fmt: skip
        times = {}
        for name, dtype in KV_DTYPES.items():
            blocks = -(-context // BLOCK)
            layers = max(2, min(40, 500_000_000 // (rows * context * num_kv * dim * 4)))
            caches = make_caches(rows * blocks, num_kv, dim, layers, dtype)
            q = torch.randn(rows * queries, num_q, dim, dtype=torch.bfloat16, device="cuda")
            starts = torch.arange(0, rows * queries + 1, queries, dtype=torch.int32, device="cuda")
            lens = torch.full((rows,), context, dtype=torch.int32, device="cuda")
            tables = torch.randperm(rows * blocks, device="cuda").int().view(rows, blocks)
            batch = AttentionBatch(starts, lens, tables, queries, context)
            with overlapped_launches(rows < 64):
                times[name] = attention_us(q, caches, batch)
        parts = ", ".join(
            f"{name} {micros:.1f} us ({times['bf16'] / micros:.2f}x)"
            for name, micros in times.items()
        )
        print(f"{rows} x {queries} queries, context {context}: {parts}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("layer", "step", "dtypes"))
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--shape", choices=SHAPES, default="llama3-8b")
    parser.add_argument("--kind", default="int4")
    parser.add_argument("--kv", choices=KV_DTYPES, default="bf16")
    options = parser.parse_args()
    if options.part == "layer":
        layer_table(options.sweep)
    elif options.part == "step":
        step_table(options.shape, options.kind, options.kv)
    else:
        dtype_table()


if __name__ == "__main__":
    main()
