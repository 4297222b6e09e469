"""The build of the native kernels, its cache, and life without a compiler."""

from __future__ import annotations

import logging
import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import kernels
from kernels import native
from kernels.native.build import BuildError, build, cache_directory
from kernels.native.library import Library
from tests.kernels.samples import make_weight, random


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """`native` as in a process that has not loaded anything."""
    monkeypatch.setattr(native, "_load", native._load.__wrapped__)


def test_status_names_the_instruction_set() -> None:
    status = native.status()
    assert status.available, status.reason
    assert status.isa in ("avx512-vnni", "avx-vnni", "avx2")
    assert status.num_threads >= 1


def test_the_avx2_build_is_what_it_says(avx2_library: Library) -> None:
    assert avx2_library.isa() == b"avx2"


def test_the_switch_turns_the_kernels_off_loudly(
    fresh: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("REPARTEE_NATIVE", "0")
    with caplog.at_level(logging.WARNING):
        status = native.status()
    assert not status.available
    assert status.reason == "switched off by REPARTEE_NATIVE=0"
    assert "using slower PyTorch ones" in caplog.text
    monkeypatch.setenv("REPARTEE_NATIVE", "off")
    with pytest.raises(ValueError, match="REPARTEE_NATIVE: expected 0 or 1, got 'off'"):
        native.status()


def test_no_compiler_is_a_reason(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "needs a C++ compiler" in native.status().reason


def test_another_processor_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(BuildError, match="needs an x86-64 processor, this is aarch64"):
        build()


def test_a_compiler_error_is_a_reason() -> None:
    with pytest.raises(BuildError, match="AVX2, FMA and F16C are required"):
        build(("-mno-avx2",))


def test_an_unwritable_cache_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "native").write_text("not a directory")
    monkeypatch.setenv("REPARTEE_CACHE_DIR", str(tmp_path))
    with pytest.raises(BuildError, match="can't write"):
        build()


def test_two_processes_build_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REPARTEE_CACHE_DIR", str(tmp_path))
    code = "from kernels.native.build import build; print(build(('-O0',)))"
    command = [sys.executable, "-c", code]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate()[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(paths) == 1
    assert [str(path) for path in cache_directory().iterdir()] == list(paths)
    assert Library(Path(paths.pop())).isa()


def test_other_flags_are_another_file() -> None:
    assert build(("-mno-avx512f", "-mno-avxvnni")) != build()


def test_thread_counts_out_of_range_are_refused() -> None:
    for count in (0, 1025):
        with pytest.raises(ValueError, match=rf"expected 1 \.\. 1024 threads, got {count}"):
            native.set_num_threads(count)


def test_callers_on_several_threads_do_not_disturb_each_other(compiled: Library) -> None:
    packed = kernels.pack(make_weight("int4", 512, 256, minimum=True), "cpu")
    inputs = [random(20, 256, seed=seed) for seed in range(4)]
    wanted = [kernels.norm_linear(x, None, 0.0, packed) for x in inputs]
    wrong: list[int] = []

    def call(index: int) -> None:
        for _ in range(100):
            got = kernels.norm_linear(inputs[index], None, 0.0, packed)
            if not torch.equal(got, wanted[index]):
                wrong.append(index)

    threads = [threading.Thread(target=call, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_child_still_computes() -> None:
    code = """
import os, torch, warnings, kernels
from kernels import native
from tests.kernels.samples import make_weight, random
warnings.simplefilter("ignore")
packed = kernels.pack(make_weight("int4", 512, 256), "cpu")
x = random(40, 256)
wanted = kernels.norm_linear(x, None, 0.0, packed)
child = os.fork()
if child == 0:
    native.set_num_threads(2)
    os._exit(0 if torch.equal(kernels.norm_linear(x, None, 0.0, packed), wanted) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)
