"""One request on its way through the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from engine.contract import GenerateRequest, SamplingParams, Tier, Usage
from engine.guess_rates import GuessRates
from engine.ngrams import NgramIndex
from engine.text_stream import TextStream


class Status(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


TIER_RANKS = {Tier.VIP: 0, Tier.STANDARD: 1, Tier.BATCH: 2}


@dataclass(frozen=True, slots=True)
class Guess:
    """How a sequence may go on.

    Attributes:
        position: Of the first guessed token.
        tokens: Guessed.
        match: Length of the agreement behind them.
    """

    position: int
    tokens: tuple[int, ...]
    match: int


@dataclass(slots=True)
class Drafting:
    """One sequence's guessing.

    Attributes:
        rates: How often its guesses are right.
        index: Where its n-grams are.
        guess: The last one, whether or not it was checked.
        num_drafted: Tokens guessed and checked.
        num_accepted: Of these, how many stood.
    """

    rates: GuessRates
    index: NgramIndex = field(default_factory=NgramIndex)
    guess: Guess | None = None
    num_drafted: int = 0
    num_accepted: int = 0


@dataclass(slots=True)
class PartialPiece:
    """A piece of a prompt of which so far only some layers are computed.

    Attributes:
        num_tokens: Its size.
        layers_a_step: Layers that a step was planned to compute of it.
        num_layers: Layers that are computed.
        hidden: What the next layer starts from, as the runner left it.
    """

    num_tokens: int
    layers_a_step: int
    num_layers: int = 0
    hidden: Any = None


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens, KV blocks, sampling state and text of one request.

    Attributes:
        id: Unique within the engine; rises in order of arrival.
        request: What was asked for.
        tokens: Prompt and answer so far; the token that ended it is left out.
        num_prompt_tokens: How many of `tokens` are the prompt.
        max_tokens: Length at which the answer ends: the limit asked for, the
            window or the KV pool, whichever comes first.
        seed: Key of the sampling noise.
        end_ids: Tokens that end the answer.
        masked_ids: Tokens that can't be sampled before `sampling.min_tokens`.
        block_names: Names of the full blocks of `tokens`, as far as known.
        root_name: Parent of the first block.
        stream: The answer's text.
        arrived_at: When it was added, seconds.
        enqueued_at: When it last began to wait, seconds.
        place_at: Where it stands in its tier's queue, seconds; see `engine.fair_share`.
        work_s: Seconds of the machine that it was expected to take; 0 if unknown.
        predicted_wait_s: How long it was expected to wait when it came; 0 if unknown.
        served_at: When a step last computed something for it, seconds.
        started_at: When it first ran, seconds; None before.
        block_table: KV blocks in order of position.
        num_computed: Tokens whose KV is in the blocks.
        partial: The piece after these that is computed in part; None where none is.
        waited_at: `num_computed` when it last let another compute its next block; -1 for
            never. See `engine.prefix_joins`.
        num_named: Blocks of the table that were offered to the prefix cache.
        rank: Tier in which it runs, lowered by ageing; 0 goes first.
        num_suspensions: How often it was suspended.
        num_evictions: How often of these for want of blocks for answers to grow.
        cached_tokens: Prompt tokens found in the prefix cache at first admission.
        next_seq: seq of its next event.
        num_told: How many of `tokens` the prompt and the deltas so far have named.
        expires_at: When it is no longer wanted, seconds on the engine's clock.
        drafting: Its guesses, where speculation is on.
    """

    id: int
    request: GenerateRequest
    tokens: list[int]
    num_prompt_tokens: int
    max_tokens: int
    seed: int
    end_ids: frozenset[int]
    masked_ids: tuple[int, ...]
    block_names: list[bytes]
    root_name: bytes
    stream: TextStream
    arrived_at: float
    enqueued_at: float
    place_at: float = 0.0
    work_s: float = 0.0
    predicted_wait_s: float = 0.0
    served_at: float = 0.0
    started_at: float | None = None
    status: Status = Status.WAITING
    block_table: list[int] = field(default_factory=list)
    num_computed: int = 0
    partial: PartialPiece | None = None
    waited_at: int = -1
    num_named: int = 0
    rank: int = 0
    num_suspensions: int = 0
    num_evictions: int = 0
    cached_tokens: int | None = None
    next_seq: int = 0
    num_told: int = 0
    expires_at: float = float("inf")
    drafting: Drafting | None = None

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def sampling(self) -> SamplingParams:
        return self.request.sampling

    @property
    def tier_rank(self) -> int:
        return TIER_RANKS[self.request.tier]

    @property
    def num_answer_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_remaining(self) -> int:
        """Tokens the answer may still grow by."""
        return self.max_tokens - len(self.tokens)

    @property
    def num_uncomputed(self) -> int:
        """Known tokens whose KV is missing; 1 for a sequence that decodes."""
        return len(self.tokens) - self.num_computed

    def usage(self) -> Usage:
        """Tokens counted so far.

        The answer counts its visible tokens once its text has ended, so that a
        stop string takes the tokens it cut away out of the count again.
        """
        return Usage(
            prompt_tokens=self.num_prompt_tokens,
            completion_tokens=self.stream.num_visible,
            cached_tokens=self.cached_tokens or 0,
        )
