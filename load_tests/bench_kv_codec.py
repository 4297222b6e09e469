"""Packs the default model's real KV: ratio, speed, and that every bit comes back.

    python -m load_tests.bench_kv_codec [--model PATH] [--text FILE] [--rounds 5]

Prefills a text, reads its KV blocks out of the pool (bfloat16) and packs and unpacks each
on one thread, as the host tier does. GB/s counts unpacked bytes; the best round of each
counts. Random blocks, which cannot shrink, are packed for comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.models import resolve_model
from engine.config import EngineConfig
from engine.contract import GenerateRequest, Message, SamplingParams, Tier
from engine.engine import Engine
from engine.kv_codec import KvCodec
from engine.loading import load_model
from engine.runner import CpuRunner

NUM_BLOCKS = 128


def real_blocks(model: Path, text: str) -> list[np.ndarray]:
    """KV blocks of a text, each [layers, 2, KV heads, block size, head dim], bfloat16 bits."""
    loaded = load_model(model)
    config = EngineConfig(num_blocks=NUM_BLOCKS)
    runner = CpuRunner(loaded.model, config, torch.bfloat16)
    engine = Engine(
        config,
        card=loaded.card,
        runner=runner,
        vocabulary=loaded.tokenizer,
        encode_chat=loaded.chat_template.encode,
    )
    request = GenerateRequest(
        request_id="bench",
        model=loaded.card.id,
        messages=(Message("user", text),),
        sampling=SamplingParams(max_tokens=16, seed=1),
        tier=Tier.STANDARD,
        tenant="bench",
        conversation_id=None,
        reply_to="",
        created_at=time.time(),
        deadline_at=time.time() + 600,
    )
    prepared = engine.prepare(request)
    engine.add(prepared)
    while engine.has_work():
        engine.step()
    return runner.read_blocks(engine.scheduler.blocks.match(prepared.block_names))


def best_s(work: Callable[[], Any], rounds: int) -> float:
    """Shortest time of some rounds, seconds."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def measure(blocks: list[np.ndarray], rounds: int) -> dict[str, float]:
    """Ratio and GB/s over all blocks.

    Raises:
        ValueError: a block came back with another bit.
    """
    codec = KvCodec(blocks[0].shape, blocks[0].itemsize)
    packed = [codec.pack(bits) for bits in blocks]
    for bits, small in zip(blocks, packed, strict=True):
        if not np.array_equal(codec.unpack(small), bits):
            raise ValueError("a block came back with another bit")
    num_bytes = len(blocks) * codec.block_bytes
    pack_s = best_s(lambda: [codec.pack(bits) for bits in blocks], rounds)
    unpack_s = best_s(lambda: [codec.unpack(small) for small in packed], rounds)
    return {
        "blocks": len(blocks),
        "block_bytes": codec.block_bytes,
        "ratio": round(num_bytes / sum(map(len, packed)), 3),
        "pack_gb_per_s": round(num_bytes / pack_s / 1e9, 3),
        "unpack_gb_per_s": round(num_bytes / unpack_s / 1e9, 3),
    }


def main() -> int:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--text", type=Path, default=Path(__file__).parent.parent / "docs/wire.md")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    model = options.model or resolve_model("", Path(".data")).path
    text = options.text.read_text()[:6000]
    real = real_blocks(model, text)
    rng = np.random.default_rng(0)
    random = [rng.integers(0, 2**16, real[0].shape, dtype=np.uint16) for _ in range(20)]
    result = {
        "load_average": round(os.getloadavg()[0], 2),
        "real": measure(real, options.rounds),
        "random": measure(random, options.rounds),
    }
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
