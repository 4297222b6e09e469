"""Drafts checked on the GPU: accepted as far as a plain step would have made the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.model.llama import CausalLM
from engine.sequence import Sequence
from engine.step import StepPlan, Work
from tests.kernels.triton.test_cuda_runner import CONFIG, answer, make_sequence


def chats(first_block: int = 0) -> list[Sequence]:
    return [
        make_sequence(0, 5, first_block),
        make_sequence(1, 9, first_block + 8, temperature=0.9),
        make_sequence(2, 3, first_block + 16, temperature=1.0, top_k=20, top_p=0.8),
    ]


@pytest.fixture
def runner(device: torch.device, model: CausalLM) -> Any:
    from engine.cuda_runner import CudaRunner

    return CudaRunner(model, CONFIG, device, torch.float32, 2)


def prefill(runner: Any, chosen: list[Sequence]) -> None:
    output = runner.run(StepPlan(tuple(Work(seq, 0, len(seq.tokens), True) for seq in chosen)))
    for seq in chosen:
        seq.tokens += output.tokens[seq.id]


# Of each draft: how many of its tokens are right, and how many wrong ones follow.
MIXES = [[(3, 1), (0, 2), (0, 0)], [(4, 0), (0, 1), (2, 1)]]


@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_drafts_stand_as_far_as_they_are_right(
    device: torch.device, runner: Any, mix: list[tuple[int, int]]
) -> None:
    wanted = answer(runner, chats(), 6, 2)
    drafted = chats(24)
    prefill(runner, drafted)
    work = []
    for seq, tokens, (right, wrong) in zip(drafted, wanted, mix, strict=True):
        guesses = [(token + 1) % 512 for token in tokens[1 + right :][:wrong]]
        draft = (*tokens[1 : 1 + right], *guesses)
        work.append(Work(seq, len(seq.tokens) - 1, 1, True, draft))
    output = runner.run(StepPlan(tuple(work))).tokens
    assert [key[0] for key in runner.shelf].count("verify") == 1
    if device.type == "cuda":
        # In bf16 another kernel may decide a near tie otherwise.
        assert all(1 <= len(output[item.sequence.id]) <= len(item.draft) + 1 for item in work)
        return
    for seq, tokens, (right, _) in zip(drafted, wanted, mix, strict=True):
        assert output[seq.id] == tokens[1 : right + 2]
        seq.tokens += output[seq.id]
    # KV that wrong guesses left behind is written over.
    seq = drafted[1]
    while len(seq.tokens) - seq.num_prompt_tokens < 6:
        step = StepPlan((Work(seq, len(seq.tokens) - 1, 1, True),))
        seq.tokens += runner.run(step).tokens[seq.id]
    assert seq.tokens[seq.num_prompt_tokens :] == wanted[1]


def test_graphs_are_by_rows_and_draft_length_and_long_plans_have_none() -> None:
    from engine.cuda_verify import graph_size

    def plan(*lengths: int, **changes: Any) -> list[Work]:
        seq = make_sequence(0, 3, 0)
        return [Work(seq, 2, 1, True, (5,) * length, **changes) for length in lengths]

    counts = (1, 2, 4, 64)
    assert graph_size(plan(3, 0), counts) == (2, 4)
    assert graph_size(plan(1, 1, 2), counts) == (4, 2)
    assert graph_size(plan(0, 0), counts) is None
    assert graph_size(plan(17), counts) is None
    # 64 rows of 5 tokens are more than a step's logits may be.
    assert graph_size(plan(*[1] * 5, 4), counts) is None
    assert graph_size([Work(make_sequence(0, 3, 0), 0, 3, True, (5,))], counts) is None


def test_rows_with_penalties_are_left_to_the_eager_pass(runner: Any) -> None:
    seq = make_sequence(4, 4, 0, temperature=0.8, frequency_penalty=0.7)
    prefill(runner, [seq])
    output = runner.run(StepPlan((Work(seq, len(seq.tokens) - 1, 1, True, (7,)),)))
    assert 1 <= len(output.tokens[4]) <= 2
    assert "verify" not in [key[0] for key in runner.shelf]
