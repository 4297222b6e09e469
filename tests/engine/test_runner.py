"""Plans to tensors, and drafts against what was sampled."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.contract import SamplingParams
from engine.kv_blocks import kv_bytes_per_token
from engine.runner import CpuRunner, accept_draft
from engine.sampling_rows import sampling_row
from engine.sequence import Sequence
from engine.step import StepPlan, Work

VOCAB = 20


class RecordingModel:
    """Keeps its inputs; the likeliest next token of a row is the row's own token plus 1."""

    config = SimpleNamespace(num_layers=2, num_kv_heads=3, head_dim=16)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        batch: Any,
        caches: Any,
        logits_rows: torch.Tensor,
        part: Any = None,
    ) -> torch.Tensor:
        self.inputs = (token_ids, positions, slots, batch, logits_rows)
        self.caches = caches
        logits = torch.zeros(len(logits_rows), VOCAB)
        following = (token_ids[logits_rows] + 1) % VOCAB
        logits[torch.arange(len(logits_rows)), following] = 5.0
        return logits


def make_sequence(
    number: int, tokens: Tokens[int], table: Tokens[int], num_prompt: int = 2, **sampling: Any
) -> Sequence:
    params = SamplingParams(**{"temperature": 0.0, **sampling})
    return Sequence(
        id=number,
        request=SimpleNamespace(sampling=params, request_id=f"r{number}"),
        tokens=list(tokens),
        num_prompt_tokens=num_prompt,
        max_tokens=100,
        seed=9,
        end_ids=frozenset((2,)),
        masked_ids=(2, 7),
        block_names=[],
        root_name=b"",
        stream=None,
        arrived_at=0.0,
        enqueued_at=0.0,
        block_table=list(table),
    )


@pytest.fixture
def model() -> RecordingModel:
    return RecordingModel()


@pytest.fixture
def runner(model: RecordingModel) -> CpuRunner:
    return CpuRunner(model, EngineConfig(num_blocks=8, block_size=4))


def test_a_mixed_plan(model: RecordingModel, runner: CpuRunner) -> None:
    decoding = make_sequence(1, [10, 11, 12, 13, 14], [5, 2])
    piece = make_sequence(2, list(range(20)), [0, 1, 3, 4, 6])
    prompt = make_sequence(3, [15, 16, 17], [7])
    output = runner.run(
        StepPlan(
            (
                Work(decoding, start=4, num_tokens=1, samples=True),
                Work(piece, start=4, num_tokens=8, samples=False),
                Work(prompt, start=0, num_tokens=3, samples=True),
            )
        )
    )
    token_ids, positions, slots, batch, logits_rows = model.inputs
    assert token_ids.tolist() == [14, *range(4, 12), 15, 16, 17]
    assert positions.tolist() == [4, *range(4, 12), 0, 1, 2]
    # Block 2, then blocks 1 and 3, then block 7.
    assert slots.tolist() == [8, 4, 5, 6, 7, 12, 13, 14, 15, 28, 29, 30]
    assert batch.query_starts.tolist() == [0, 1, 9, 12]
    assert batch.context_lens.tolist() == [5, 12, 3]
    assert batch.block_tables.tolist() == [[5, 2, 0, 0, 0], [0, 1, 3, 4, 6], [7, 0, 0, 0, 0]]
    assert (batch.max_query_len, batch.max_context_len) == (8, 12)
    assert logits_rows.tolist() == [0, 11]
    assert output.tokens == {1: [15], 3: [18]}
    for tensor in (batch.query_starts, batch.context_lens, batch.block_tables):
        assert tensor.dtype == torch.int32


def test_a_plan_that_samples_nothing(model: RecordingModel, runner: CpuRunner) -> None:
    work = Work(make_sequence(1, range(12), [0, 1, 2]), start=0, num_tokens=8, samples=False)
    assert runner.run(StepPlan((work,))).tokens == {}
    assert model.inputs[4].shape == (0,)


