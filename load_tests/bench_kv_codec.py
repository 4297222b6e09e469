"""Packs the default model's KV, real and random: ratio, speed, and that every bit comes back.

    python -m load_tests.bench_kv_codec [--model PATH] [--blocks 10000] [--kv-dtype bf16]

Half of the blocks are real: texts of this repository, in windows of 512 tokens, through
the model as served. The other half are random bits, which cannot shrink. Each is packed and
unpacked on one thread, as the host tier does, and compared; GB/s counts unpacked bytes and
the thread's own processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.models import resolve_model
from engine.kv_blocks import KV_DTYPES, block_shape, read_kv_blocks
from engine.kv_codec import KvCodec
from engine.loading import LoadedModel, load_model
from tests.engine.model.paged_run import PagedRun

ROOT = Path(__file__).parent.parent
BLOCK_SIZE, WINDOW = 16, 512
NUM_WARM_UP = 20


def token_windows(loaded: LoadedModel, seed: int) -> Iterator[list[int]]:
    """Windows of tokens: prose and code of this repository, again in another order at its end."""
    paths = sorted(
        path
        for pattern in ("docs/*.md", "*.md", "engine/*.py", "app/*/*.py", "web/*.js")
        for path in ROOT.glob(pattern)
    )
    random = np.random.default_rng(seed)
    while True:
        for index in random.permutation(len(paths)):
            tokens = loaded.tokenizer.encode(paths[index].read_text())
            offset = int(random.integers(0, BLOCK_SIZE))
            for begin in range(offset, len(tokens) - WINDOW, WINDOW):
                yield tokens[begin : begin + WINDOW]


def real_blocks(loaded: LoadedModel, dtype: torch.dtype) -> Iterator[np.ndarray]:
    """KV blocks of texts, as `engine.kv_blocks.read_kv_blocks` gives them."""
    for tokens in token_windows(loaded, seed=0):
        run = PagedRun(loaded.model, 1, WINDOW, kv_dtype=dtype)
        run.step([tokens])
        yield from read_kv_blocks(run.caches, list(range(WINDOW // BLOCK_SIZE)))


def random_blocks(shape: tuple[int, ...], itemsize: int) -> Iterator[np.ndarray]:
    random = np.random.default_rng(1)
    while True:
        yield random.integers(0, 256**itemsize, shape, dtype=f"u{itemsize}")


def measure(codec: KvCodec, blocks: Iterable[np.ndarray]) -> dict[str, float]:
    """Ratio and GB/s over all blocks but the first few, which warm the codec up.

    Raises:
        ValueError: a block came back with another bit.
    """
    count, packed_bytes, pack_s, unpack_s = 0, 0, 0.0, 0.0
    for bits in blocks:
        times = [time.thread_time()]
        packed = codec.pack(bits)
        times.append(time.thread_time())
        back = codec.unpack(packed)
        times.append(time.thread_time())
        if not np.array_equal(back, bits):
            raise ValueError(f"block {count} came back with another bit")
        count += 1
        if count > NUM_WARM_UP:
            pack_s, unpack_s = pack_s + times[1] - times[0], unpack_s + times[2] - times[1]
            packed_bytes += len(packed)
    num_bytes = (count - NUM_WARM_UP) * codec.block_bytes
    return {
        "blocks": count,
        "block_bytes": codec.block_bytes,
        "ratio": round(num_bytes / packed_bytes, 3),
        "pack_gb_per_s": round(num_bytes / pack_s / 1e9, 3),
        "unpack_gb_per_s": round(num_bytes / unpack_s / 1e9, 3),
    }


def main() -> int:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--blocks", type=int, default=10_000)
    parser.add_argument("--kv-dtype", choices=KV_DTYPES, default="bf16")
    options = parser.parse_args()
    if options.blocks < 4 * NUM_WARM_UP:
        parser.error(f"--blocks takes a number from {4 * NUM_WARM_UP}, got {options.blocks}")
    loaded = load_model(options.model or resolve_model("", Path(".data")).path)
    dtype = KV_DTYPES[options.kv_dtype]
    shape, itemsize = block_shape(loaded.config, BLOCK_SIZE, dtype)
    codec = KvCodec(shape, itemsize)
    half = options.blocks // 2
    result: dict[str, Any] = {
        "load_average": round(os.getloadavg()[0], 2),
        "kv_dtype": options.kv_dtype,
        "real": measure(codec, islice(real_blocks(loaded, dtype), half)),
        "random": measure(codec, islice(random_blocks(shape, itemsize), half)),
    }
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
