"""`python -m engine.profile`: a model under a few chats, and where its steps' time goes.

The run is local, without Redis and gateway; `publish` is the writing of each event as
JSON, which a worker does beside the next step. Prints a table, and writes a trace for
chrome://tracing or Perfetto and a drawing beside it. What stops it is one line on standard
error and exit code 2.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from engine.contract import GenerateRequest, Message, SamplingParams, Tier
from engine.engine import Engine
from engine.loading.errors import ModelFileError
from engine.loading.head import HEAD_KINDS
from engine.step_plot import svg
from engine.step_trace import StepRecord, breakdown, chrome_trace
from engine.worker.build import BuildError, build_engine

REFUSED = 2
_DEADLINE_S = 3600.0
_WORDS = ("river", "stone", "light", "wind", "bridge", "garden", "winter", "market")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine.profile", description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--chats", type=int, default=4, help="answers made at once")
    parser.add_argument("--prompt-words", type=int, default=60, help="length of each prompt")
    parser.add_argument("--answer-tokens", type=int, default=64, help="length of each answer")
    parser.add_argument("--speculation", choices=("off", "ngram", "auto"), default="off")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--compute", choices=("auto", "int16", "int8", "fp32"), default="auto")
    parser.add_argument("--kv-dtype", choices=("auto", "bf16", "int8", "fp8"), default="auto")
    parser.add_argument("--head", choices=("auto", *HEAD_KINDS), default="auto")
    parser.add_argument("--trace", type=Path, default=Path("trace.json"))
    return parser.parse_args(argv)


def profile(
    engine: Engine, *, num_chats: int, num_prompt_words: int, num_answer_tokens: int
) -> list[StepRecord]:
    """Answer some chats at once, and return the steps that this took.

    Args:
        engine: Idle.
        num_chats: Answers made at once.
        num_prompt_words: Words of each prompt; no two prompts begin alike.
        num_answer_tokens: Tokens of each answer.

    Returns:
        The steps, `publish` included.
    """
    for number in range(num_chats):
        words = [_WORDS[(number + i * i) % len(_WORDS)] for i in range(num_prompt_words)]
        text = " ".join((str(number), *words))
        engine.add(engine.prepare(_request(engine, number, text, num_answer_tokens)))
    records: list[StepRecord] = []
    while engine.has_work():
        num_before = engine.trace.num_added
        events = engine.step()
        started = time.perf_counter()
        json.dumps([event.to_wire() for event in events])
        publish_s = time.perf_counter() - started
        if engine.trace.num_added > num_before:
            record = engine.trace.records[-1]
            records.append(replace(record, times=replace(record.times, publish_s=publish_s)))
    return records


def _request(engine: Engine, number: int, text: str, num_answer_tokens: int) -> GenerateRequest:
    now = time.time()
    return GenerateRequest(
        request_id=f"profile-{number}",
        model=engine.card.id,
        messages=(Message("user", text),),
        sampling=SamplingParams(temperature=0.0, max_tokens=num_answer_tokens, ignore_eos=True),
        tier=Tier.STANDARD,
        tenant="profile",
        conversation_id=None,
        reply_to="",
        created_at=now,
        deadline_at=now + _DEADLINE_S,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Load, run, report.

    Returns:
        0, or `REFUSED` if it could not begin.
    """
    options = _parse(argv)
    try:
        engine = build_engine(
            options.model,
            speculation=options.speculation,
            threads=options.threads,
            device=options.device,
            compute=options.compute,
            kv_dtype=options.kv_dtype,
            head=None if options.head == "auto" else options.head,
        )
    except (BuildError, ModelFileError) as error:
        sys.stderr.write(f"repartee: {error}\n")
        return REFUSED
    # The first steps of a process are not like the later ones.
    profile(engine, num_chats=1, num_prompt_words=8, num_answer_tokens=4)
    records = profile(
        engine,
        num_chats=options.chats,
        num_prompt_words=options.prompt_words,
        num_answer_tokens=options.answer_tokens,
    )
    options.trace.write_text(json.dumps(chrome_trace(records)))
    drawing = options.trace.with_suffix(".svg")
    drawing.write_text(svg(records))
    sys.stdout.write(breakdown(records))
    sys.stdout.write(
        f"\n{len(records)} steps; trace for Perfetto: {options.trace}, drawing: {drawing}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
