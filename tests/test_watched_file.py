"""Files that are read again when they change."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

import pytest

from app.startup_error import StartupError
from app.watched_file import MAX_FILE_BYTES, WatchedFile
from tests.spine import until


def parse(text: str) -> str:
    if "bad" in text:
        raise ValueError("it is bad")
    return text


def watched(path: Path) -> WatchedFile[str]:
    return WatchedFile(path, parse, "--x-file")


async def test_a_change_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("one")
    file = watched(path)
    assert file.value == "one"
    assert not await file.refresh()
    path.write_text("two")
    assert await file.refresh()
    assert file.value == "two"


async def test_watching_sees_a_file_that_took_its_place(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("one")
    file = watched(path)
    task = asyncio.create_task(file.watch(poll_s=0.01))
    other = tmp_path / "g"
    other.write_text("two")
    other.replace(path)
    await until(lambda: file.value == "two")
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_watching_goes_on_after_a_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "f"
    path.write_text("one")
    file = watched(path)
    file.on_change.append(lambda: seen.append(file.value) if seen else 1 / 0)
    seen: list[str] = []
    task = asyncio.create_task(file.watch(poll_s=0.01))
    path.write_text("two")
    await until(lambda: "failed to change: ZeroDivisionError" in caplog.text)
    seen.append("")
    path.write_text("three")
    await until(lambda: "three" in seen)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("content", [b"bad secret-text", b"\xffsecret-text", None, "long"])
async def test_what_is_wrong_changes_nothing_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | str | None
) -> None:
    path = tmp_path / "f"
    path.write_text("one")
    file = watched(path)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(b"x" * (MAX_FILE_BYTES + 1) if isinstance(content, str) else content)
    caplog.set_level(logging.DEBUG)
    for _ in range(3):
        assert not await file.refresh()
    assert file.value == "one"
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert "--x-file" in caplog.text
    assert "secret-text" not in caplog.text
    path.write_text("one")
    await file.refresh()
    assert file.value == "one"


@pytest.mark.parametrize("content", [b"bad", b"\xff", None, b"x" * (MAX_FILE_BYTES + 1)])
def test_at_start_it_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "f"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StartupError, match="--x-file"):
        watched(path)
