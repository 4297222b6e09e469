"""Where the tests find the default model's file."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from app.models import resolve_model

_DATA_DIR = Path(__file__).parents[2] / ".data"


@cache
def default_model() -> Path:
    """The packaged model's GGUF file; `REPARTEE_MODEL` names another place."""
    return resolve_model(os.environ.get("REPARTEE_MODEL", ""), _DATA_DIR).path
