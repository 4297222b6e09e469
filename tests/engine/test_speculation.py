"""Guessing by n-grams: the guesses, their account, and text that doesn't change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.contract import Delta, FinishReason
from engine.ngrams import MAX_MATCH, MIN_MATCH, NgramIndex
from tests.fakes.runner import EOS_ID, Bench, text_of


def cycle(tokens: Any, seed: int) -> int:
    """Says a fixed round of eleven letters."""
    return 97 + len(tokens) % 11


def test_a_repeated_phrase_is_continued() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 9, 9, 2, 3, 4]
    assert NgramIndex().propose(tokens, 2) == ((5, 6), 3)
    assert NgramIndex().propose(tokens, 9)[0] == (5, 6, 9, 9, 2, 3, 4)
    assert NgramIndex().propose([1, 2, 3, 4], 5) == ((), 0)
    assert NgramIndex().propose([1, 2], 5) == ((), 0)


def test_the_longest_agreement_wins_then_the_latest() -> None:
    tokens = [7, 1, 2, 3, 50, 8, 1, 2, 3, 60, 7, 1, 2, 3]
    assert NgramIndex().propose(tokens, 1) == ((50,), 4)
    tokens = [7, 1, 2, 3, 50, 7, 1, 2, 3, 60, 7, 1, 2, 3]
    assert NgramIndex().propose(tokens, 1) == ((60,), 4)


def by_brute_force(tokens: list[int]) -> int:
    """The longest agreement of the end with any earlier place, 0 below MIN_MATCH."""
    longest = 0
    for place in range(MIN_MATCH, len(tokens)):
        match = 0
        while match < min(MAX_MATCH, place) and tokens[place - 1 - match] == tokens[-1 - match]:
            match += 1
        longest = max(longest, match)
    return longest if longest >= MIN_MATCH else 0


@given(st.lists(st.integers(0, 3), max_size=40))
def test_guesses_against_brute_force(tokens: list[int]) -> None:
    grown = NgramIndex()
    for end in range(1, len(tokens) + 1):
        guess, match = grown.propose(tokens[:end], 4)
        assert (guess, match) == NgramIndex().propose(tokens[:end], 4)
        # Only the latest few places are looked at.
        assert match <= by_brute_force(tokens[:end])
        assert (match > 0) == (by_brute_force(tokens[:end]) > 0)
        assert len(guess) <= 4
        assert (match > 0) == bool(guess)


@pytest.mark.parametrize("draft", [2, 3, 5, 8])
def test_spd_01_same_text_in_fewer_steps(draft: int) -> None:
    plain = Bench(runner={"next_token": cycle})
    guessing = Bench(runner={"next_token": cycle}, speculation="ngram", max_draft_tokens=draft)
    texts = []
    for bench in (plain, guessing):
        bench.add("a", max_tokens=120)
        events = bench.run()
        texts.append(text_of(events, "a"))
        assert events[-1].usage.completion_tokens == 120
    assert texts[0] == texts[1]
    speculation = guessing.engine.scheduler.speculation
    assert speculation.num_accepted > 60
    assert len(guessing.runner.plans) < len(plain.runner.plans) * 2 / (1 + draft)


@pytest.mark.parametrize("draft", [2, 3, 5, 8])
def test_spd_02_spd_04_nothing_after_an_end_inside_a_guess(draft: int) -> None:
    def model(tokens: Any, seed: int) -> int:
        return EOS_ID if len(tokens) == 46 else cycle(tokens, seed)

    for sampling in ({}, {"stop": ("cde",), "max_tokens": 90}, {"stop_token_ids": (104,)}):
        results = []
        for mode in ("off", "ngram"):
            # The prompt holds the round, so that guesses begin at once.
            bench = Bench(runner={"next_token": model}, speculation=mode, max_draft_tokens=draft)
            bench.add("a", "abcdefghijk" * 3, **sampling)
            events = bench.run()
            results.append((text_of(events, "a"), events[-1].reason, events[-1].usage))
        assert results[0] == results[1]
        assert results[0][1] is FinishReason.STOP
        assert results[0][2].completion_tokens == len(results[0][0])


def test_spd_06_bursts_keep_the_chunk_size() -> None:
    bench = Bench(runner={"next_token": cycle}, speculation="ngram", flush_ms=1e6)
    bench.add("a", max_tokens=150)
    sizes = [event.num_tokens for event in bench.run() if isinstance(event, Delta)]
    assert sizes[0] == 1
    assert all(3 <= size <= 5 for size in sizes[1:-1])
    assert sum(sizes) == 150


def throughput(
    mode: str, model: Any, *, base_ms: float = 10.0, token_ms: float, count: int = 400
) -> tuple[float, int]:
    """Tokens per second of one long answer, and how many tokens were guessed."""
    bench = Bench(
        runner={"next_token": model, "token_ms": token_ms, "base_ms": base_ms},
        speculation=mode,
        check_invariants=False,
        num_blocks=1024,
    )
    bench.add("a", "the text", max_tokens=count)
    start = bench.clock.now
    bench.run()
    return count / (bench.clock.now - start), bench.engine.scheduler.speculation.num_drafted


def test_auto_guesses_where_it_pays() -> None:
    plain, _ = throughput("off", cycle, token_ms=0.5)
    guessing, _ = throughput("auto", cycle, token_ms=0.5)
    assert guessing > 2 * plain


def test_auto_stays_off_where_rows_are_dear() -> None:
    plain, _ = throughput("off", cycle, base_ms=0.1, token_ms=12.0)
    guessing, drafted = throughput("auto", cycle, base_ms=0.1, token_ms=12.0)
    assert guessing > 0.97 * plain
    assert drafted < 60


def test_auto_stays_off_where_guesses_fail() -> None:
    def unlike(tokens: Any, seed: int) -> int:
        # Agrees with an earlier place again and again, and then goes another way.
        return 97 + (len(tokens) // 5 % 7 if len(tokens) % 5 == 0 else len(tokens) % 5)

    plain, _ = throughput("off", unlike, token_ms=2.0)
    guessing, _ = throughput("auto", unlike, token_ms=2.0)
    assert guessing > 0.97 * plain


@pytest.mark.parametrize("batch", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("token_ms", [0.1, 2.0, 12.0])
@pytest.mark.parametrize("model", [None, cycle])
def test_auto_never_costs_at_any_batch_size(batch: int, token_ms: float, model: Any) -> None:
    seconds = []
    for mode in ("off", "auto"):
        bench = Bench(
            runner={"next_token": model, "token_ms": token_ms, "base_ms": 5.0},
            speculation=mode,
            check_invariants=False,
            num_blocks=2048,
        )
        for i in range(batch):
            bench.add(f"r{i}", f"text {i}", max_tokens=120, seed=i)
        start = bench.clock.now
        bench.run()
        seconds.append(bench.clock.now - start)
    off, auto = seconds
    assert auto <= off / 0.97


def test_each_request_counts_once_in_the_acceptance() -> None:
    bench = Bench(runner={"next_token": cycle}, speculation="ngram")
    for i in range(3):
        bench.add(f"r{i}", max_tokens=80)
    bench.run()
    counters = bench.engine.stats().counters
    assert counters["repartee_engine_drafting_requests_total"] == 3
    assert 1.5 < counters["repartee_engine_acceptance_sum_total"] <= 3
