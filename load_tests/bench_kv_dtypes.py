"""What KV in 8 bits costs the default model: quality, memory, and speed with a long context.

    python -m load_tests.bench_kv_dtypes [--model PATH] [--text FILE ...] [--tokens 6144]
        [--threads 2] [--skip-speed]

Quality is against float32 KV under the same weights and exact activations (compute fp32),
over the conversations of the exactness test: RMS of the centred logits' error, share of
positions with the same first choice, and greedy answers of 50 prompts by 64 tokens, each
token chosen after the float32 answer so far. Perplexity is of the texts in windows of 2,048
tokens, each token but the first 64 of a window counted. Speed is of attention alone, one
layer, and of whole decode steps as served (compute int16).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import kernels
from app.models import resolve_model
from engine.kv_blocks import kv_bytes_per_token
from engine.loading import LoadedModel, load_model
from engine.worker.build import set_threads
from kernels.kv_cache import KV_DTYPES, AttentionBatch, LayerCache
from kernels.rope_kv_write.reference import quantize
from tests.engine.model.paged_run import PagedRun, all_logits

ROOT = Path(__file__).parent.parent
FIXTURE = ROOT / "tests/engine/model/greedy_fixture.json"
WINDOW, UNCOUNTED = 2048, 64
NAMES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.int8: "int8",
    torch.float8_e4m3fn: "fp8",
}


def logits_error(loaded: LoadedModel, dtype: torch.dtype, cases: list[Any]) -> dict[str, float]:
    """RMS ratio of the centred logits, and share of positions whose first choice stays."""
    squares = torch.zeros(2, dtype=torch.float64)
    agreed: list[torch.Tensor] = []
    for case in cases[2:18:2]:
        tokens = case["prompt"] + case["answer"]
        wanted = all_logits(loaded.model, tokens)
        found = all_logits(loaded.model, tokens, dtype)
        centred = wanted - wanted.mean(-1, keepdim=True)
        error = found - found.mean(-1, keepdim=True) - centred
        squares += torch.stack((error.square().sum(), centred.square().sum())).double()
        agreed.append((wanted.argmax(-1) == found.argmax(-1)).float())
    return {
        "positions": sum(map(len, agreed)),
        "logits_rms": squares[0].div(squares[1]).sqrt().item(),
        "top1": torch.cat(agreed).mean().item(),
    }


def greedy_changes(loaded: LoadedModel, dtype: torch.dtype, cases: list[Any]) -> int:
    """Tokens of all answers that are chosen otherwise."""
    longest = max(len(case["prompt"]) for case in cases)
    run = PagedRun(loaded.model, len(cases), longest + 64, kv_dtype=dtype)
    logits = run.step([case["prompt"] for case in cases])
    changed = 0
    for place in range(64):
        chosen = logits.argmax(-1).tolist()
        answers = [case["answer"][place] for case in cases]
        changed += sum(token != answer for token, answer in zip(chosen, answers, strict=True))
        logits = run.step([[token] for token in answers])
    return changed


def perplexity(loaded: LoadedModel, dtype: torch.dtype, tokens: list[int]) -> float:
    """e to the mean negative log-likelihood of the counted tokens."""
    total, count = 0.0, 0
    for begin in range(0, len(tokens) - UNCOUNTED - 1, WINDOW):
        window = tokens[begin : begin + WINDOW]
        scores = all_logits(loaded.model, window, dtype).log_softmax(-1)
        following = torch.tensor(window[1:])
        chosen = scores[:-1].gather(1, following[:, None])[UNCOUNTED:, 0]
        total -= chosen.double().sum().item()
        count += len(chosen)
    return math.exp(total / count)


def best_us(call: Callable[[int], object], seconds: float = 0.5) -> float:
    """The time that a fifth of the calls stay below, microseconds."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 10:
        started = time.perf_counter()
        call(len(times))
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 5] * 1e6


