"""Random arrivals, lengths, cancels, tiers, pools and faults over the fake model.

Every step compares all bookkeeping (`check_invariants`), and the fake runner refuses
to read KV that isn't what it should be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.contract import Accepted, Delta, Failed, Finished, FinishReason, Overloaded, Tier
from tests.fakes.runner import EOS_ID, Bench, encode_chat, hashed_token

EOS_EVERY = 60
WINDOW = 90


@dataclass
class Ask:
    """One request of a scenario."""

    text: str
    tier: Tier
    tenant: str
    seed: int
    max_tokens: int | None
    stop: tuple[str, ...]
    gap_steps: int
    cancel_after: int | None
    deadline_s: float


@dataclass
class Story:
    """A request's events and when they are due."""

    ask: Ask
    events: list[Any] = field(default_factory=list)
    cancel_at: int | None = None


def next_token(tokens: Sequence[int], seed: int, memory: int) -> int:
    """The fake model; one of little memory repeats itself, so that guesses come true."""
    return hashed_token(tokens[-memory:], seed, EOS_EVERY)


def whole_answer(bench: Bench, ask: Ask, memory: int) -> tuple[str, FinishReason]:
    """Text and end of an answer that nobody disturbs, worked out without an engine."""
    tokens = encode_chat(bench.request("x", ask.text).messages)
    start = len(tokens)
    limit = bench.engine.max_sequence_tokens
    if ask.max_tokens is not None:
        limit = min(limit, start + ask.max_tokens)
    while len(tokens) < limit:
        token = next_token(tokens, ask.seed, memory)
        if token == EOS_ID:
            return bytes(tokens[start:]).decode(), FinishReason.STOP
        tokens.append(token)
        text = bytes(tokens[start:]).decode()
        for stop in sorted(ask.stop, key=len, reverse=True):
            if text.endswith(stop):
                return text.removesuffix(stop), FinishReason.STOP
    return bytes(tokens[start:]).decode(), FinishReason.LENGTH


def check_story(bench: Bench, story: Story, memory: int, faulty: bool) -> None:
    events = story.events
    assert isinstance(events[0], Accepted)
    assert [event.seq for event in events] == list(range(len(events)))
    assert [isinstance(event, Finished | Failed) for event in events].index(True) == len(events) - 1
    deltas = [event for event in events if isinstance(event, Delta)]
    text = "".join(delta.text for delta in deltas)
    end = events[-1]
    assert sum(delta.num_tokens for delta in deltas) == end.usage.completion_tokens == len(text)
    assert end.usage.cached_tokens < end.usage.prompt_tokens == events[0].prompt_tokens
    expected, reason = whole_answer(bench, story.ask, memory)
    if isinstance(end, Failed):
        assert faulty or story.ask.deadline_s < 1000
        # A stop string's beginning is text as long as the stop didn't come.
        assert expected.startswith(text) or any(text.endswith(s[:1]) for s in story.ask.stop)
    elif end.reason is FinishReason.CANCELLED:
        assert story.cancel_at is not None
        assert expected.startswith(text) or any(text.endswith(s[:1]) for s in story.ask.stop)
    else:
        assert (text, end.reason) == (expected, reason)


_asks = st.builds(
    Ask,
    text=st.one_of(
        st.text("ab", min_size=1, max_size=40),
        # Long common prefixes.
        st.integers(1, 70).map(lambda size: ("a shared prefix for all " * 4)[:size]),
    ),
    tier=st.sampled_from(list(Tier)),
    tenant=st.sampled_from(["t", "u"]),
    seed=st.integers(0, 3),
    max_tokens=st.one_of(st.none(), st.integers(1, 60)),
    stop=st.lists(st.text("abcdefg", min_size=1, max_size=2), max_size=2).map(tuple),
    gap_steps=st.sampled_from([0, 0, 1, 5]),
    cancel_after=st.one_of(st.none(), st.none(), st.none(), st.integers(0, 40)),
    deadline_s=st.sampled_from([1e6, 1e6, 1e6, 1e6, 0.2]),
)

