"""SIGUSR2: a running worker says where its time goes, and goes on."""

from __future__ import annotations

import json
import logging
import os
import signal
import tempfile
from pathlib import Path

import pytest

from tests.fakes.engine import FakeEngine
from tests.spine import collect, make_request, running_client, running_worker, until


@pytest.mark.parametrize("fault", ["", "block 3 has 2 references, tables hold 1"])
async def test_a_signal_brings_trace_table_drawing_and_the_checkers_word(
    redis_url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engine = FakeEngine()
    engine.fault = fault
    caplog.set_level(logging.INFO)
    async with running_worker(redis_url, engine), running_client(redis_url) as client:
        await until(lambda: client.ready() and bool(client.workers()))
        os.kill(os.getpid(), signal.SIGUSR2)
        await until(lambda: "steps in" in caplog.text)
        await collect(await client.submit(make_request()))
    _check_files(tmp_path)
    assert (f"disagrees: {fault}" if fault else "bookkeeping agrees") in caplog.text


def _check_files(parent: Path) -> None:
    (folder,) = parent.iterdir()
    trace = json.loads((folder / "steps.json").read_text())
    assert trace["traceEvents"][0]["name"] == "step 0"
    assert "publish" in (folder / "steps.md").read_text()
    assert (folder / "steps.svg").read_text().startswith("<svg")
    assert folder.stat().st_mode & 0o077 == 0


async def test_writes_are_timed(redis_url: str) -> None:
    async with running_worker(redis_url) as worker, running_client(redis_url) as client:
        await until(lambda: client.ready() and bool(client.workers()))
        await collect(await client.submit(make_request()))
        writes = list(worker._steps_report._writes)
    assert writes
    assert all(0 < length_s < 60 for _, length_s in writes)


async def test_a_report_that_cannot_be_written_harms_nobody(
    redis_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    async with running_worker(redis_url), running_client(redis_url) as client:
        await until(lambda: client.ready() and bool(client.workers()))
        os.kill(os.getpid(), signal.SIGUSR2)
        await until(lambda: "no report of the steps" in caplog.text)
        assert await collect(await client.submit(make_request()))
