"""What `tune_step` tries: launch settings by kind of weights and batch, in groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Settings = dict[str, Any]
# {(op, key): settings that replace those of the table}; several are tried together.
Trial = dict[tuple[str, str], Settings]

HEADS = "8x4x128"
QKV, OUT, GATE, DOWN = "6144x4096", "4096x4096", "28672x4096", "4096x14336"


def attention(splits: int, tile: int, warps: int, **more: Any) -> Settings:
    return {"splits": splits, "tile": tile, "warps": warps, "early": True, **more}


def _products(op: str, key: str, *tried: Settings) -> list[Trial]:
    return [{(op, key): settings} for settings in tried]


def _attention_trials(qkv: tuple[str, str], *qkv_settings: Settings) -> list[Trial]:
    """Attention finds room beside the programs of q, k and v, or it doesn't: both at once."""
    shapes = (
        attention(5, 128, 8), attention(10, 64, 4), attention(16, 64, 4), attention(20, 32, 4),
    )  # fmt: skip
    place = ("rope_attention", f"{HEADS},1")
    return [{place: shape, qkv: settings} for settings in qkv_settings for shape in shapes]


def int4_one_row() -> Iterator[list[Trial]]:
    op = "int4_gemv"
    qkv, out, gate, down = (f"{name},g128" for name in (QKV, OUT, GATE, DOWN))
    gate += ",gated"
    yield _products(
        op, gate, {"half": True, "programs": 224, "depth": 2},
        {"half": True, "programs": 264, "depth": 2}, {"half": True, "programs": 224, "depth": 3},
        {"half": False, "programs": 224, "depth": 3},
    )  # fmt: skip
    yield _attention_trials((op, qkv), {"trigger": 0}, {"trigger": 1})
    yield _products(
        op, qkv, {"half": True}, {"half": True, "depth": 1},
        {"half": True, "depth": 4, "registers": 255, "programs": 264}, {"depth": 1},
    )  # fmt: skip
    yield _products(
        op, out, {"half": True, "registers": 168, "depth": 2}, {"half": False}, {"depth": 3},
    )  # fmt: skip
    yield _products(
        op, down, {"registers": 255, "programs": 132, "depth": 4}, {"depth": 1},
        {"half": True, "registers": 255, "programs": 132, "depth": 4},
    )  # fmt: skip


def int4_eight_rows() -> Iterator[list[Trial]]:
    yield [{("rope_attention", f"{HEADS},8"): attention(splits, 64, 4)} for splits in (5, 6, 8)]
    yield [
        {("paged_attention_decode", f"{HEADS},8"): {"splits": splits, "stages": 3}}
        for splits in (4, 5, 8, 10)
    ]
    for name, split in ((QKV, 4), (OUT, 5), (DOWN, 5)):
        yield _products(
            "int4_wgmma", f"{name},g128,8", {"split": split, "trigger": 1}, {"split": split - 1},
            {"split": split + 1},
        )  # fmt: skip


def bf16_one_row() -> Iterator[list[Trial]]:
    yield _attention_trials(("row_gemv", f"bf16,{QKV}"), {})


def fp8_one_row() -> Iterator[list[Trial]]:
    op = "byte_mma"
    yield _attention_trials((op, f"fp8,x8,{QKV}"), {"trigger": 0}, {"trigger": 1})
    yield _products(op, f"fp8,x8,{GATE},gated", {"programs": 264}, {"trigger": 0})


TRIALS = {
    ("int4", 1): int4_one_row,
    ("int4", 8): int4_eight_rows,
    ("bf16", 1): bf16_one_row,
    ("fp8", 1): fp8_one_row,
}
