"""The structure of a GGUF file: metadata and a checked table of tensors, mapped.

Nothing in a file is trusted: every count and offset is checked against the bytes
that are there before memory is allocated for it, so a hostile file costs no more
memory than a few times its own size and always ends in a `ModelFileError`.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.loading.errors import ModelFileError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 1024
MAX_ARRAY_ITEMS = 4_000_000

# Metadata value types by their code in the file.
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING = 8
_ARRAY = 9


@dataclass(frozen=True, slots=True)
class BlockType:
    """A tensor type's name, elements a block and bytes a block."""

    name: str
    elements: int
    size_bytes: int


TENSOR_TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    30: BlockType("BF16", 1, 2),
}
# Named only so that the refusal can name them.
_OTHER_TYPES = {
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies.

    Attributes:
        name: Its name in the file.
        type: How its bytes are to be read.
        shape: Slowest dimension first, as in PyTorch (the file has it reversed).
        offset: Bytes from the start of the file.
        size_bytes: Bytes in all.
    """

    name: str
    type: BlockType
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


class GgufFile:
    """An open, mapped GGUF file.

    Args:
        path: The file.

    Attributes:
        metadata: Values by key. Numbers and strings as Python's own, numeric arrays
            as NumPy arrays, arrays of strings as lists.
        tensors: Tables of contents by tensor name.

    Raises:
        ModelFileError: when the file can't be read as GGUF.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelFileError(path, f"cannot be read ({error})") from error
        cursor = _Cursor(path, self._map)
        self.metadata, self.tensors = _read_header(cursor)

    def tensor_bytes(self, info: TensorInfo) -> np.ndarray:
        """The tensor's bytes as a read-only uint8 view of the mapping."""
        return np.frombuffer(self._map, np.uint8, info.size_bytes, info.offset)

    def drop_pages(self) -> None:
        """Give the mapping's resident pages back; they are read again when needed."""
        self._map.madvise(mmap.MADV_DONTNEED)


class _Cursor:
    """Reads little-endian values one after another, never past the end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.offset = 0

    def fail(self, problem: str) -> ModelFileError:
        return ModelFileError(self.path, problem)

    def take(self, size_bytes: int, what: str) -> int:
        """Step over `size_bytes`; returns where they begin."""
        start = self.offset
        left = len(self.data) - start
        if size_bytes > left:
            raise self.fail(
                f"is cut short: {what} needs {size_bytes} bytes at offset {start}, {left} are left"
            )
        self.offset = start + size_bytes
        return start

    def u32(self, what: str) -> int:
        return int(struct.unpack_from("<I", self.data, self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(struct.unpack_from("<Q", self.data, self.take(8, what))[0])

    def text(self, what: str, limit: int | None = None) -> str:
        length = self.u64(what)
        if limit is not None and length > limit:
            raise self.fail(f"{what} is {length} bytes long; the limit is {limit}")
        start = self.take(length, what)
        try:
            return self.data[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not UTF-8 ({error.reason})") from error

    def value(self, code: int, what: str) -> Any:
        if code == _STRING:
            return self.text(what)
        if code == _ARRAY:
            return self._array(what)
        dtype = np.dtype(self._scalar(code, what))
        start = self.take(dtype.itemsize, what)
        return np.frombuffer(self.data, dtype, 1, start)[0].item()

    def _scalar(self, code: int, what: str) -> str:
        if code not in _SCALARS:
            raise self.fail(f"{what} has the unknown value type {code}")
        return _SCALARS[code]

    def _array(self, what: str) -> Any:
        code = self.u32(what)
        length = self.u64(what)
        if length > MAX_ARRAY_ITEMS:
            raise self.fail(f"{what} has {length} items; the limit is {MAX_ARRAY_ITEMS}")
        if code == _ARRAY:
            raise self.fail(f"{what} is an array of arrays, which is not supported")
        if code == _STRING:
            # Each string has at least its length, so the count is bounded by the bytes left.
            if length * 8 > len(self.data) - self.offset:
                raise self.fail(f"is cut short: {what} has {length} strings")
            return [self.text(what) for _ in range(length)]
        dtype = np.dtype(self._scalar(code, what))
        start = self.take(length * dtype.itemsize, what)
        return np.frombuffer(self.data, dtype, length, start).copy()


def _read_header(cursor: _Cursor) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    magic = cursor.data[cursor.take(4, "the magic number") : 4]
    if magic != MAGIC:
        raise cursor.fail(f"is not a GGUF file: it begins with {magic!r}, not {MAGIC!r}")
    version = cursor.u32("the version")
    if version not in VERSIONS:
        # Byte order shows in the version: a big-endian file has it in the high bytes.
        hint = " (big-endian?)" if version & 0xFFFF == 0 else ""
        raise cursor.fail(f"has GGUF version {version}{hint}; supported are 2 and 3")
    num_tensors = cursor.u64("the number of tensors")
    num_values = cursor.u64("the number of metadata values")
    metadata = _read_metadata(cursor, num_values)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 8 <= alignment <= 1 << 16 or alignment % 8:
        raise cursor.fail(f"general.alignment is {alignment!r}; it must be a multiple of 8")
    return metadata, _read_tensors(cursor, num_tensors, alignment)


def _read_metadata(cursor: _Cursor, num_values: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(num_values):
        key = cursor.text(f"metadata key {index}", MAX_NAME_BYTES)
        if key in metadata:
            raise cursor.fail(f"metadata key {key!r:.80} occurs twice")
        code = cursor.u32(f"metadata {key!r:.80}")
        metadata[key] = cursor.value(code, f"metadata {key!r:.80}")
    return metadata


def _read_tensors(cursor: _Cursor, num_tensors: int, alignment: int) -> dict[str, TensorInfo]:
    entries: list[tuple[str, BlockType, tuple[int, ...], int]] = []
    for index in range(num_tensors):
        name = cursor.text(f"the name of tensor {index}", MAX_NAME_BYTES)
        num_dimensions = cursor.u32(f"tensor {name!r:.80}")
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            raise cursor.fail(f"tensor {name!r:.80} has {num_dimensions} dimensions")
        sizes = [cursor.u64(f"tensor {name!r:.80}") for _ in range(num_dimensions)]
        code = cursor.u32(f"tensor {name!r:.80}")
        offset = cursor.u64(f"tensor {name!r:.80}")
        entries.append((name, _tensor_type(cursor, name, code), tuple(reversed(sizes)), offset))
    data_start = -(-cursor.offset // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, block, shape, offset in entries:
        if name in tensors:
            raise cursor.fail(f"tensor {name!r:.80} occurs twice")
        tensors[name] = _place(cursor, name, block, shape, data_start + offset)
    return tensors


def _tensor_type(cursor: _Cursor, name: str, code: int) -> BlockType:
    if code in TENSOR_TYPES:
        return TENSOR_TYPES[code]
    known = ", ".join(block.name for block in TENSOR_TYPES.values())
    raise cursor.fail(
        f"tensor {name!r:.80} has the type {_OTHER_TYPES.get(code, f'number {code}')}, "
        f"which is not supported; supported are {known}"
    )


def _place(
    cursor: _Cursor, name: str, block: BlockType, shape: tuple[int, ...], offset: int
) -> TensorInfo:
    columns = shape[-1]
    if columns % block.elements:
        raise cursor.fail(
            f"tensor {name!r:.80} has rows of {columns} values, "
            f"no multiple of {block.name}'s block of {block.elements}"
        )
    size_bytes = math.prod(shape) // block.elements * block.size_bytes
    if size_bytes == 0 or offset + size_bytes > len(cursor.data):
        raise cursor.fail(
            f"tensor {name!r:.80} ({block.name} {list(shape)}) needs bytes {offset} to "
            f"{offset + size_bytes}; the file has {len(cursor.data)}"
        )
    return TensorInfo(name, block, shape, offset, size_bytes)
