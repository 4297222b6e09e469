"""JSON files of a model directory, read with care."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.loading.errors import ModelFileError

MAX_JSON_BYTES = 256 << 20


def read_object(path: Path) -> dict[str, Any]:
    """The object in `path`.

    Raises:
        ModelFileError: when it is missing, too large or no JSON object.
    """
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise ModelFileError(path, f"has {size} bytes; the limit is {MAX_JSON_BYTES}")
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(path, f"cannot be read as JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelFileError(path, f"must hold a JSON object, holds a {type(value).__name__}")
    return value


def read_optional_object(path: Path) -> dict[str, Any]:
    """The object in `path`; empty when there is no such file."""
    return read_object(path) if path.exists() else {}