@pytest.mark.parametrize(
    ("draft", "expected"),
    [
        ((15, 16, 17), [15, 16, 17, 18]),
        ((15, 9, 17), [15, 16]),
        ((9,), [15]),
    ],
)
def test_a_draft_stands_as_far_as_it_agrees(
    model: RecordingModel, runner: CpuRunner, draft: tuple[int, ...], expected: list[int]
) -> None:
    seq = make_sequence(1, [10, 11, 12, 13, 14], [5, 2])
    other = make_sequence(2, [3, 4], [1])
    output = runner.run(
        StepPlan(
            (
                Work(seq, start=4, num_tokens=1, samples=True, draft=draft),
                Work(other, start=1, num_tokens=1, samples=True),
            )
        )
    )
    assert model.inputs[0].tolist() == [14, *draft, 4]
    assert model.inputs[2].tolist()[: 1 + len(draft)] == list(range(8, 9 + len(draft)))
    assert output.tokens == {1: expected, 2: [5]}


def test_accept_draft_keeps_the_correction() -> None:
    work = Work(make_sequence(1, [1], [0]), 0, 1, samples=True, draft=(4, 5))
    assert accept_draft(work, [4, 5, 6]) == [4, 5, 6]
    assert accept_draft(work, [4, 8, 6]) == [4, 8]
    assert accept_draft(work, [3, 5, 6]) == [3]


def test_copied_blocks(model: RecordingModel, runner: CpuRunner) -> None:
    work = Work(make_sequence(1, [1], [0]), start=0, num_tokens=1, samples=True)
    runner.run(StepPlan((work,)))
    assert len(model.caches) == 2
    for cache in model.caches:
        assert cache.k.shape == (8, 3, 4, 16)
        cache.k.copy_(torch.arange(8.0).view(8, 1, 1, 1).expand(cache.k.shape))
        cache.v.copy_(-cache.k)
    runner.copy_blocks([(1, 6), (2, 0)])
    for cache in model.caches:
        assert cache.k[:, 0, 0, 0].tolist() == [2, 1, 2, 3, 4, 5, 1, 7]
        assert cache.v[:, 2, 3, 15].tolist() == [-2, -1, -2, -3, -4, -5, -1, -7]


def test_kv_bytes() -> None:
    config = RecordingModel.config
    assert kv_bytes_per_token(config, torch.bfloat16) == 2 * 2 * 3 * 16 * 2
    # A scale of four bytes for each vector.
    assert kv_bytes_per_token(config, torch.int8) == 2 * 2 * 3 * (16 + 4)
    assert kv_bytes_per_token(config, torch.float8_e4m3fn) == 2 * 2 * 3 * (16 + 4)


def test_rows_of_plain_requests_hold_no_lists() -> None:
    row = sampling_row(make_sequence(1, [5, 5, 6], [0], temperature=0.7, top_k=3))
    assert (row.temperature, row.top_k, row.seed, row.position) == (0.7, 3, 9, 3)
    assert (row.bias, row.seen, row.masked) == ((), (), ())


def test_penalties_see_prompt_answer_and_draft() -> None:
    seq = make_sequence(1, [5, 6, 7, 7, 8], [0], frequency_penalty=0.5)
    assert dict(sampling_row(seq).seen) == {5: 0, 6: 0, 7: 2, 8: 1}
    row = sampling_row(seq, (8, 6))
    assert dict(row.seen) == {5: 0, 6: 1, 7: 2, 8: 2}
    assert row.position == 7


def test_end_tokens_are_masked_until_min_tokens() -> None:
    seq = make_sequence(1, [5, 6, 7], [0], min_tokens=3)
    assert sampling_row(seq).masked == (2, 7)
    assert sampling_row(seq, (8,)).masked == (2, 7)
    assert sampling_row(seq, (8, 9)).masked == ()
