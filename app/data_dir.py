"""The data folder: made, checked, and held by one `repartee serve` at a time."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from app.startup_error import StartupError

# A supervisor that was killed leaves its Redis a moment behind, which still writes.
_WAIT_S = 3.0
_POLL_S = 0.05


class DataDirLock:
    """An exclusive lock on a data folder.

    The kernel lets go of it when the last process that holds the descriptor ends,
    so it never outlives its owners.
    """

    def __init__(self, data_dir: Path) -> None:
        """Makes the folder if need be, and takes the lock.

        Raises:
            StartupError: the folder can't be written, or another serve holds it.
        """
        path = data_dir / "serve.lock"
        try:
            data_dir.mkdir(parents=True, exist_ok=True)
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StartupError(
                f"--data-dir: {data_dir} cannot be written: {error.strerror}.",
                "Name a folder of your own.",
            ) from None
        if not self._acquire():
            owner = os.pread(self.fd, 32, 0).decode(errors="replace").strip()
            os.close(self.fd)
            raise StartupError(
                f"--data-dir: {data_dir} is in use by another repartee serve (process {owner}).",
                "Stop it, or name another folder.",
            )
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, f"{os.getpid()}\n".encode(), 0)

    def _acquire(self) -> bool:
        deadline = time.monotonic() + _WAIT_S
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_POLL_S)
            else:
                return True

    def release(self) -> None:
        """Let go of the folder."""
        os.close(self.fd)