_configs = st.fixed_dictionaries(
    {
        "num_kv_tokens": st.integers(48, 240),
        "block_size": st.sampled_from([1, 4, 16]),
        "max_running": st.integers(1, 6),
        "standard_max_waiting": st.integers(2, 20),
        "max_step_tokens": st.sampled_from([16, 64]),
        "target_step_ms": st.sampled_from([5.0, 40.0]),
        "ageing_ms": st.sampled_from([50.0, 10_000.0]),
        "max_suspensions": st.integers(0, 3),
        "max_pause_ms": st.sampled_from([0.0, 30.0, 500.0]),
        "batch_wait_ms": st.sampled_from([0.0, 40.0, 200.0]),
        "flush_ms": st.sampled_from([0.0, 100.0]),
        "prefix_cache": st.booleans(),
        "speculation": st.sampled_from(["off", "ngram", "auto"]),
        "max_draft_tokens": st.sampled_from([2, 8]),
    }
)


@settings(max_examples=120, deadline=None)
@given(
    asks=st.lists(_asks, min_size=1, max_size=12),
    config=_configs,
    max_decode_steps=st.sampled_from([1, 4]),
    piece_layers=st.sampled_from([1, 3, 30]),
    memory=st.sampled_from([1, 2, 1000]),
    fault_at=st.one_of(st.none(), st.none(), st.integers(0, 30)),
    forms_batches=st.booleans(),
)
def test_every_request_ends_once_with_the_right_text(
    asks: list[Ask],
    config: dict[str, Any],
    max_decode_steps: int,
    piece_layers: int,
    memory: int,
    fault_at: int | None,
    forms_batches: bool,
) -> None:
    num_blocks = config.pop("num_kv_tokens") // config["block_size"]
    bench = Bench(
        window=WINDOW,
        num_blocks=num_blocks,
        runner={
            "next_token": lambda tokens, seed: next_token(tokens, seed, memory),
            "max_decode_steps": max_decode_steps,
            "piece_layers": piece_layers,
        },
        **config,
    )
    if forms_batches:
        # As if steps with prompts had been seen to cost much.
        bench.engine.scheduler.forming.gain = lambda now: 1.0  # type: ignore[method-assign]
    limit = bench.engine.max_sequence_tokens
    stories: dict[str, Story] = {}
    pending = [ask for ask in asks if len(ask.text) + 1 < limit]
    num_steps = next_at = 0
    while pending or bench.engine.has_work():
        assert num_steps < 5000, "no progress"
        events: list[Any] = []
        while pending and next_at <= num_steps:
            ask = pending.pop(0)
            next_at = num_steps + ask.gap_steps
            name = f"r{len(pending)}"
            cancel_at = None if ask.cancel_after is None else num_steps + ask.cancel_after
            try:
                events += bench.add(
                    name,
                    ask.text,
                    tier=ask.tier,
                    tenant=ask.tenant,
                    seed=ask.seed,
                    max_tokens=ask.max_tokens,
                    stop=ask.stop,
                    deadline_s=ask.deadline_s,
                )
                stories[name] = Story(ask, cancel_at=cancel_at)
            except Overloaded:
                continue
        for name, story in stories.items():
            if story.cancel_at == num_steps:
                events += bench.engine.cancel(name)
        bench.runner.fail_next = num_steps == fault_at
        events += bench.engine.step()
        for event in events:
            stories[event.request_id].events.append(event)
        num_steps += 1
        assert bench.engine.report().fault == ""
        assert bench.engine.stats().counters["repartee_engine_leaked_blocks"] == 0
    for story in stories.values():
        check_story(bench, story, memory, fault_at is not None)
    stats = bench.engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.used_blocks) == (0, 0, 0)
    assert not bench.engine.sequences
