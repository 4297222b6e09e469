"""Which worker gets a request."""

from __future__ import annotations

import random

import pytest

from app.routing.policy import MAX_WAITING, Candidate, choose, choose_to_warm
from engine.config import EngineConfig
from engine.contract import ModelCard, Overloaded, Unavailable, WorkerState
from tests.spine import make_request

CARD = ModelCard("m", 0, 100, 10, 4, "none")


def candidate(
    worker_id: str,
    *,
    running: int = 0,
    waiting: int = 0,
    unseen: int = 0,
    blocks: int = 100,
    held: int = 0,
) -> Candidate:
    state = WorkerState(worker_id, CARD, 0.0, 0.0, running, waiting, 0, blocks, 0.0, False, {})
    return Candidate(state, unseen, held)


def chosen(*candidates: Candidate, max_waiting: int = 10) -> str:
    return choose(make_request(), candidates, max_waiting=max_waiting).state.worker_id


def test_the_least_loaded_for_its_size() -> None:
    assert chosen(candidate("a", running=4), candidate("b", running=3)) == "b"
    assert chosen(candidate("a", running=4, blocks=1000), candidate("b", running=3)) == "a"
    assert chosen(candidate("a", waiting=2), candidate("b", running=1)) == "b"


def test_requests_on_their_way_count() -> None:
    assert chosen(candidate("a", unseen=1), candidate("b")) == "b"


def test_full_queues_of_lower_tiers_refuse_no_vip() -> None:
    """What each tier may have waiting is the worker's to say."""
    config = EngineConfig(num_blocks=1)
    full = config.standard_max_waiting + config.batch_max_waiting
    assert chosen(candidate("a", waiting=full), max_waiting=MAX_WAITING) == "a"


def test_equals_share() -> None:
    rng = random.Random(3)
    names = {
        choose(make_request(), [candidate("a"), candidate("b")], rng=rng).state.worker_id
        for _ in range(50)
    }
    assert names == {"a", "b"}


def test_a_full_worker_is_passed_over_and_all_full_is_overload() -> None:
    full = candidate("a", waiting=6, unseen=4, blocks=10**9)
    assert chosen(full, candidate("b", running=50)) == "b"
    with pytest.raises(Overloaded, match="at least 10 requests wait, the limit is 10"):
        chosen(full, candidate("b", waiting=11))


def test_no_worker_is_unavailable_and_worth_a_retry() -> None:
    with pytest.raises(Unavailable) as caught:
        chosen()
    assert caught.value.retryable and caught.value.code == "no_worker"


def test_the_longest_held_prefix_goes_first() -> None:
    assert chosen(candidate("a", held=200, running=2), candidate("b", held=100)) == "a"
    assert chosen(candidate("a", held=1), candidate("b")) == "a"


@pytest.mark.parametrize(("running", "expected"), [(8, "a"), (9, "b")])
def test_a_holder_is_at_most_half_again_busier_and_two(running: int, expected: str) -> None:
    assert chosen(candidate("a", held=900, running=running), candidate("b", running=4)) == expected


def test_holders_of_about_as_much_share() -> None:
    assert chosen(candidate("a", held=900, running=3), candidate("b", held=896, running=1)) == "b"
    busy = candidate("c", held=0)
    assert chosen(candidate("a", held=900, running=3), candidate("b", held=900), busy) == "b"
    assert chosen(candidate("a", held=900, running=2), candidate("b", held=500)) == "a"


def test_a_full_holder_is_passed_over() -> None:
    assert chosen(candidate("a", held=900, waiting=10), candidate("b", running=30)) == "b"


def test_drafts_go_only_where_nobody_waits() -> None:
    assert choose_to_warm([candidate("a", waiting=1), candidate("b", unseen=1)]) is None
    assert choose_to_warm([]) is None
    busy_holder = candidate("a", held=50, running=3)
    picked = choose_to_warm([busy_holder, candidate("b", running=2)])
    assert picked is busy_holder
