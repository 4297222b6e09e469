"""A real model on the card against the same on the CPU in fp32: greedy text and perplexity.

    python -m load_tests.gpu.real_model reference MODEL REF.json [TEXT ...]
    python -m load_tests.gpu.real_model check MODEL REF.json [--out OUT.json]

`reference` runs on the CPU: 50 chat prompts, 64 greedy tokens each, with the lead of the
likeliest token over the next at every one of them; then the perplexity of the texts.
`check` runs on the card, through the worker's own way of building an engine. The rule for
ties: bf16 sums differ from fp32 ones, so texts may part at a token whose lead in the
reference is below `TIE_LOGITS`, and are not compared from there on. Exits 1 where they
part elsewhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from engine.contract import GenerateRequest, Message, SamplingParams, Tier
from engine.engine import Engine
from engine.loading import open_checkpoint
from engine.loading.quantize import WHOLE_ROW, Quantization, quantize
from engine.model.checkpoint import LayerWeights
from engine.model.llama import CausalLM
from engine.worker.build import build_engine
from kernels.kv_cache import AttentionBatch, LayerCache
from kernels.weights import Weight
from load_tests.prompts import chat_prompt

NUM_PROMPTS = 50
NUM_TOKENS = 64
TIE_LOGITS = 0.5
WINDOW = 1024
NUM_WINDOWS = 8
# Tokens a pass: a size that goes through the quantised kernels, not the bf16 copies.
PIECE = 64
BLOCK = 16


def answers(engine: Engine, prompts: Sequence[str]) -> tuple[list[list[int]], list[list[int]]]:
    """(prompt ids, greedy ids) of each prompt, all answered at once."""
    sequences = []
    for number, prompt in enumerate(prompts):
        request = GenerateRequest(
            request_id=f"r{number}", model=engine.card.id, messages=(Message("user", prompt),),
            sampling=SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True),
            tier=Tier.STANDARD, tenant="", conversation_id=None, reply_to="", created_at=0.0,
            deadline_at=1e12,
        )  # fmt: skip
        engine.add(engine.prepare(request))
        sequences.append(engine.sequences[f"r{number}"])
    while engine.has_work():
        engine.step()
    starts = [seq.num_prompt_tokens for seq in sequences]
    return (
        [seq.tokens[:start] for seq, start in zip(sequences, starts, strict=True)],
        [seq.tokens[start:] for seq, start in zip(sequences, starts, strict=True)],
    )


class Scorer:
    """A model's logits for given tokens, a piece at a time.

    Args:
        model: The model.
        dtype: Of its KV cache.
    """

    def __init__(self, model: CausalLM, dtype: torch.dtype) -> None:
        self._model = model
        self._device = model.device
        config = model.config
        shape = (2 * WINDOW // BLOCK, config.num_kv_heads, BLOCK, config.head_dim)
        self._caches = [
            LayerCache(
                torch.zeros(shape, dtype=dtype, device=self._device),
                torch.zeros(shape, dtype=dtype, device=self._device),
            )
            for _ in range(config.num_layers)
        ]
        self._table = torch.arange(shape[0], dtype=torch.int32, device=self._device).unsqueeze(0)

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """float32 [len(tokens), vocab] on the model's device."""
        parts = []
        for start in range(0, len(tokens), PIECE):
            ids = torch.tensor(tokens[start : start + PIECE], device=self._device)
            count, end = len(ids), start + len(ids)
            where = torch.arange(start, end, device=self._device)
            batch = AttentionBatch(
                torch.tensor([0, count], dtype=torch.int32, device=self._device),
                torch.tensor([end], dtype=torch.int32, device=self._device),
                self._table, count, end,
            )  # fmt: skip
            rows = torch.arange(count, device=self._device)
            parts.append(self._model.forward(ids, where, where, batch, self._caches, rows))
        return torch.cat(parts).float()

    def nats(self, tokens: Sequence[int]) -> float:
        """Mean negative log-likelihood of each token after the first."""
        logits = self.logits(tokens)[:-1]
        wanted = torch.tensor(tokens[1:], device=self._device)
        return float(torch.nn.functional.cross_entropy(logits, wanted))

    def leads(self, prompt: list[int], answer: list[int]) -> tuple[list[int], list[float]]:
        """(likeliest tokens, their leads over the next) at each place of `answer`."""
        logits = self.logits(prompt + answer)[len(prompt) - 1 : -1]
        top = logits.topk(2, dim=1)
        leads = (top.values[:, 0] - top.values[:, 1]).tolist()
        return top.indices[:, 0].tolist(), [round(lead, 4) for lead in leads]


def perplexity(scorer: Scorer, windows: Sequence[list[int]]) -> float:
    return math.exp(sum(scorer.nats(window) for window in windows) / len(windows))


class Converted:
    """A checkpoint whose layers' matrices are turned into another kind of weight.

    Args:
        path: The model's.
        kind: bf16, int8, fp8 (each with one scale a row), or int4 (in groups of 32; as
            they are where the file has such).
    """

    def __init__(self, path: Path, kind: str) -> None:
        self._checkpoint = open_checkpoint(path)
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._checkpoint, name)

    def layer(self, index: int) -> LayerWeights:
        layer = self._checkpoint.layer(index)
        q, k, v = map(self._convert, layer.qkv)
        gate, up = map(self._convert, layer.gate_up)
        return replace(
            layer, qkv=(q, k, v), o=self._convert(layer.o), gate_up=(gate, up),
            down=self._convert(layer.down),
        )  # fmt: skip

    def _convert(self, weight: Weight) -> Weight:
        if self._kind == "int4" and weight.kind == "int4":
            return weight
        dense = Weight("dense", weight.dequantize(torch.float32))
        if self._kind == "int8":
            return quantize(dense, Quantization("int8", WHOLE_ROW))
        if self._kind == "int4":
            return quantize(dense, Quantization("int4", 32))
        if self._kind == "fp8":
            scale = dense.data.abs().amax(1, keepdim=True).clamp_min(1e-12) / 448
            return Weight(
                "fp8", (dense.data / scale).to(torch.float8_e4m3fn), scale, None, dense.columns
            )
        return Weight("dense", dense.data.bfloat16())


