"""Guessing by n-grams: the guesses, their account, and text that doesn't change."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.contract import Delta, FinishReason
from engine.guess_costs import Account
from engine.ngrams import MAX_MATCH, MIN_MATCH, NgramIndex
from engine.sequence import Drafting
from tests.fakes.runner import CONTROL_ID, EOS_ID, Bench, text_of


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


class Oracle:
    """Guesses each token of a model rightly with some chance, whatever was said before.

    Right guesses are those of text that agrees for long.
    """

    def __init__(self, model: Any, chance: float, rng: random.Random) -> None:
        self._model = model
        self._match = MAX_MATCH if chance == 1 else MIN_MATCH
        self._chance = chance
        self._rng = rng

    def propose(self, tokens: Any, limit: int) -> tuple[tuple[int, ...], int]:
        said = list(tokens)
        guesses = []
        for _ in range(limit):
            said.append(self._model(said, 0))
            is_right = self._rng.random() < self._chance
            guesses.append(said[-1] if is_right else CONTROL_ID)
        return tuple(guesses), self._match


def decode_seconds(
    mode: str, chances: list[float], *, base_ms: float, token_ms: float, count: int = 200
) -> float:
    """Of one answer for each chance, all at once, from the first tokens to the last."""
    bench = Bench(
        runner={"next_token": cycle, "token_ms": token_ms, "base_ms": base_ms},
        speculation=mode,
        check_invariants=False,
        num_blocks=4096,
    )
    rng = random.Random(len(chances))
    for i in range(len(chances)):
        bench.add(f"r{i}", f"text {i}", max_tokens=count)
    if mode != "off":
        rates = bench.engine.scheduler.speculation.new_rates
        for seq, chance in zip(bench.engine.sequences.values(), chances, strict=True):
            seq.drafting = Drafting(rates(), index=Oracle(cycle, chance, rng))  # type: ignore[arg-type]
    while any(seq.num_uncomputed > 1 for seq in bench.engine.sequences.values()):
        bench.engine.step()
    start = bench.clock.now
    bench.run()
    return bench.clock.now - start


def best_gain(batch: int, chance: float, base_ms: float, token_ms: float, most: int = 8) -> float:
    """Of the best fixed length of guesses, if luck were spread evenly."""
    plain_ms = base_ms + batch * token_ms
    return max(
        sum(chance**i for i in range(length + 1))
        * plain_ms
        / (plain_ms + batch * length * token_ms)
        for length in range(most + 1)
    )


COSTS = ({"base_ms": 5.0, "token_ms": 1.0}, {"base_ms": 10.0, "token_ms": 0.5})
DEAR = {"base_ms": 1.0, "token_ms": 3.0}


@pytest.mark.parametrize("batch", range(1, 17))
@pytest.mark.parametrize("is_dear", [False, True])
def test_auto_never_costs_and_takes_what_there_is(batch: int, is_dear: bool) -> None:
    costs = DEAR if is_dear else COSTS[batch % 2]
    count = 100 if is_dear or batch > 8 else 200
    off = decode_seconds("off", [0.0] * batch, count=count, **costs)
    for chance in (0.0, 0.9) if is_dear else (0.0, 0.4, 0.7, 0.9, 1.0):
        gain = off / decode_seconds("auto", [chance] * batch, count=count, **costs)
        assert gain >= 0.98, chance
        # A third of what could be won may go into finding out, and into uneven luck.
        assert gain - 1 >= 0.67 * (best_gain(batch, chance, **costs) - 1) - 0.17, chance


def test_one_repetitive_chat_guesses_among_others() -> None:
    costs = {"base_ms": 10.0, "token_ms": 0.5}
    chances = [1.0, *[0.0] * 7]
    bench = Bench(speculation="auto", runner={"next_token": cycle, **costs}, num_blocks=4096)
    rng = random.Random(3)
    for i, chance in enumerate(chances):
        bench.add(f"r{i}", f"text {i}", max_tokens=200)
        rates = bench.engine.scheduler.speculation.new_rates()
        bench.engine.sequences[f"r{i}"].drafting = Drafting(rates, index=Oracle(cycle, chance, rng))  # type: ignore[arg-type]
    while len(bench.engine.sequences) == 8:
        bench.engine.step()
    assert "r0" not in bench.engine.sequences
    states = [seq.drafting for seq in bench.engine.sequences.values()]
    assert all(seq.num_answer_tokens < 80 for seq in bench.engine.sequences.values())
    assert sum(state.num_drafted for state in states if state is not None) < 60
    off = decode_seconds("off", chances, **costs)
    assert off / decode_seconds("auto", chances, **costs) >= 0.98


def test_a_batch_size_is_remembered_from_answer_to_answer() -> None:
    bench = Bench(
        speculation="auto", runner={"next_token": cycle, "base_ms": 10.0, "token_ms": 0.5}
    )
    drafted = []
    for i in range(3):
        bench.add(f"r{i}", "abcdefghijk" * 2, max_tokens=30)
        bench.run()
        drafted.append(len(bench.runner.plans))
    assert drafted[1] - drafted[0] < drafted[0]


def test_where_no_guess_can_pay_hardly_any_is_looked_for() -> None:
    calls = 0

    class Counting(NgramIndex):
        def propose(self, tokens: Any, limit: int) -> tuple[tuple[int, ...], int]:
            nonlocal calls
            calls += 1
            return super().propose(tokens, limit)

    bench = Bench(speculation="auto", runner={"next_token": cycle, "base_ms": 0.1, "token_ms": 5.0})
    for i in range(4):
        bench.add(f"r{i}", max_tokens=120)
        rates = bench.engine.scheduler.speculation.new_rates()
        bench.engine.sequences[f"r{i}"].drafting = Drafting(rates, index=Counting())
    bench.run()
    assert 0 < calls < 4 * 120 / 4


def test_a_slow_step_or_two_don_t_end_the_guessing() -> None:
    account = Account(1)
    for step in range(1, 200):
        account.begin_step(step, 0.0, 1.0)
        if account.may_check:
            slow = 60.0 if step % 40 == 0 else 0.0
            account.record_checked(4, 14.0 + slow)
            account.won(4)
        else:
            account.record_plain(10.0)
    assert account.may_check
    assert account.each_ms == pytest.approx(1.0, abs=0.5)


def test_each_request_counts_once_in_the_acceptance() -> None:
    bench = Bench(runner={"next_token": cycle}, speculation="ngram")
    for i in range(3):
        bench.add(f"r{i}", max_tokens=80)
    bench.run()
    counters = bench.engine.stats().counters
    assert counters["repartee_engine_drafting_requests_total"] == 3
    assert 1.5 < counters["repartee_engine_acceptance_sum_total"] <= 3
