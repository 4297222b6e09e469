"""A model that is a hash, run on a virtual clock, and all that an engine needs around it."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from engine.config import EngineConfig
from engine.contract import GenerateRequest, Message, ModelCard, SamplingParams, Tier, Warm
from engine.engine import Engine
from engine.host_tier import HostTier
from engine.step import StepOutput, StepPlan, StepTimes, Work
from tests.fakes.clock import VirtualClock

VOCAB_SIZE = 300
EOS_ID = 256
CONTROL_ID = 257


class ByteVocabulary:
    """Ids 0 to 255 are bytes; 256 ends a turn, the rest are control tokens."""

    eos_ids = frozenset((EOS_ID,))

    def token_bytes(self, token_id: int) -> bytes:
        return bytes((token_id,)) if token_id < 256 else b""


def encode_chat(messages: tuple[Message, ...]) -> list[int]:
    """The bytes of all contents, each turn closed by a control token."""
    tokens: list[int] = []
    for message in messages:
        tokens += [*message.content.encode(), CONTROL_ID]
    return tokens


def hashed_token(tokens: Sequence[int], seed: int, eos_every: int) -> int:
    """The next token after `tokens`: a letter, or about once in `eos_every` the end."""
    key = ",".join(map(str, tokens)) + f"|{seed}"
    value = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest())
    if eos_every and value % eos_every == 0:
        return EOS_ID
    return 97 + (value >> 16) % 26


class FakeRunner:
    """Keeps real KV contents, as tokens, and refuses to read what isn't there.

    Every slot holds the prefix that was computed into it, so that a wrong block, a
    block handed out too early or a token left out fails the step.

    Args:
        config: The engine's, for the size of the KV pool.
        clock: Moved by the cost of each step.
        base_ms: Cost of a step, milliseconds.
        token_ms: Further cost of each token, milliseconds.
        context_ms: Further cost of each token for every 1000 tokens before it.
        eos_every: How seldom an answer ends by itself; 0 means never.
        max_decode_steps: As for any runner.
        max_ahead_steps: As for any runner; it makes none.
        piece_layers: As for any runner.
        next_token: Another model, from (tokens, seed) to a token.
    """

    def __init__(
        self,
        config: EngineConfig,
        clock: VirtualClock,
        *,
        base_ms: float = 10.0,
        token_ms: float = 1.0,
        context_ms: float = 0.0,
        eos_every: int = 0,
        max_decode_steps: int = 1,
        max_ahead_steps: int = 0,
        piece_layers: int = 1,
        next_token: Callable[[Sequence[int], int], int] | None = None,
    ) -> None:
        self._block_size = config.block_size
        self._clock = clock
        self._base_ms = base_ms
        self._token_ms = token_ms
        self._context_ms = context_ms
        self._max_decode_steps = max_decode_steps
        self._max_ahead_steps = max_ahead_steps
        self._piece_layers = piece_layers
        self._next_token = next_token or (
            lambda tokens, seed: hashed_token(tokens, seed, eos_every)
        )
        self._kv: list[int | None] = [None] * (config.num_blocks * config.block_size)
        self.plans: list[StepPlan] = []
        self.fail_next = False

    @property
    def max_decode_steps(self) -> int:
        return self._max_decode_steps

    @property
    def max_ahead_steps(self) -> int:
        return self._max_ahead_steps

    @property
    def piece_layers(self) -> int:
        return self._piece_layers

    def gauges(self) -> dict[str, float]:
        return {}

    def run(self, plan: StepPlan) -> StepOutput:
        self.plans.append(plan)
        elapsed_ms = self._base_ms
        for item in plan.work:
            num_tokens = item.num_tokens + len(item.draft) + item.num_decode_steps - 1
            token_ms = self._token_ms + self._context_ms * item.start / 1000
            elapsed_ms += item.share * num_tokens * token_ms
        self._clock.advance(elapsed_ms / 1000)
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("the fake runner was told to fail")
        output = StepOutput(times=StepTimes(forward_s=elapsed_ms / 1000))
        _check_layers(plan, self._piece_layers)
        for item in plan.work:
            if item.layers is not None:
                self._go_through_layers(item)
            if not item.finishes:
                continue
            seq = item.sequence
            known = [*seq.tokens[: item.start + item.num_tokens], *item.draft]
            end = len(known) + item.num_decode_steps - 1
            assert end < seq.max_tokens, f"computes {end} of at most {seq.max_tokens} tokens"
            for position in range(item.start, len(known)):
                self._write(seq.block_table, position, known[position])
            self._check_kv(seq.block_table, known)
            if item.samples:
                output.tokens[seq.id] = self._sample(item, known)
        return output

    def _go_through_layers(self, item: Work) -> None:
        """Layers follow each other, of the same tokens in the same blocks."""
        partial = item.sequence.partial
        assert partial is not None and item.layers is not None
        piece = (item.start, item.num_tokens, item.sequence.block_table[:])
        if item.layers.start == 0:
            assert partial.hidden is None, "a piece begins twice"
        else:
            assert partial.hidden == (item.layers.start, piece), "layers don't follow"
        partial.hidden = (item.layers.stop, piece)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        size = self._block_size
        for source, target in pairs:
            self._kv[target * size : (target + 1) * size] = self._kv[
                source * size : (source + 1) * size
            ]

    def read_blocks(self, blocks: list[int]) -> list[Any]:
        size = self._block_size
        return [self._kv[block * size : (block + 1) * size] for block in blocks]

    def write_blocks(self, blocks: list[int], contents: list[Any]) -> None:
        size = self._block_size
        for block, tokens in zip(blocks, contents, strict=True):
            self._kv[block * size : (block + 1) * size] = tokens

    def _sample(self, item: Any, known: list[int]) -> list[int]:
        """Accept the draft while it is what would have been sampled, then go on."""
        seq = item.sequence
        tokens = known[: item.start + item.num_tokens]
        sampled: list[int] = []
        for guess in (*item.draft, None):
            sampled.append(self._next_token(tokens, seq.seed))
            if sampled[-1] != guess:
                break
            tokens.append(sampled[-1])
        for _ in range(item.num_decode_steps - 1):
            tokens.append(sampled[-1])
            self._write(seq.block_table, len(tokens) - 1, tokens[-1])
            sampled.append(self._next_token(tokens, seq.seed))
        return sampled

    def _slot(self, table: list[int], position: int) -> int:
        return table[position // self._block_size] * self._block_size + position % self._block_size

    def _write(self, table: list[int], position: int, token: int) -> None:
        self._kv[self._slot(table, position)] = token

    def _check_kv(self, table: list[int], known: list[int]) -> None:
        held = [self._kv[self._slot(table, position)] for position in range(len(known))]
        assert held == known, f"KV holds {held}, the sequence is {known}"


def _check_layers(plan: StepPlan, num_layers: int) -> None:
    """What a plan may ask of some layers."""
    sliced = [item.layers for item in plan.work if item.layers is not None]
    assert len(set(sliced)) <= 1, f"several ranges of layers: {sliced}"
    assert all(item.layers is None for item in plan.work[: len(plan.work) - len(sliced)])
    for layers in sliced:
        assert 0 <= layers.start < layers.stop <= num_layers, f"{layers} of {num_layers}"
        assert len(layers) < num_layers, "all layers, said as some"
    assert all(not item.draft for item in plan.work if item.layers is not None)


class FakeCodec:
    """Packs a block's tokens as text."""

    block_bytes = 16

    def pack(self, bits: Any) -> bytes:
        return repr(bits).encode()

    def unpack(self, packed: bytes) -> Any:
        return ast.literal_eval(packed.decode())


