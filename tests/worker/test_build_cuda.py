"""An engine on a GPU: which device, how its memory is shared out, and what is refused.

The card is a stand-in: its figures are set, and its kernels run in Triton's interpreter.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

# Before any kernel is imported: without a GPU they run in the interpreter.
from tests.kernels.triton.conftest import DEVICE  # noqa: F401

from engine import cuda_memory  # isort: skip
from engine.cuda_decode import ROW_COUNTS
from engine.cuda_memory import MIB, CardMemory, dense_bytes, pool_bytes, work_reserve_bytes
from engine.cuda_runner import table_bytes
from engine.worker import build, build_cuda
from engine.worker.build import BuildError, build_engine, choose_device
from engine.worker.build_cuda import choose_blocks, gpu_config
from load_tests.gpu.shapes import SHAPES, RandomCheckpoint

GIB = 1 << 30
CARD = CardMemory("Some GPU", 100 * GIB, 140 * GIB)


def loaded(window: int = 8192) -> Any:
    return SimpleNamespace(config=SHAPES["llama3-8b"], context_window=window)


def pretend(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")


@pytest.mark.parametrize(
    ("capability", "auto", "refusal"),
    [
        (None, "cpu", "torch finds no GPU here"),
        ((7, 5), "cpu", "Some GPU has compute capability 7.5, below 8.0"),
        ((8, 0), "cuda", ""),
        ((9, 0), "cuda", ""),
    ],
)
def test_auto_is_a_usable_gpu_and_cuda_says_what_is_missing(
    capability: tuple[int, int] | None, auto: str, refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, capability)
    assert choose_device("auto") == auto
    assert choose_device("cpu") == "cpu"
    if refusal:
        with pytest.raises(BuildError, match=f"--device cuda: {refusal}"):
            choose_device("cuda")
    else:
        assert choose_device("cuda") == "cuda"


def test_a_compute_mode_of_the_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, (9, 0))
    with pytest.raises(BuildError, match="--compute int8 is of the CPU"):
        build_engine(Path("model.gguf"), device="cuda", compute="int8")


def test_the_pool_takes_what_work_and_graphs_leave() -> None:
    step_bytes = GIB
    blocks = choose_blocks(0, loaded(), torch.bfloat16, step_bytes, CARD)
    reserve = work_reserve_bytes(step_bytes, table_bytes(513))
    size = 16 * 2 * 32 * 8 * 128 * 2
    assert reserve >= 2 * step_bytes
    assert blocks * size + reserve <= CARD.free
    assert blocks * size >= 0.94 * (CARD.free - reserve)


def test_blocks_that_were_asked_for_are_given_or_refused_in_one_line() -> None:
    assert choose_blocks(1000, loaded(), torch.bfloat16, GIB, CARD) == 1000
    most = choose_blocks(0, loaded(), torch.bfloat16, GIB, CARD)
    assert choose_blocks(most, loaded(), torch.bfloat16, GIB, CARD) == most
    assert choose_blocks(0, loaded(), torch.int8, GIB, CARD) / most == pytest.approx(
        256 / 132, 0.01
    )
    with pytest.raises(BuildError) as caught:
        choose_blocks(most + 1, loaded(), torch.bfloat16, GIB, CARD)
    text = str(caught.value)
    assert f"--kv-blocks {most + 1} needs" in text
    assert f"102400 of 143360 MiB free on Some GPU, room for {most} blocks" in text
    assert "\n" not in text


def test_a_card_that_others_fill_is_refused_with_the_figures() -> None:
    full = CardMemory("Some GPU", 3 * GIB, 140 * GIB)
    with pytest.raises(BuildError, match=r"3072 of 143360 MiB free .* a window of 8192 tokens"):
        choose_blocks(0, loaded(), torch.bfloat16, GIB, full)


def test_weights_that_do_not_fit_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, (9, 0))
    model = tmp_path / "model.gguf"
    with model.open("wb") as file:
        file.truncate(2 * GIB)
    monkeypatch.setattr(build_cuda, "card_memory", lambda: CardMemory("Some GPU", GIB, 140 * GIB))
    monkeypatch.setattr(build_cuda, "load_model", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(BuildError, match=r"the model's 2048 MiB of weights do not fit: 1024 of"):
        build_engine(model, device="cuda")


@pytest.mark.parametrize(("free_gib", "compute"), [(100, "speed"), (40, "memory")])
def test_the_bf16_copy_is_made_where_there_is_room(
    free_gib: int, compute: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model.gguf"
    with model.open("wb") as file:
        file.truncate(6 * GIB)
    monkeypatch.setattr(
        build_cuda, "open_checkpoint", lambda _: SimpleNamespace(config=SHAPES["llama3-8b"])
    )
    card = CardMemory("Some GPU", free_gib * GIB, 140 * GIB)
    assert build_cuda._choose_compute(model, card) == compute


def test_a_models_bf16_size() -> None:
    assert dense_bytes(SHAPES["llama3-8b"]) == pytest.approx(16.06e9, rel=0.001)
    assert dense_bytes(SHAPES["smollm2-135m"]) == pytest.approx(269e6, rel=0.001)


def test_nothing_is_left_for_a_pool_below_the_reserve() -> None:
    assert pool_bytes(GIB, 2 * GIB) == 0
    assert table_bytes(100) >= max(ROW_COUNTS) * 100 * 4
    assert work_reserve_bytes(0, 0) > 48 * 20 * MIB


def test_the_largest_step_is_run_to_be_measured() -> None:
    torch.manual_seed(0)
    shape = dataclasses.replace(SHAPES["tiny"], context_window=64)
    model = cuda_model(shape)
    ran: list[int] = []

    def peak(run: Any) -> int:
        run()
        ran.append(1)
        return 123

    config = dataclasses.replace(gpu_config(1), max_step_tokens=64)
    found = cuda_memory.step_work_bytes(model, config, torch.float32, peak)
    assert (found, ran) == (123, [1])


def cuda_model(shape: Any) -> Any:
    from engine.model.llama import CausalLM

    return CausalLM(RandomCheckpoint(shape, "bf16", device="cpu"), "cpu", "fp32")


def test_gpu_steps_leave_room_for_pieces_of_prompts() -> None:
    config = gpu_config(10, max_running=7)
    assert (config.num_blocks, config.max_running, config.block_size) == (10, 7, build.BLOCK_SIZE)
    assert config.mixed_step_ms > 0
    assert config.max_step_tokens > 1024
