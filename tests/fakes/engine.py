"""An engine without a model: the real one's surface, an answer that a test chooses.

The answer follows from the last message:

* `!text <base64 of UTF-8>`: exactly that text.
* `!json <object>`: a `Script`, by field name.
* a message that contains a script file's `match`: that entry's `Script`.
* anything else: words that depend on the conversation, the seed and nothing else.

Chunks and stop strings go through the product's own `Chunker` and `StopStrings`. A token's
id is a checksum of its text, so that an engine that goes on with another's answer sees
whether the tokens it is given are those that it would have made.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import json
import re
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.chunker import Chunk, Chunker
from engine.contract import (
    Accepted,
    ContextLengthExceeded,
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerateRequest,
    InvalidRequest,
    ModelCard,
    Usage,
    Warm,
    error_from_wire,
)
from engine.stats import EngineStats
from engine.step import StepTimes
from engine.step_trace import EngineReport, StepRecord
from engine.stop_strings import StopStrings

BLOCK_TOKENS = 16
FLUSH_S = 0.1
MESSAGE_TOKENS = 4
MAX_SLEEP_S = 0.02

_TOKEN = re.compile(r"\s?[^\s]{1,6}|\s")
_WORDS = (
    *("the", "river", "runs", "past", "old", "stones", "and", "every", "small", "boat"),
    *("finds", "its", "own", "way", "home", "under", "clear", "morning", "light", "while"),
    *("seven", "quiet", "birds", "watch", "from", "tall", "green", "reeds"),
)


def tokenize(text: str) -> list[str]:
    """Pieces of at most six characters, a leading space included; joined, the text."""
    return _TOKEN.findall(text)


def token_id(text: str) -> int:
    """What stands for a token on the wire."""
    return zlib.crc32(text.encode()) & 0xFFFF


@dataclass(frozen=True)
class Script:
    """How one answer goes.

    Attributes:
        text: The whole answer, cut by `tokenize`; None for generated words.
        tokens: The answer cut exactly so; goes before `text`.
        repeat: How often the text or the tokens are said.
        num_tokens: Length of generated words.
        rate: Tokens a second for this answer; None for the engine's; 0 at once.
        delay_ms: Before the first token.
        fail_after: Fail once that many tokens were made.
        error: The failure, in `ReparteeError.to_wire` form; an EngineFault by default.
        refuse: An error in the same form, raised by `prepare`.
        prepare_ms: How long `prepare` takes.
        stall_after: Make no more tokens after that many, until cancelled.
        fault_after: Raise out of `step` once that many tokens were made.
        freeze_after: Block the engine's thread for `freeze_ms` after that many tokens.
        freeze_ms: See `freeze_after`.
        stamped: Each token is `@`, the time at which it was made by `time.monotonic_ns`, and
            a space; the answer's own tokens only count.
    """

    text: str | None = None
    tokens: Sequence[str] | None = None
    repeat: int = 1
    num_tokens: int = 64
    rate: float | None = None
    delay_ms: float = 0.0
    fail_after: int | None = None
    error: Mapping[str, Any] | None = None
    refuse: Mapping[str, Any] | None = None
    prepare_ms: float = 0.0
    stall_after: int | None = None
    fault_after: int | None = None
    freeze_after: int | None = None
    freeze_ms: float = 0.0
    stamped: bool = False


def read_scripts(path: Path) -> list[tuple[str, Script]]:
    """A JSON list of objects: `match` and the fields of `Script`."""
    return [(entry.pop("match"), Script(**entry)) for entry in json.loads(path.read_text())]


@dataclass
class FakeSequence:
    """One request's progress.

    Attributes:
        num_told: Tokens that a delta has named.
        queued_ms: How long it waited; None while it waits.
    """

    request: GenerateRequest
    script: Script
    tokens: list[str]
    prompt_tokens: int
    chunker: Chunker
    stops: StopStrings
    seq: int = 0
    num_made: int = 0
    num_told: int = 0
    added_at: float = 0.0
    queued_ms: float | None = None
    due_at: float = 0.0
    froze: bool = False
    events: list[Event] = field(default_factory=list)

    @property
    def usage(self) -> Usage:
        return Usage(self.prompt_tokens, self.num_made)

    def delta(self, chunk: Chunk) -> None:
        if chunk.text or chunk.num_tokens:
            self.events.append(
                Delta(
                    self.request.request_id,
                    self.request.epoch,
                    self.next_seq(),
                    chunk.text,
                    chunk.num_tokens,
                    tuple(map(token_id, self.tokens[self.num_told : self.num_made])),
                )
            )
            self.num_told = self.num_made

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq - 1

    def take_events(self) -> list[Event]:
        events, self.events = self.events, []
        return events


class FakeEngine:
    """See the module.

    Args:
        model: The card's id.
        rate: Tokens a second of each answer; 0 as fast as it goes.
        context_window: Tokens of prompt and answer together.
        max_running: Answers made at once; the rest wait.
        num_blocks: What `stats` reports.
        scripts: (substring, script) pairs; the first that matches counts.
    """

    def __init__(
        self,
        model: str = "repartee-fake",
        *,
        rate: float = 0.0,
        context_window: int = 8192,
        max_running: int = 1024,
        num_blocks: int = 4096,
        scripts: Sequence[tuple[str, Script]] = (),
    ) -> None:
        self.card = ModelCard(
            id=model,
            created_at=1_700_000_000,
            context_window=context_window,
            vocab_size=49152,
            max_token_bytes=24,
            quantization="none",
        )
        self._rate = rate
        self._max_running = max_running
        self._num_blocks = num_blocks
        self._scripts = list(scripts)
        self._running: dict[str, FakeSequence] = {}
        # When each of them is due, so that thousands cost no more than those that are.
        self._due: list[tuple[float, int, FakeSequence]] = []
        self._num_dues = 0
        self._waiting: dict[str, FakeSequence] = {}
        self.warmed: list[Warm] = []
        self.released: list[str] = []
        self.held: dict[str, int] = {}
        self.fault = ""

    def prepare_warm_up(self, warm: Warm) -> Warm:
        """Nothing to do."""
        return warm

    def warm_up(self, prepared: Warm) -> None:
        """Remember it."""
        self.warmed.append(prepared)

    def release(self, conversation_id: str) -> None:
        """Remember it."""
        self.released.append(conversation_id)

    def prepare(self, request: GenerateRequest) -> FakeSequence:
        """Count the prompt and choose the answer."""
        script = self._script(request)
        time.sleep(script.prepare_ms / 1000)
        if script.refuse is not None:
            raise error_from_wire(script.refuse)
        request.sampling.check_vocabulary(self.card.vocab_size)
        prompt_tokens = MESSAGE_TOKENS + sum(
            len(tokenize(message.content)) + MESSAGE_TOKENS for message in request.messages
        )
        if prompt_tokens >= self.card.context_window:
            raise ContextLengthExceeded(
                f"The prompt has {prompt_tokens} tokens; the context window is "
                f"{self.card.context_window}.",
                param="messages",
            )
        return FakeSequence(
            request,
            script,
            self._answer(request, script),
            prompt_tokens,
            Chunker(FLUSH_S),
            StopStrings(request.sampling.stop),
        )

    def add(self, prepared: FakeSequence) -> list[Event]:
        """Queue it."""
        request = prepared.request
        prepared.added_at = time.monotonic()
        self._waiting[request.request_id] = prepared
        if self._go_on(prepared):
            return prepared.take_events()
        return [
            Accepted(request.request_id, request.epoch, prepared.next_seq(), prepared.prompt_tokens)
        ]

    def _go_on(self, sequence: FakeSequence) -> bool:
        """Take over what another engine made; whether its Accepted is out."""
        progress = sequence.request.progress
        if progress is None:
            return False
        sequence.seq = progress.next_seq
        made = sequence.tokens[: len(progress.tokens)]
        assert tuple(map(token_id, made)) == progress.tokens
        for token in made:
            sequence.chunker.push(sequence.stops.push(token), 1, time.monotonic())
        sequence.num_made = sequence.num_told = len(made)
        sequence.chunker.skip(progress.num_chars, progress.num_tokens)
        if sequence.stops.matched:
            self._waiting.pop(sequence.request.request_id)
            self._finish(sequence, FinishReason.STOP)
        return progress.prompt_tokens is not None

    def cancel(self, request_id: str) -> list[Event]:
        """End it with what it has."""
        sequence = self._running.pop(request_id, None) or self._waiting.pop(request_id, None)
        if sequence is None:
            return []
        self._finish(sequence, FinishReason.CANCELLED)
        return sequence.take_events()

    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def report(self) -> EngineReport:
        return EngineReport([StepRecord(time.monotonic(), StepTimes(), 1, 1, 1)], self.fault)

    def stats(self) -> EngineStats:
        used = sum(
            -(-(sequence.prompt_tokens + sequence.num_made) // BLOCK_TOKENS)
            for sequence in self._running.values()
        )
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            used_blocks=used,
            num_blocks=self._num_blocks,
            decode_tokens_per_s=self._rate * len(self._running),
            counters={},
            held=dict(self.held),
        )

    def step(self) -> list[Event]:
        """At most one token for each that is due; sleeps a little if none is."""
        self._admit()
        now = time.monotonic()
        if self._due and self._due[0][0] > now:
            time.sleep(min(self._due[0][0] - now, MAX_SLEEP_S))
            now = time.monotonic()
        events: list[Event] = []
        due = self._take_due(now)
        try:
            for sequence in due:
                self._advance(sequence, now)
                events += sequence.take_events()
        finally:
            for sequence in due:
                self._expect(sequence)
        return events

    def _take_due(self, now: float) -> list[FakeSequence]:
        due: list[FakeSequence] = []
        while self._due and self._due[0][0] <= now:
            sequence = heapq.heappop(self._due)[2]
            if self._is_running(sequence):
                due.append(sequence)
        return due

    def _expect(self, sequence: FakeSequence) -> None:
        if self._is_running(sequence):
            self._num_dues += 1
            heapq.heappush(self._due, (sequence.due_at, self._num_dues, sequence))

    def _is_running(self, sequence: FakeSequence) -> bool:
        return self._running.get(sequence.request.request_id) is sequence

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_running:
            request_id, sequence = next(iter(self._waiting.items()))
            del self._waiting[request_id]
            now = time.monotonic()
            sequence.queued_ms = round((now - sequence.added_at) * 1e3, 1)
            sequence.due_at = now + sequence.script.delay_ms / 1000
            self._running[request_id] = sequence
            self._expect(sequence)

    def _advance(self, sequence: FakeSequence, now: float) -> None:
        script, num_made = sequence.script, sequence.num_made
        if script.fault_after == num_made:
            raise RuntimeError("scripted fault")
        if script.freeze_after == num_made and not sequence.froze:
            sequence.froze = True
            time.sleep(script.freeze_ms / 1000)
        if script.fail_after == num_made:
            self._fail(sequence)
            return
        if script.stall_after == num_made:
            sequence.due_at = float("inf")
            self._flush(sequence, sequence.chunker.finish())
            return
        if num_made == len(sequence.tokens):
            self._finish(sequence, FinishReason.STOP)
            return
        if num_made == self._limit(sequence):
            self._finish(sequence, FinishReason.LENGTH)
            return
        self._make(sequence, now)

    def _make(self, sequence: FakeSequence, now: float) -> None:
        stamped = sequence.script.stamped
        token = f"@{time.monotonic_ns()} " if stamped else sequence.tokens[sequence.num_made]
        sequence.num_made += 1
        sequence.chunker.push(sequence.stops.push(token), 1, now)
        if sequence.stops.matched:
            self._finish(sequence, FinishReason.STOP)
            return
        self._flush(sequence, sequence.chunker.take(now))
        rate = self._rate if sequence.script.rate is None else sequence.script.rate
        sequence.due_at = max(sequence.due_at, now - 0.1) + 1 / rate if rate else now

    def _limit(self, sequence: FakeSequence) -> int:
        window = self.card.context_window - sequence.prompt_tokens
        return min(sequence.request.sampling.max_tokens or window, window)

    def _flush(self, sequence: FakeSequence, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            sequence.delta(chunk)

    def _finish(self, sequence: FakeSequence, reason: FinishReason) -> None:
        request = sequence.request
        self._running.pop(request.request_id, None)
        held = sequence.stops.finish()
        if held:
            sequence.chunker.push(held, 0, time.monotonic())
        self._flush(sequence, sequence.chunker.finish())
        place = (request.request_id, request.epoch, sequence.next_seq())
        sequence.events.append(Finished(*place, reason, sequence.usage, sequence.queued_ms))

    def _fail(self, sequence: FakeSequence) -> None:
        request = sequence.request
        self._running.pop(request.request_id, None)
        self._flush(sequence, sequence.chunker.finish())
        error = error_from_wire(
            sequence.script.error
            or {"class": "EngineFault", "message": "The engine failed on this request."}
        )
        sequence.events.append(
            Failed(request.request_id, request.epoch, sequence.next_seq(), error, sequence.usage)
        )

    def _script(self, request: GenerateRequest) -> Script:
        content = request.messages[-1].content
        try:
            if content.startswith("!text "):
                return Script(text=base64.b64decode(content[6:], validate=True).decode())
            if content.startswith("!json "):
                return Script(**json.loads(content[6:]))
        except (ValueError, TypeError) as error:
            raise InvalidRequest(f"unreadable script: {error}", param="messages") from error
        for match, script in self._scripts:
            if match in content:
                return script
        return Script()

    def _answer(self, request: GenerateRequest, script: Script) -> list[str]:
        if script.tokens is not None:
            return list(script.tokens) * script.repeat
        if script.text is not None:
            return tokenize(script.text) * script.repeat
        sampling = replace(request.sampling, stop=(), max_tokens=None, min_tokens=0)
        key = json.dumps(
            [[[m.role, m.content] for m in request.messages], sampling.seed], ensure_ascii=True
        )
        digest = hashlib.sha256(key.encode()).digest()
        start = int.from_bytes(digest[:4])
        words = [
            _WORDS[(start + i * i + digest[i % 32]) % len(_WORDS)]
            for i in range(script.num_tokens * script.repeat)
        ]
        return [word if i == 0 else f" {word}" for i, word in enumerate(words)]
