"""CUDA attention of drafts: several queries a sequence, the KV shared out to programs."""

from __future__ import annotations

import importlib

import pytest
import torch

from tests.kernels.samples import cache_as
from tests.kernels.triton.test_attention_triton import make_case, run

# Query and context lengths: drafts of several lengths beside plain decodes and empty rows,
# contexts that are nothing but the queries, page edges.
MIXES = [
    ([5], [70]),
    ([2, 1, 3], [17, 64, 3]),
    ([4, 0, 1, 9], [16, 0, 1, 130]),
]


@pytest.mark.parametrize("splits", [2, 5])
@pytest.mark.parametrize(("num_q", "num_kv", "head_dim"), [(4, 1, 32), (3, 3, 64), (6, 2, 48)])
@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_drafts(
    device: torch.device, dtype: torch.dtype, splits: int, num_q: int, num_kv: int,
    head_dim: int, mix: tuple[list[int], list[int]], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    subject = importlib.import_module("kernels.paged_attention.triton")
    monkeypatch.setattr(subject, "num_splits", lambda *_: splits)
    monkeypatch.setattr(subject, "_prefill", None)
    run(device, *make_case(*mix, num_q, num_kv, head_dim, 16, dtype))


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
def test_drafts_over_8_bit_kv(
    device: torch.device, dtype: torch.dtype, kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = importlib.import_module("kernels.paged_attention.triton")
    monkeypatch.setattr(subject, "num_splits", lambda *_: 3)
    monkeypatch.setattr(subject, "_prefill", None)
    q, cache, batch = make_case([3, 1, 6], [40, 90, 33], 6, 2, 32, 16, torch.float32)
    run(device, q.to(dtype), cache_as(cache, kind), batch)


def test_long_pieces_and_full_cards_take_the_other_kernel(
    device: torch.device, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = importlib.import_module("kernels.paged_attention.triton")
    monkeypatch.setattr(subject, "_verify", None)
    monkeypatch.setattr(subject, "num_splits", lambda *_: 2)
    # 40 queries by 4 heads are more rows than a program takes.
    run(device, *make_case([40, 1], [60, 20], 4, 1, 32, 16, dtype))
    monkeypatch.setattr(subject, "num_splits", lambda *_: 1)
    run(device, *make_case([2, 1], [20, 20], 4, 1, 32, 16, dtype))


def test_real_shapes_on_the_card(device: torch.device, dtype: torch.dtype) -> None:
    rows, num_kv = (4, 8) if device.type == "cuda" else (2, 1)
    extra = torch.randint(1, 3000 if device.type == "cuda" else 40, (rows,)).tolist()
    lens = [9, 3, 1, 5][:rows]
    contexts = [length + more for length, more in zip(lens, extra, strict=True)]
    run(device, *make_case(lens, contexts, num_kv * 4, num_kv, 128, 16, dtype))
