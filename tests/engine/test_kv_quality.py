"""What KV in fewer bits changes in the default model's logits, and what it must not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from engine.loading import LoadedModel, load_model
from tests.engine.model.paged_run import PagedRun, all_logits
from tests.engine.model_file import default_model

FIXTURE = Path(__file__).with_name("model") / "greedy_fixture.json"


@pytest.fixture(scope="module")
def exact() -> LoadedModel:
    return load_model(default_model(), compute="fp32")


@pytest.fixture(scope="module")
def wanted(exact: LoadedModel) -> list[tuple[list[int], torch.Tensor]]:
    """Tokens of three conversations, and their logits with KV in float32."""
    cases = json.loads(FIXTURE.read_text())[2:8:2]
    texts = [case["prompt"] + case["answer"] for case in cases]
    return [(tokens, all_logits(exact.model, tokens)) for tokens in texts]


@pytest.mark.parametrize(
    ("kv_dtype", "most_error", "least_agreement"),
    [
        (torch.bfloat16, 0.006, 0.99),
        (torch.int8, 0.035, 0.95),
        (torch.float8_e4m3fn, 0.09, 0.92),
    ],
    ids=["bf16", "int8", "fp8"],
)
def test_logits_stay_near_those_of_float32_kv(
    exact: LoadedModel,
    wanted: list[tuple[list[int], torch.Tensor]],
    kv_dtype: torch.dtype,
    most_error: float,
    least_agreement: float,
) -> None:
    """RMS of the centred logits' error, and share of positions with the same first choice.

    Measured over 828 positions: see docs/performance.md.
    """
    squares = torch.zeros(2, dtype=torch.float64)
    agreements = []
    for tokens, logits in wanted:
        found = all_logits(exact.model, tokens, kv_dtype)
        centred = logits - logits.mean(-1, keepdim=True)
        error = found - found.mean(-1, keepdim=True) - centred
        squares += torch.stack((error.square().sum(), centred.square().sum())).double()
        agreements.append((logits.argmax(-1) == found.argmax(-1)).float())
    assert squares[0].div(squares[1]).sqrt() < most_error
    assert torch.cat(agreements).mean() >= least_agreement


@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
def test_pieces_and_batches_leave_the_bits_as_they_are(
    exact: LoadedModel, wanted: list[tuple[list[int], torch.Tensor]], kv_dtype: torch.dtype
) -> None:
    first, second = (tokens[:40] for tokens, _ in wanted[:2])
    alone = all_logits(exact.model, first, kv_dtype)[-1]
    run = PagedRun(exact.model, 2, 64, kv_dtype=kv_dtype)
    run.step([first[:7], second[:20]])
    run.step([first[7:39], second[20:21]])
    assert torch.equal(run.step([first[39:], second[21:30]])[0], alone)
