"""The error that stops a command before it serves anybody."""

from __future__ import annotations

import re

EXIT_CODE = 2


class StartupError(Exception):
    """Something outside the program must be mended first.

    Shown as one line on standard error; the process ends with `EXIT_CODE`.

    Args:
        message: What is wrong, naming the setting, file or address.
        hint: What mends it, as a command or a sentence; empty if nothing is known.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def line(self) -> str:
        """The message and its hint without a line break."""
        text = f"{self.message} {self.hint}".strip()
        return " ".join(text.split())


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    return re.sub(r"//[^@/]*@", "//***@", url)
