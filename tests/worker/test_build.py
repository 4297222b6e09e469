"""From options to an engine: the KV pool's size, and what is refused in one line."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.profile import profile
from engine.worker import __main__ as worker_main
from engine.worker import build
from engine.worker.build import BuildError, build_engine, default_kv_blocks, free_memory_bytes
from tests.engine.model_file import default_model

MIB = 1 << 20


def _loaded(context_window: int, num_layers: int = 30) -> Any:
    config = SimpleNamespace(num_layers=num_layers, num_kv_heads=3, head_dim=64)
    return SimpleNamespace(config=config, context_window=context_window)


def test_a_small_models_pool_has_its_least_size() -> None:
    blocks = default_kv_blocks(_loaded(8192), torch.bfloat16, 8 << 30)
    block_bytes = 16 * 2 * 30 * 3 * 64 * 2
    assert blocks == 256 * MIB // block_bytes
    assert blocks * 16 >= 8192


def test_a_long_windows_pool_holds_the_window() -> None:
    assert default_kv_blocks(_loaded(131072), torch.bfloat16, 64 << 30) == 131072 // 16


def test_the_pool_takes_at_most_half_of_the_free_memory() -> None:
    blocks = default_kv_blocks(_loaded(8192), torch.bfloat16, 100 * MIB)
    assert 49 * MIB < blocks * 16 * 2 * 30 * 3 * 64 * 2 <= 50 * MIB


def test_too_little_memory_is_refused_with_the_figures() -> None:
    with pytest.raises(BuildError, match=r"1 MiB of free memory hold \d+ KV blocks, too few"):
        default_kv_blocks(_loaded(8192), torch.float32, MIB)


def test_free_memory_is_positive_and_below_all_memory() -> None:
    total_kb = int(Path("/proc/meminfo").read_text().split()[1])
    assert 0 < free_memory_bytes() <= total_kb * 1024


def test_the_packaged_model_is_built_and_reports_its_progress() -> None:
    reports: list[tuple[float, str]] = []
    path = default_model()
    engine = build_engine(path, kv_blocks=32, max_running=3, progress=lambda *r: reports.append(r))
    assert engine.card.id == "SmolLM2-135M-Instruct"
    assert (engine.config.num_blocks, engine.config.max_running) == (32, 3)
    assert reports[0] == (0.0, "preparing the CPU kernels")
    assert reports[-1][0] == 1.0
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_8_bit_kv_gives_an_engine_that_answers_with_a_host_tier(kv_dtype: str) -> None:
    engine = build_engine(default_model(), kv_dtype=kv_dtype, kv_blocks=32, host_kv_mb=8)
    records = profile(engine, num_chats=2, num_prompt_words=12, num_answer_tokens=3)
    assert sum(record.num_sampled for record in records) == 6
    assert engine.stats().used_blocks == 0


def test_8_bit_kv_fits_nearly_twice_the_tokens() -> None:
    sizes = [
        default_kv_blocks(_loaded(8192), dtype, 100 * MIB) for dtype in (torch.bfloat16, torch.int8)
    ]
    assert sizes[1] / sizes[0] == pytest.approx(128 / 68, 0.01)


def test_a_host_tier_larger_than_memory_is_refused() -> None:
    with pytest.raises(BuildError, match=r"--host-kv-mb 999999999 is more than the \d+ MiB"):
        build_engine(default_model(), kv_blocks=32, host_kv_mb=999_999_999)


@pytest.fixture
def cut_model(tmp_path: Path) -> Path:
    path = tmp_path / "cut.gguf"
    with default_model().open("rb") as whole:
        path.write_bytes(whole.read(5_000_000))
    return path


@pytest.mark.parametrize("redis_url", ["", "redis://127.0.0.1:1"])
def test_the_process_refuses_in_one_line(
    cut_model: Path,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("REPARTEE_REDIS_URL", redis_url)
    assert worker_main.main(["--model", str(cut_model)]) == 2
    output = capsys.readouterr()
    assert output.err.startswith("repartee: ")
    assert output.err.count("\n") == 1
    assert (str(cut_model) if redis_url else "REPARTEE_REDIS_URL is not set") in output.err
    for line in output.out.splitlines():
        assert set(json.loads(line)) == {"stage", "done"}


def test_a_gpu_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "load_model", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(BuildError, match="--device cuda"):
        build_engine(Path("model.gguf"), device="cuda")


@pytest.mark.parametrize(
    ("available", "wanted", "kernels", "torchs"),
    [(True, 3, [3], 1), (True, 0, [], 1), (False, 3, [], 3)],
)
def test_torch_shares_out_its_work_only_without_the_kernels(
    available: bool,
    wanted: int,
    kernels: list[int],
    torchs: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: list[int] = []
    monkeypatch.setattr(build.native, "status", lambda: SimpleNamespace(available=available))
    monkeypatch.setattr(build.native, "set_num_threads", counts.append)
    before = torch.get_num_threads()
    try:
        build.set_threads(wanted)
        assert (counts, torch.get_num_threads()) == (kernels, torchs)
    finally:
        torch.set_num_threads(before)