def make_reference(model: Path, out: Path, texts: Sequence[Path]) -> None:
    """Write what `check` compares with."""
    prompts = [chat_prompt() for _ in range(NUM_PROMPTS)]
    engine = build_engine(model, device="cpu", compute="fp32", kv_blocks=600)
    asked, answered = answers(engine, prompts)
    scorer = Scorer(CausalLM(open_checkpoint(model), "cpu", "fp32"), torch.float32)
    rows = []
    for prompt, answer in zip(asked, answered, strict=True):
        likeliest, leads = scorer.leads(prompt, answer)
        rows.append({"prompt": prompt, "answer": answer, "lead": leads, "top": likeliest})
    ids: list[int] = []
    tokenizer = open_checkpoint(model).tokenizer()
    for text in texts:
        ids += tokenizer.encode(text.read_text())
    windows = [ids[i * WINDOW : (i + 1) * WINDOW] for i in range(NUM_WINDOWS)]
    assert len(windows[-1]) == WINDOW, "too little text"
    result = {
        "model": model.name, "prompts": prompts, "answers": rows,
        "texts": [text.name for text in texts],
        "sha256": hashlib.sha256(json.dumps(windows).encode()).hexdigest(),
        "windows": windows, "perplexity": perplexity(scorer, windows),
    }  # fmt: skip
    out.write_text(json.dumps(result) + "\n")
    print(f"CPU fp32: perplexity {result['perplexity']:.4f} of {NUM_WINDOWS} x {WINDOW} tokens")


def compare(rows: Sequence[dict[str, Any]], answered: Sequence[list[int]]) -> dict[str, Any]:
    """Where greedy texts part from the reference's."""
    parted, broken = [], []
    for number, (row, answer) in enumerate(zip(rows, answered, strict=True)):
        assert len(answer) == len(row["answer"])
        for place, (ours, theirs) in enumerate(zip(answer, row["answer"], strict=True)):
            if ours != theirs:
                found = {"prompt": number, "token": place, "lead": row["lead"][place]}
                (parted if found["lead"] < TIE_LOGITS else broken).append(found)
                break
    return {
        "prompts": len(rows), "tokens": NUM_TOKENS, "tie_logits": TIE_LOGITS,
        "equal": len(rows) - len(parted) - len(broken), "parted_at_ties": parted,
        "parted_elsewhere": broken,
    }  # fmt: skip


def forced(rows: Sequence[dict[str, Any]], scorer: Scorer) -> dict[str, Any]:
    """How often the likeliest token agrees with the reference's, its own text given."""
    total = clear = agree = agree_clear = 0
    for row in rows:
        likeliest, _ = scorer.leads(row["prompt"], row["answer"])
        for ours, theirs, lead in zip(likeliest, row["top"], row["lead"], strict=True):
            total += 1
            agree += ours == theirs
            clear += lead >= TIE_LOGITS
            agree_clear += lead >= TIE_LOGITS and ours == theirs
    return {"tokens": total, "agree": agree, "clear": clear, "agree_where_clear": agree_clear}


def check(model: Path, reference: Path, out: Path | None) -> int:
    """Compare the card with the reference; 1 where texts part without a tie."""
    from load_tests.gpu.timing import machine

    expected = json.loads(reference.read_text())
    started = time.perf_counter()
    engine = build_engine(model, device="cuda")
    ready_s = time.perf_counter() - started
    asked, answered = answers(engine, expected["prompts"])
    assert asked == [row["prompt"] for row in expected["answers"]], "other prompts"
    result: dict[str, Any] = {
        "machine": machine(), "model": model.name, "ready_s": round(ready_s, 2),
        "greedy": compare(expected["answers"], answered), "gauges": engine.stats().counters,
        "perplexity": {"cpu fp32": round(expected["perplexity"], 4)},
    }  # fmt: skip
    greedy = result["greedy"]
    print(
        f"ready in {ready_s:.1f} s; {greedy['equal']} of {greedy['prompts']} texts equal, "
        f"{len(greedy['parted_at_ties'])} part at ties, {greedy['parted_elsewhere']} elsewhere",
        flush=True,
    )
    del engine
    torch.cuda.empty_cache()
    for kind in ("bf16", "int8", "int4", "fp8"):
        scorer = Scorer(CausalLM(Converted(model, kind), "cuda", "memory"), torch.bfloat16)
        value = perplexity(scorer, expected["windows"])
        result["perplexity"][kind] = round(value, 4)
        print(f"{kind}: perplexity {value:.4f}", flush=True)
        if kind == "int4":
            result["forced"] = forced(expected["answers"], scorer)
            print("forced", result["forced"], flush=True)
    if out:
        out.write_text(json.dumps(result, indent=1) + "\n")
    return int(bool(greedy["parted_elsewhere"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=["reference", "check"])
    parser.add_argument("model", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("texts", type=Path, nargs="*")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.mode == "reference":
        make_reference(options.model, options.reference, options.texts)
    else:
        sys.exit(check(options.model, options.reference, options.out))


if __name__ == "__main__":
    main()