class LateExecutor(Executor):
    """Does what was submitted when told to, on the caller's thread."""

    def __init__(self) -> None:
        self.work: list[Callable[[], Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.work.append(lambda: fn(*args, **kwargs))
        return Future()

    def catch_up(self, count: int = 1 << 30) -> None:
        """Do the first `count` pieces of work."""
        while self.work and count > 0:
            self.work.pop(0)()
            count -= 1


class Bench:
    """An engine over a fake runner and a virtual clock.

    Args:
        window: The model's context window, tokens.
        host_bytes: Size of the host tier; 0 for none.
        runner: Options of `FakeRunner`.
        config: Options of `EngineConfig`.
    """

    def __init__(
        self,
        *,
        window: int = 4096,
        host_bytes: int = 0,
        runner: dict[str, Any] | None = None,
        **config: Any,
    ) -> None:
        settings = {"num_blocks": 256, "block_size": 4, "check_invariants": True, **config}
        self.config = EngineConfig(**settings)
        self.clock = VirtualClock()
        self.runner = FakeRunner(self.config, self.clock, **(runner or {}))
        self.card = ModelCard("fake", 0, window, VOCAB_SIZE, 1, "none")
        self.executor = LateExecutor()
        host = HostTier(host_bytes, FakeCodec(), self.executor) if host_bytes else None
        self.engine = Engine(
            self.config,
            card=self.card,
            runner=self.runner,
            vocabulary=ByteVocabulary(),
            encode_chat=encode_chat,
            clock=self.clock,
            wall_clock=self.clock,
            host_tier=host,
        )

    def request(
        self,
        request_id: str,
        text: str = "hello",
        *,
        tier: Tier = Tier.STANDARD,
        tenant: str = "t",
        deadline_s: float = 1e6,
        epoch: int = 1,
        conversation_id: str | None = None,
        messages: tuple[Message, ...] | None = None,
        **sampling: Any,
    ) -> GenerateRequest:
        sampling.setdefault("seed", 7)
        return GenerateRequest(
            request_id=request_id,
            model="fake",
            messages=messages or (Message("user", text),),
            sampling=SamplingParams(**sampling),
            tier=tier,
            tenant=tenant,
            conversation_id=conversation_id,
            reply_to="g",
            created_at=self.clock.now,
            deadline_at=self.clock.now + deadline_s,
            epoch=epoch,
        )

    def add(self, request_id: str, text: str = "hello", **options: Any) -> list[Any]:
        """Prepare and add a request; its events."""
        request = self.request(request_id, text, **options)
        return self.engine.add(self.engine.prepare(request))

    def warm(
        self,
        conversation_id: str,
        draft: str,
        messages: tuple[Message, ...] = (),
        tenant: str = "t",
    ) -> None:
        """Prepare and add a warm-up."""
        warm = Warm(conversation_id, "fake", messages, draft, tenant, self.clock.now)
        self.engine.warm_up(self.engine.prepare_warm_up(warm))

    def run(self, max_steps: int = 10_000) -> list[Any]:
        """Step until nothing is left to do; all events."""
        events: list[Any] = []
        for _ in range(max_steps):
            if not self.engine.has_work():
                return events
            events += self.engine.step()
        raise AssertionError(f"still busy after {max_steps} steps")


def text_of(events: Sequence[Any], request_id: str) -> str:
    """The joined deltas of one request."""
    return "".join(
        event.text for event in events if event.request_id == request_id and hasattr(event, "text")
    )
