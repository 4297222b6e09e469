"""Writes GGUF bytes by hand, valid or not, independent of the code under test."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

UINT32, FLOAT32, BOOL, STRING, ARRAY, INT32 = 4, 6, 7, 8, 9, 5


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def typed(value: Any) -> bytes:
    """A metadata value with its type code in front."""
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + text(value)
    if value and isinstance(value[0], str):
        head = struct.pack("<IIQ", ARRAY, STRING, len(value))
        return head + b"".join(map(text, value))
    code, letter = (FLOAT32, "f") if isinstance(value[0], float) else (INT32, "i")
    return struct.pack(f"<IIQ{len(value)}{letter}", ARRAY, code, len(value), *value)


def gguf_bytes(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[Sequence[int], int, bytes]],
    *,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A whole file; tensors are (shape slowest first, type code, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(text(key) + typed(value) for key, value in metadata.items())
    data = b""
    for name, (shape, code, raw) in tensors.items():
        head += text(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", code, len(data))
        data += raw + bytes(-len(raw) % alignment)
    return head + bytes(-len(head) % alignment) + data
