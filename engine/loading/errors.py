"""Why a model can't be loaded."""

from __future__ import annotations

from pathlib import Path


class ModelFileError(Exception):
    """The model's files are missing, damaged or of a kind that isn't supported.

    The text is one line that names the file and what is wrong with it.
    """

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(f"{path}: {problem}".replace("\n", " ")[:600])
        self.path = Path(path)
        self.problem = problem