def random_cache(num_blocks: int, dtype: torch.dtype) -> LayerCache:
    k, v = (torch.randn(num_blocks, 3, 16, 64) for _ in range(2))
    if dtype in (torch.float32, torch.bfloat16):
        return LayerCache(k.to(dtype), v.to(dtype))
    (k, k_scale), (v, v_scale) = quantize(k, dtype), quantize(v, dtype)
    return LayerCache(k, v, k_scale, v_scale)


def attention_us(dtype: torch.dtype, rows: int, context: int, shared: int = 0) -> float:
    """Decode attention of one layer; caches of many layers in turn, as in a real step.

    Args:
        dtype: Of the KV.
        rows: Sequences.
        context: Tokens each.
        shared: Of them, in the same blocks for all.
    """
    blocks, same = -(-context // 16), shared // 16
    num_blocks = same + rows * (blocks - same)
    caches = [random_cache(num_blocks, dtype) for _ in range(12)]
    own = torch.arange(same, num_blocks, dtype=torch.int32).view(rows, -1)
    leading = torch.arange(same, dtype=torch.int32).expand(rows, same)
    batch = AttentionBatch(
        torch.arange(rows + 1, dtype=torch.int32),
        torch.full((rows,), context, dtype=torch.int32),
        torch.cat((leading, own), 1).contiguous(),
        1,
        context,
    )
    q = torch.randn(rows, 9, 64)
    return best_us(lambda i: kernels.paged_attention(q, caches[i % len(caches)], batch, 0.125))


def step_us(loaded: LoadedModel, dtype: torch.dtype, rows: int, context: int) -> float:
    """One decode step of the whole model, all sequences at one context."""
    run = PagedRun(loaded.model, rows, context + 200, kv_dtype=dtype)
    for begin in range(0, context, 512):
        run.step([[100 + row] * min(512, context - begin) for row in range(rows)])
    return best_us(lambda i: run.step([[500 + i % 50]] * rows) if i < 190 else None, 2.0)


def speed(loaded: LoadedModel, dtype: torch.dtype) -> dict[str, float]:
    return {
        "attention_1x4096_us": round(attention_us(dtype, 1, 4096), 1),
        "attention_1x8192_us": round(attention_us(dtype, 1, 8000), 1),
        "attention_8x2048_us": round(attention_us(dtype, 8, 2048), 1),
        "attention_8x1200_own_us": round(attention_us(dtype, 8, 1200), 1),
        "attention_8x1200_of_which_1008_shared_us": round(attention_us(dtype, 8, 1200, 1008), 1),
        "step_1x4096_tok_s": round(1e6 / step_us(loaded, dtype, 1, 4096), 1),
        "step_8x1024_tok_s": round(8e6 / step_us(loaded, dtype, 8, 1024), 1),
    }


def main() -> int:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    texts = [ROOT / "docs" / name for name in ("architecture.md", "wire.md", "cases.md")]
    parser.add_argument("--text", type=Path, nargs="+", default=texts)
    parser.add_argument("--tokens", type=int, default=6144)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--skip-speed", action="store_true")
    parser.add_argument("--skip-quality", action="store_true")
    options = parser.parse_args()
    set_threads(options.threads)
    path = options.model or resolve_model("", Path(".data")).path
    exact, served = load_model(path, compute="fp32"), load_model(path)
    tokens = exact.tokenizer.encode("\n".join(text.read_text() for text in options.text))
    tokens = tokens[: options.tokens]
    cases = json.loads(FIXTURE.read_text())
    result: dict[str, Any] = {"load_average": round(os.getloadavg()[0], 2), "tokens": len(tokens)}
    for dtype in KV_DTYPES:
        row: dict[str, Any] = {"bytes_per_token": kv_bytes_per_token(exact.config, dtype)}
        if not options.skip_quality:
            row |= logits_error(exact, dtype, cases)
            row["greedy_changed"] = greedy_changes(exact, dtype, cases)
            row["perplexity"] = round(perplexity(exact, dtype, tokens), 4)
        if not options.skip_speed:
            row |= speed(served, dtype)
        result[NAMES[dtype]] = row
        sys.stderr.write(f"{NAMES[dtype]} {row}\n")
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
