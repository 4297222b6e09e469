"""One decode step under a CUDA graph: forward and greedy choice, nothing of the engine.

    python -m load_tests.gpu.decode_step SHAPE KIND [--head KIND] [--batches 1,8,32]

Prints microseconds a step and tokens a second at one context length.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

import engine.loading  # noqa: F401 - before engine.model, which it imports back
from engine.model.llama import CausalLM
from kernels.cuda.launch import overlapped_launches
from kernels.kv_cache import AttentionBatch, LayerCache
from load_tests.gpu.shapes import KINDS, SHAPES, RandomCheckpoint
from load_tests.gpu.timing import machine, replay_times

BLOCK = 16


def make_caches(model: CausalLM, num_blocks: int) -> list[LayerCache]:
    """Random KV blocks for every layer."""
    c = model.config
    shape = (num_blocks, c.num_kv_heads, BLOCK, c.head_dim)
    return [
        LayerCache(
            torch.randn(shape, dtype=torch.bfloat16, device="cuda"),
            torch.randn(shape, dtype=torch.bfloat16, device="cuda"),
        )
        for _ in range(c.num_layers)
    ]


def step_time(model: CausalLM, caches: list[LayerCache], batch: int, context: int) -> float:
    """Microseconds of one decode step."""
    blocks = -(-context // BLOCK)
    tables = torch.randperm(batch * blocks, device="cuda").int().view(batch, blocks)
    positions = torch.full((batch,), context - 1, dtype=torch.int64, device="cuda")
    slots = (tables[:, -1].long() * BLOCK + (context - 1) % BLOCK).contiguous()
    ids = torch.randint(0, model.config.vocab_size, (batch,), device="cuda")
    attention = AttentionBatch(
        torch.arange(batch + 1, dtype=torch.int32, device="cuda"),
        torch.full((batch,), context, dtype=torch.int32, device="cuda"), tables, 1, context,
    )  # fmt: skip
    rows = torch.arange(batch, device="cuda")

    def step() -> torch.Tensor:
        logits = model.forward(ids, positions, slots, attention, caches, rows)
        return logits.argmax(dim=-1)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    times = replay_times(graph, 20)
    assert torch.isfinite(out.float()).all()
    return statistics.median(times) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--head", default="bf16")
    parser.add_argument("--group", type=int, default=128)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--context", type=int, default=640)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    started = time.perf_counter()
    checkpoint = RandomCheckpoint(
        SHAPES[options.shape], options.kind, options.head, group=options.group
    )
    model = CausalLM(checkpoint, "cuda")
    torch.cuda.synchronize()
    loaded = time.perf_counter() - started
    batches = [int(part) for part in options.batches.split(",")]
    caches = make_caches(model, max(batches) * -(-options.context // BLOCK))
    rows = []
    for batch in batches:
        for overlap in (False, True):
            with overlapped_launches(overlap):
                micros = step_time(model, caches, batch, options.context)
            rows.append({"batch": batch, "overlap": overlap, "us": round(micros, 1)})
            print(
                f"{options.shape} {options.kind} head {options.head} batch {batch:3d} "
                f"{'overlap' if overlap else '       '} {micros:8.1f} us "
                f"{batch * 1e6 / micros:9.1f} tok/s",
                flush=True,
            )
    print(f"packed in {loaded:.1f} s, weights {model.weight_bytes / 1e9:.2f} GB")
    if options.out:
        result = {"machine": machine(), **vars(options), "rows": rows}
        options.out.write_text(json.dumps(result, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
