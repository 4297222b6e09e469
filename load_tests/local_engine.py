"""Engines in this process over one model, for benchmarks without Redis and sockets."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch

from app.models import resolve_model
from engine.config import EngineConfig
from engine.contract import Delta, Failed, GenerateRequest, Message, SamplingParams, Tier
from engine.engine import Engine
from engine.loading import LoadedModel, load_model
from engine.runner import CpuRunner
from engine.worker.build import set_threads

_DEADLINE_S = 3600.0
_numbers = count()


@dataclass(slots=True)
class Answer:
    """One answer as it was made; times in seconds of `time.perf_counter`.

    Attributes:
        asked_at: When it was added.
        token_times: When each of its tokens was made; of several in one step, the same.
        text: All of it.
    """

    asked_at: float
    token_times: list[float] = field(default_factory=list)
    text: str = ""

    @property
    def first_ms(self) -> float:
        """From the request to its first token."""
        return (self.token_times[0] - self.asked_at) * 1000

    def gaps_ms(self, start: float = 0.0, end: float = float("inf")) -> list[float]:
        """Between tokens of which the later was made within a time."""
        pairs = zip(self.token_times, self.token_times[1:], strict=False)
        return [(later - sooner) * 1000 for sooner, later in pairs if start <= later <= end]


class Drive:
    """Requests in one engine, stepped and timed.

    Args:
        engine: Idle.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.answers: dict[str, Answer] = {}

    def add(
        self, messages: str | tuple[Message, ...], max_tokens: int, *, seed: int | None = None
    ) -> Answer:
        """Ask; greedy, or sampled with a seed."""
        turns = (Message("user", messages),) if isinstance(messages, str) else messages
        sampling = SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0 if seed is None else 0.8,
            seed=seed,
            ignore_eos=True,
        )
        now = time.time()
        request = GenerateRequest(
            request_id=f"local-{next(_numbers)}",
            model=self.engine.card.id,
            messages=turns,
            sampling=sampling,
            tier=Tier.STANDARD,
            tenant="bench",
            conversation_id=None,
            reply_to="",
            created_at=now,
            deadline_at=now + _DEADLINE_S,
        )
        answer = self.answers[request.request_id] = Answer(time.perf_counter())
        self.engine.add(self.engine.prepare(request))
        return answer

    def step(self) -> None:
        """One step of the engine.

        Raises:
            ReparteeError: a request failed.
        """
        live = list(self.engine.sequences.items())
        events = self.engine.step()
        now = time.perf_counter()
        for name, seq in live:
            answer = self.answers[name]
            answer.token_times += [now] * (seq.num_answer_tokens - len(answer.token_times))
        for event in events:
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Delta):
                self.answers[event.request_id].text += event.text

    def run(self) -> float:
        """Until nothing is left; seconds that it took."""
        started = time.perf_counter()
        while self.engine.has_work():
            self.step()
        return time.perf_counter() - started


class LocalModel:
    """A loaded model, and engines over it with pools of their own.

    Args:
        path: GGUF file or Hugging Face folder; None takes the default model.
    """

    def __init__(self, path: Path | None = None) -> None:
        set_threads(0)
        self._loaded: LoadedModel = load_model(path or resolve_model("", Path(".data")).path)

    def engine(self, **config: Any) -> Engine:
        """A new engine that has made its first, slow steps; see `EngineConfig`."""
        settings = EngineConfig(**{"num_blocks": 1024, **config})
        loaded = self._loaded
        engine = Engine(
            settings,
            card=loaded.card,
            runner=CpuRunner(loaded.model, settings, torch.bfloat16),
            vocabulary=loaded.tokenizer,
            encode_chat=loaded.chat_template.encode,
        )
        drive = Drive(engine)
        for text in ("warm up", "and again"):
            drive.add(text, 8)
        drive.run()
        return engine


def parser(about: str | None, rounds: int) -> argparse.ArgumentParser:
    """Options that all of these benchmarks take."""
    made = argparse.ArgumentParser(description=about)
    made.add_argument("--model", type=Path, help="the default model if left out")
    made.add_argument("--rounds", type=int, default=rounds)
    return made


def report(result: dict[str, Any], tables: Iterable[str] = ()) -> None:
    """Print tables, then one JSON object with the machine's load."""
    for table in tables:
        sys.stdout.write(table + "\n")
    result["load_average"] = round(os.getloadavg()[0], 2)
    sys.stdout.write(json.dumps(result) + "\n")
