"""What the scheduler asks of a runner, and what comes back.

The line between policy and arithmetic: above it plain Python that a test drives
with a fake runner and a virtual clock, below it tensors on some device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Work:
    """One sequence's share of a step.

    Attributes:
        sequence: Whose tokens; its block table already covers the range.
        start: Position of the first token to compute: tokens before it are in KV.
        num_tokens: How many of the sequence's known tokens to compute, at least 1.
            1 for a plain decode; more for a prefill piece.
        samples: Whether the last computed token's logits yield a new token. False
            for a prefill piece that doesn't reach the end of the known tokens.
        draft: Guessed continuation to verify after the known tokens; the runner
            returns the accepted part plus one token. Its KV slots are reserved.
        num_decode_steps: Decode this many tokens back to back, KV slots reserved;
            more than 1 only where `samples` and the runner's `max_decode_steps` allow.
        layers: Those that the step computes, where it leaves some of a piece to other
            steps; the sequence's `partial` then holds what passes between them. None
            for all layers. All such items of a plan have the same layers, and come
            last in it.
        num_layers: Layers in all, where `layers` says which.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool
    draft: tuple[int, ...] = ()
    num_decode_steps: int = 1
    layers: range | None = None
    num_layers: int = 1

    @property
    def share(self) -> float:
        """Of the work on its tokens, how much is the step's."""
        return 1.0 if self.layers is None else len(self.layers) / self.num_layers

    @property
    def finishes(self) -> bool:
        """Whether its tokens are computed when the step ends."""
        return self.layers is None or self.layers.stop == self.num_layers


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One engine step: decode and prefill pieces mixed, in batch order."""

    work: tuple[Work, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens that the step works on, guesses included."""
        return sum(item.num_tokens + len(item.draft) for item in self.work)

    @property
    def num_finished_tokens(self) -> int:
        """Of these, those that are computed when it ends."""
        return sum(item.num_tokens + len(item.draft) for item in self.work if item.finishes)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Where a step's time went, seconds.

    Attributes:
        schedule_s: Choosing the work.
        prepare_s: Turning it into tensors.
        forward_s: The model.
        sample_s: Logits to tokens.
        text_s: Tokens to text and events.
        publish_s: Handing the events on, where that is measured.
    """

    schedule_s: float = 0.0
    prepare_s: float = 0.0
    forward_s: float = 0.0
    sample_s: float = 0.0
    text_s: float = 0.0
    publish_s: float = 0.0

    def __add__(self, other: StepTimes) -> StepTimes:
        return StepTimes(
            self.schedule_s + other.schedule_s,
            self.prepare_s + other.prepare_s,
            self.forward_s + other.forward_s,
            self.sample_s + other.sample_s,
            self.text_s + other.text_s,
            self.publish_s + other.publish_s,
        )


@dataclass(frozen=True, slots=True)
class StepOutput:
    """New token ids by sequence id; a sequence that sampled nothing is absent.

    A token that ends its sequence (end of turn, stop token) may be followed by
    others where several were decoded at once; the engine drops them. An id below 0
    says that no token could be sampled; the engine fails that request.

    Attributes:
        tokens: Sequence id to new token ids, in order.
        times: The runner's part of the step's times.
        setup_s: Seconds that went into what later steps of the kind find in place
            (compilation, graphs); no part of what such a step costs.
    """

    tokens: dict[int, list[int]] = field(default_factory=dict)
    times: StepTimes = field(default_factory=StepTimes)
    setup_s: float = 0.0


class Runner(Protocol):
    """Executes plans; the only thing below the line that the engine knows."""

    @property
    def max_decode_steps(self) -> int: ...

    @property
    def max_ahead_steps(self) -> int:
        """Tokens that it makes beyond a plan's last, where sequences have blocks for them."""
        ...

    @property
    def piece_layers(self) -> int:
        """Layers of which it can compute some in one step and the rest in later ones.

        1 where it computes all of them at once.
        """
        ...

    def gauges(self) -> Mapping[str, float]:
        """Its device's memory, by Prometheus name; empty where there is nothing to tell."""
        ...

    def run(self, plan: StepPlan) -> StepOutput:
        """Compute `plan`: write the KV of its tokens, return what was sampled."""
        ...

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole KV blocks, (source, destination)."""
        ...

    def read_blocks(self, blocks: list[int]) -> list[Any]:
        """Copies of whole KV blocks' contents, on the host."""
        ...

    def write_blocks(self, blocks: list[int], contents: list[Any]) -> None:
        """Put contents that `read_blocks` returned into blocks, different ones or not."""
        ...
