"""A whole model on the card against the same model in fp32 on the CPU, random weights.

    python -m load_tests.gpu.check_model SHAPE KIND

Prefill of two prompts and a few forced decode steps; prints the relative error of the
logits and how often the likeliest token agrees. Exits 1 above the tolerance.
"""

from __future__ import annotations

import argparse
import sys

import torch

from engine.model.llama import CausalLM
from kernels.kv_cache import AttentionBatch, LayerCache
from load_tests.gpu.shapes import KINDS, SHAPES, RandomCheckpoint

BLOCK = 16
LENGTHS = (61, 200)
TOLERANCE = 0.03


class Replayed(RandomCheckpoint):
    """The same random weights each time they are asked for."""

    def layer(self, index: int):  # type: ignore[no-untyped-def]
        torch.manual_seed(100 + index)
        return super().layer(index)

    def _table(self, kind: str):  # type: ignore[no-untyped-def]
        torch.manual_seed(99)
        return super()._table(kind)


def logits(model: CausalLM, device: str, ids: list[torch.Tensor], num_steps: int) -> torch.Tensor:
    """Of every prompt's last token, and of `num_steps` forced tokens after it."""
    config = model.config
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    blocks = 16
    shape = (len(ids) * blocks, config.num_kv_heads, BLOCK, config.head_dim)
    caches = [
        LayerCache(
            torch.zeros(shape, dtype=dtype, device=device),
            torch.zeros(shape, dtype=dtype, device=device),
        )
        for _ in range(config.num_layers)
    ]
    tables = torch.randperm(len(ids) * blocks, generator=torch.Generator().manual_seed(0))
    tables = tables.int().view(len(ids), blocks)
    done = [0] * len(ids)
    out = []
    for step in range(num_steps + 1):
        lengths = [length if step == 0 else 1 for length in LENGTHS]
        tokens, positions, slots = [], [], []
        for row, length in enumerate(lengths):
            where = torch.arange(done[row], done[row] + length)
            tokens.append(ids[row][where])
            positions.append(where)
            slots.append(tables[row, where // BLOCK].long() * BLOCK + where % BLOCK)
            done[row] += length
        starts = torch.tensor([0, *lengths]).cumsum(0).int()
        batch = AttentionBatch(
            starts.to(device), torch.tensor(done, dtype=torch.int32, device=device),
            tables.to(device), max(lengths), max(done),
        )  # fmt: skip
        out.append(
            model.forward(
                torch.cat(tokens).to(device), torch.cat(positions).to(device),
                torch.cat(slots).to(device), batch, caches, (starts[1:] - 1).long().to(device),
            ).float().cpu()
        )  # fmt: skip
    return torch.cat(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--group", type=int, default=64)
    options = parser.parse_args()
    config = SHAPES[options.shape]
    checkpoint = Replayed(config, options.kind, options.kind, device="cpu", group=options.group)
    generator = torch.Generator().manual_seed(5)
    ids = [
        torch.randint(0, config.vocab_size, (length + 8,), generator=generator)
        for length in LENGTHS
    ]
    expected = logits(CausalLM(checkpoint, "cpu", "fp32"), "cpu", ids, 6)
    failed = False
    for compute in ("memory", "speed"):
        actual = logits(CausalLM(checkpoint, "cuda", compute), "cuda", ids, 6)
        error = float((actual - expected).norm() / expected.norm())
        agree = float((actual.argmax(1) == expected.argmax(1)).float().mean())
        failed |= not error < TOLERANCE
        print(
            f"{options.shape} {options.kind} g{options.group} {compute}: logits off by "
            f"{error:.2e}, likeliest token agrees in {agree:.0%} of {len(expected)}"
        )
    sys.exit(failed)


if __name__ == "__main__":
    main()
