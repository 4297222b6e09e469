"""Everything falls at random, and every answer is whole; the full size runs by command."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from load_tests import chaos
from tests.engine.loading.tiny_directory import tiny_model, write_directory


@pytest.fixture
def folder() -> Path:
    """A short path: a socket's may not exceed 107 characters."""
    with tempfile.TemporaryDirectory(prefix="rp-") as name:
        yield Path(name)


async def test_forty_answers_while_everything_falls(folder: Path) -> None:
    result = await chaos.run(
        folder,
        chaos.fake_worker(rate=60),
        is_fake=True,
        answers=40,
        seed=20,
        num_at_once=40,
        num_workers=2,
        max_tokens=300,
        pause_s=(0.5, 2.0),
    )
    assert not result.wrong, (result.seed, result.wrong)
    assert sum(result.falls.values()) >= 2


async def test_real_workers_fall_in_the_middle_of_answers(folder: Path) -> None:
    model = write_directory(folder / "tiny", tiny_model("llama", max_position_embeddings=2048))
    # Where the machine is slow, all may fall before an answer has begun: then once more.
    for seed in (3, 4, 5):
        result = await chaos.run(
            folder,
            chaos.real_worker(model),
            is_fake=False,
            answers=12,
            seed=seed,
            num_at_once=12,
            num_workers=2,
            max_tokens=1500,
            pause_s=(0.5, 1.0),
        )
        assert not result.wrong, (result.seed, result.wrong)
        if result.taken_over[0]:
            return
    pytest.fail("no answer was taken over")
