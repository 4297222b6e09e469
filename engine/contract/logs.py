"""Log lines of every process: as text, or as one JSON object a line.

Fields that belong to a line (`extra=`) or to all that is done for one request
(`log_context`) are keys of the object, and stand as `key=value` behind the text.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

FORMATS = ("text", "json")

_context: ContextVar[Mapping[str, str]] = ContextVar("log_context", default=MappingProxyType({}))
# What every record has; anything else on it came with `extra`.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@contextlib.contextmanager
def log_context(**fields: str) -> Iterator[None]:
    """Add fields to every line that is logged inside, by tasks begun there as well."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


def configure_logging(level: str, form: str) -> None:
    """Write lines from `level` (debug, info, warning, error) on to standard error.

    Args:
        level: Least severe level.
        form: One of FORMATS.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    extra = {name: value for name, value in vars(record).items() if name not in _OWN}
    return {**_context.get(), **extra}


class _TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        line = super().formatMessage(record)
        fields = _fields(record)
        return " ".join([line, *(f"{name}={value}" for name, value in fields.items())])


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)
