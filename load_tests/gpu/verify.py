"""A step that checks drafts, by its graph and without one, beside a plain decode step.

    python -m load_tests.gpu.verify [--shape llama3-8b] [--kind int4] [--context 600]

Milliseconds of the runner's whole step, tensors made and tokens read back included; the
weights are random, so hardly a guess stands.
"""

from __future__ import annotations

import argparse
import statistics
import time
from types import SimpleNamespace

import torch

import engine.cuda_runner as subject
from engine.config import EngineConfig
from engine.contract import SamplingParams
from engine.cuda_runner import CudaRunner
from engine.model.llama import CausalLM
from engine.sequence import Sequence
from engine.step import StepPlan, Work
from load_tests.gpu.shapes import KINDS, SHAPES, RandomCheckpoint

BLOCK = 16


def sequences(count: int, context: int) -> list[Sequence]:
    """As many, `context` tokens long, each with blocks of its own."""
    blocks = -(-context // BLOCK) + 2
    return [
        Sequence(
            id=number,
            request=SimpleNamespace(
                sampling=SamplingParams(temperature=0.8), request_id=f"r{number}"
            ),
            tokens=[7] * context,
            num_prompt_tokens=context,
            max_tokens=context + 32,
            seed=number,
            end_ids=frozenset(),
            masked_ids=(),
            block_names=[],
            root_name=b"",
            stream=None,
            arrived_at=0.0,
            enqueued_at=0.0,
            block_table=list(range(number * blocks, (number + 1) * blocks)),
        )
        for number in range(count)
    ]


def step_ms(runner: CudaRunner, seqs: list[Sequence], draft_len: int) -> float:
    """Median of the runner's steps."""
    work = tuple(
        Work(seq, len(seq.tokens) - 1, 1, True, tuple(range(9, 9 + draft_len))) for seq in seqs
    )
    times = []
    for _ in range(20):
        started = time.perf_counter()
        runner.run(StepPlan(work))
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times[4:]) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="llama3-8b")
    parser.add_argument("--kind", choices=KINDS, default="int4")
    parser.add_argument("--context", type=int, default=600)
    options = parser.parse_args()
    model = CausalLM(RandomCheckpoint(SHAPES[options.shape], options.kind, "bf16"), "cuda")
    blocks = 16 * (-(-options.context // BLOCK) + 2)
    runner = CudaRunner(model, EngineConfig(num_blocks=blocks), "cuda", max_decode_steps=1)
    with_graphs = subject.graph_size
    for count in (1, 4, 16):
        seqs = sequences(count, options.context)
        plain = step_ms(runner, seqs, 0)
        for draft_len in (2, 4, 8):
            subject.graph_size = with_graphs
            graph = step_ms(runner, seqs, draft_len)
            subject.graph_size = lambda *_: None
            eager = step_ms(runner, seqs, draft_len)
            subject.graph_size = with_graphs
            print(
                f"{count:2d} sequences, drafts of {draft_len}: graph {graph:.2f} ms, eager "
                f"{eager:.2f} ms, plain step {plain:.2f} ms; {graph / plain:.2f} plain steps",
                flush=True,
            )


if __name__ == "__main__":
    main()
