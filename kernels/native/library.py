"""The native kernels' C interface, as ctypes sees it."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

_ADDRESS = ctypes.c_void_p
_COUNT = ctypes.c_int64
_FLAG = ctypes.c_int
_REAL = ctypes.c_float

# Result, then arguments, in the order of src/kernels.cpp.
_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "isa": (ctypes.c_char_p, []),
    "set_num_threads": (None, [_FLAG]),
    "num_threads": (_FLAG, []),
    "linear": (
        None,
        [_ADDRESS, _ADDRESS, _COUNT, _COUNT, _ADDRESS, _REAL, _ADDRESS, _ADDRESS, _COUNT, _FLAG],
    ),
    "swiglu": (None, [_ADDRESS, _COUNT, _COUNT, _ADDRESS]),
    "rms_norm": (None, [_ADDRESS, _COUNT, _COUNT, _COUNT, _ADDRESS, _REAL, _ADDRESS]),
    "embedding": (None, [_ADDRESS, _ADDRESS, _COUNT, _COUNT, _ADDRESS]),
    "rope_kv_write": (
        _FLAG,
        [
            _ADDRESS, _COUNT, _COUNT, _COUNT, _ADDRESS, _ADDRESS, _FLAG, _ADDRESS, _COUNT,
            _ADDRESS, _ADDRESS, _REAL, _ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS, _COUNT, _COUNT,
            _COUNT, _COUNT, _FLAG, _ADDRESS,
        ],
    ),
    "sample": (_FLAG, [_ADDRESS]),
    "paged_attention": (
        _FLAG,
        [
            _ADDRESS, _COUNT, _COUNT, _ADDRESS, _ADDRESS, _ADDRESS, _COUNT, _COUNT, _ADDRESS,
            _ADDRESS, _ADDRESS, _ADDRESS, _COUNT, _COUNT, _COUNT, _COUNT, _FLAG, _REAL,
            _ADDRESS,
        ],
    ),
}  # fmt: skip

# Values of src/linear.h.
STORE, ADD, SWIGLU = 0, 1, 2

# Values of src/kv_cache.h.
KV_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, torch.float8_e4m3fn: 3}

# Values of src/weight.h.
INT4, INT8, FLOAT, BFLOAT, HALF = 0, 1, 2, 3, 4
INT8_ACTIVATIONS, INT16_ACTIVATIONS, FLOAT_ACTIVATIONS = 0, 1, 2
TILE_ROWS = 16
BLOCK = 32

# Addresses of src/sampling.h, in order; all but the first and last are the fields of
# `SamplingBatch` of the same name.
SAMPLING_TENSORS = (
    "logits", "plain", "temperature", "top_k", "top_p", "min_p", "repetition_penalty",
    "frequency_penalty", "presence_penalty", "seeds", "positions", "bias_starts", "bias_ids",
    "bias_values", "seen_starts", "seen_ids", "seen_counts", "masked_starts", "masked_ids",
    "tokens",
)  # fmt: skip


class NativeWeight(ctypes.Structure):
    """`Weight` of src/weight.h."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("scale_is_half", ctypes.c_int32),
        ("zero", ctypes.c_int32),
        ("activations", ctypes.c_int32),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("data", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("minimum", ctypes.c_void_p),
    )


class NativeSamplingRows(ctypes.Structure):
    """`SamplingRows` of src/sampling.h."""

    _fields_ = (
        ("num_rows", ctypes.c_int64),
        ("vocabulary", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in SAMPLING_TENSORS),
        ("noise_range", ctypes.c_double),
    )


class Library:
    """The loaded library: one attribute a function, `repartee_` left off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        loaded = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, f"repartee_{name}")
            function.restype = result
            function.argtypes = arguments
            setattr(self, name, function)
