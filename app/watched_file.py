"""A small file that is read again when it changes, while the process runs.

What cannot be read or understood changes nothing: the last good content stays, and the
fault is logged once. The text itself is never logged, for such files hold secrets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from app.startup_error import StartupError

logger = logging.getLogger(__name__)

T = TypeVar("T")

POLL_S = 1.0
MAX_FILE_BYTES = 1024 * 1024


class WatchedFile(Generic[T]):
    """See the module.

    Args:
        path: The file.
        parse: Text to content; raises ValueError, whose text may be shown.
        setting: Who names the file, for errors: `--api-keys-file`.

    Attributes:
        value: The content as last understood.
        on_change: Called after each change.

    Raises:
        StartupError: the file cannot be read or understood now.
    """

    def __init__(self, path: Path, parse: Callable[[str], T], setting: str) -> None:
        self.path = path
        self._parse = parse
        self._setting = setting
        self.on_change: list[Callable[[], None]] = []
        try:
            self._data = _read(path)
            self.value = parse(_text(self._data))
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise StartupError(f"{setting} {path} cannot be read: {reason}.") from None
        except ValueError as error:
            raise StartupError(f"{setting} {path}: {error}.") from None

    async def watch(self, poll_s: float = POLL_S) -> None:
        """Look for changes, for good."""
        while True:
            await asyncio.sleep(poll_s)
            try:
                await self.refresh()
            except Exception as error:
                # The next change must not go unseen; the error's text may hold a secret.
                reason = type(error).__name__
                logger.error("%s %s failed to change: %s", self._setting, self.path, reason)

    async def refresh(self) -> bool:
        """Read the file; whether the content is another than before."""
        try:
            data = await asyncio.to_thread(_read, self.path)
        except OSError as error:
            self._complain(error.strerror or type(error).__name__, b"")
            return False
        except ValueError as error:
            self._complain(str(error), b"")
            return False
        if data == self._data:
            return False
        try:
            self.value = self._parse(_text(data))
        except ValueError as error:
            self._complain(str(error), data)
            return False
        self._data = data
        logger.info("%s %s was read again", self._setting, self.path)
        for call in self.on_change:
            call()
        return True

    def _complain(self, reason: str, data: bytes) -> None:
        """Say once what is wrong with this content."""
        if self._data != data:
            logger.error("%s %s stays as it was: %s", self._setting, self.path, reason)
        self._data = data


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"it is longer than {MAX_FILE_BYTES} bytes")
    return data


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        # The error's own text would show the bytes.
        raise ValueError(f"it is not UTF-8 at byte {error.start}") from None
