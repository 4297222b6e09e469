"""Tokens made ahead: the same as without, whatever happens to the batch in between."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from engine.cuda_ahead import AheadLength
from engine.model.llama import CausalLM
from engine.step import StepPlan, Work
from tests.kernels.triton.test_cuda_runner import make_runner, make_sequence

STEPS = 4


def decode(seq: Any, num_steps: int) -> Work:
    return Work(seq, len(seq.tokens) - 1, 1, True, num_decode_steps=num_steps)


def run(runner: Any, *work: Work) -> None:
    output = runner.run(StepPlan(work))
    for item in work:
        item.sequence.tokens += output.tokens.get(item.sequence.id, [])


def batch() -> list[Any]:
    return [
        make_sequence(0, 5, 0),
        make_sequence(1, 7, 8, temperature=0.9),
        make_sequence(2, 3, 16, temperature=1.0, top_k=20),
        make_sequence(3, 6, 40, temperature=0.8),
    ]


def expected(model: CausalLM, device: torch.device, seqs: list[Any]) -> list[list[int]]:
    """The same lengths by single steps, nothing ahead.

    On the card bf16 sums depend on the batch, and so may the choice between near equals:
    there only the lengths are compared.
    """
    if device.type == "cuda":
        return [seq.tokens for seq in seqs]
    runner = make_runner(model, device, 1)
    alone = batch()[: len(seqs)]
    for seq, like in zip(alone, seqs, strict=True):
        run(runner, Work(seq, 0, len(seq.tokens), True))
        while len(seq.tokens) < len(like.tokens):
            run(runner, decode(seq, 1))
    return [seq.tokens for seq in alone]


@pytest.fixture
def runner(device: torch.device, model: CausalLM) -> Any:
    return make_runner(model, device, STEPS)


def test_plans_that_go_on_find_their_tokens_made(
    runner: Any,
    model: CausalLM,
    device: torch.device,
) -> None:
    seqs = batch()
    run(runner, *(Work(seq, 0, len(seq.tokens), True) for seq in seqs))
    starts: list[object] = []
    chunk = runner.decoder.chunk(4, 64, False)
    begin = chunk.start
    chunk.start = lambda *args, **options: (starts.append(args), begin(*args, **options))
    for _ in range(4):
        run(runner, *(decode(seq, STEPS) for seq in seqs))
    # The first plan puts the rows in place; after it the device goes on by itself.
    assert len(starts) == 1
    assert runner.decoder._ahead is not None
    assert [seq.tokens for seq in seqs] == expected(model, device, seqs)


def test_rows_go_on_beside_those_that_end_and_come(
    runner: Any,
    model: CausalLM,
    device: torch.device,
) -> None:
    seqs = batch()
    run(runner, *(Work(seq, 0, len(seq.tokens), True) for seq in seqs))
    starts: list[object] = []
    chunk = runner.decoder.chunk(3, 64, False)
    begin = chunk.start
    chunk.start = lambda *args, **options: (starts.append(args), begin(*args, **options))
    for chosen in ((0, 1, 2), (0, 2, 3), (3, 1, 0), (1, 3, 2)):
        run(runner, *(decode(seqs[i], STEPS) for i in chosen))
    assert len(starts) == 1
    assert [seq.tokens for seq in seqs] == expected(model, device, seqs)


@pytest.mark.parametrize("seed", range(6))
def test_any_change_of_the_batch_gives_the_same_tokens(
    runner: Any,
    model: CausalLM,
    device: torch.device,
    seed: int,
) -> None:
    choose = random.Random(seed)
    seqs = batch()
    run(runner, *(Work(seq, 0, len(seq.tokens), True) for seq in seqs))
    other = make_sequence(9, 6, 24)
    for _ in range(6):
        chosen = choose.sample(seqs, choose.randint(1, 4))
        kind = choose.choice(["plain", "plain", "mixed", "short"])
        work = [decode(seq, STEPS if kind == "plain" else 1) for seq in chosen]
        if kind == "mixed":
            work.append(Work(other, 0, len(other.tokens), False))
        run(runner, *work)
    assert [seq.tokens for seq in seqs] == expected(model, device, seqs)


def test_a_suspended_sequence_finds_nothing_of_its_former_blocks(
    runner: Any,
    model: CausalLM,
    device: torch.device,
) -> None:
    (seq,) = seqs = batch()[:1]
    run(runner, Work(seq, 0, len(seq.tokens), True))
    run(runner, decode(seq, STEPS))
    assert runner.decoder._ahead is not None
    intruder = make_sequence(9, 20, 0)
    runner.run(StepPlan((Work(intruder, 0, 20, True),)))
    seq.num_suspensions += 1
    seq.block_table = list(range(32, 40))
    run(runner, Work(seq, 0, len(seq.tokens), True))
    run(runner, decode(seq, STEPS))
    assert [seq.tokens for seq in seqs] == expected(model, device, seqs)


def test_nothing_is_written_past_the_blocks_of_a_sequence(
    runner: Any,
    model: CausalLM,
    device: torch.device,
) -> None:
    (seq,) = seqs = batch()[:1]
    # Blocks of 4: room for positions 0 to 11, and none for tokens ahead of the tenth.
    seq.block_table = [0, 1, 2]
    run(runner, Work(seq, 0, len(seq.tokens), True))
    kept = [cache.k[3:].clone() for cache in runner._caches]
    run(runner, decode(seq, STEPS))
    run(runner, decode(seq, 2))
    for cache, before in zip(runner._caches, kept, strict=True):
        assert torch.equal(cache.k[3:], before)
    seq.block_table += [3, 4]
    run(runner, decode(seq, STEPS))
    assert [seq.tokens for seq in seqs] == expected(model, device, seqs)


def test_the_length_covers_the_hosts_time_and_no_more() -> None:
    length = AheadLength(4)
    assert length.num_steps == 1
    now = 0.0
    for _ in range(40):
        now += 0.008
        length.plan_done(now, 0.008, 4)
        now += 0.005
        length.plan_came(now)
    # Steps of 2 ms, 5 ms of the host's.
    assert length.num_steps == 3
    for _ in range(40):
        now += 0.008
        length.plan_done(now, 0.008, 4)
        now += 0.0001
        length.plan_came(now)
    assert length.num_steps == 1
    assert AheadLength(0).num_steps == 0
