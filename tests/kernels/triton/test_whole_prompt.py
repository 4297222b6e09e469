"""A long prompt through the library's attention, against the reference."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend

from engine.cuda_eager import EagerPass
from kernels.kv_cache import AttentionBatch, LayerCache
from kernels.paged_attention import reference
from kernels.rope_kv_write import reference as rope_reference
from kernels.rope_kv_write import rope_table
from tests.kernels.triton.compare import assert_near
from tests.kernels.triton.test_attention_triton import make_case

whole = importlib.import_module("kernels.rope_attention.whole_prompt")
NUM_Q, NUM_KV, HEAD_DIM = 4, 2, 64


@pytest.fixture(autouse=True)
def library(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Low limits; off the card another backend stands in for the library."""
    monkeypatch.setattr(whole, "LIBRARY_TOKENS", 30)
    monkeypatch.setattr(whole, "LENGTH_STEP", 32)
    monkeypatch.setattr(whole, "has_library_attention", lambda: True)
    if device.type == "cpu":
        inner = whole.sdpa_kernel
        monkeypatch.setattr(whole, "sdpa_kernel", lambda _: inner(SDPBackend.MATH))


def on(device: torch.device, batch: AttentionBatch) -> AttentionBatch:
    nothing: Any = None
    return EagerPass(nothing, (), device)._batch(batch)


@pytest.mark.parametrize("length", [30, 64, 513])
@pytest.mark.parametrize("before", [[], [70], [1, 33, 40]], ids=str)
@pytest.mark.parametrize("normed", [False, True])
def test_like_the_reference(
    device: torch.device, dtype: torch.dtype, length: int, before: list[int], normed: bool
) -> None:
    singles = len(before)
    _, cache, batch = make_case(
        [*[1] * singles, length], [*before, length], NUM_Q, NUM_KV, HEAD_DIM, 16, dtype
    )
    contexts = [*before, length]
    positions = torch.tensor([*(context - 1 for context in before), *range(length)])
    owners = [*range(singles), *[singles] * length]
    slots = torch.tensor([
        int(batch.block_tables[owner, position // 16]) * 16 + position % 16
        for owner, position in zip(owners, positions.tolist(), strict=True)
    ])  # fmt: skip
    qkv = torch.randn(len(positions), (NUM_Q + 2 * NUM_KV) * HEAD_DIM).to(dtype)
    rope = rope_table(10000.0 ** -(torch.arange(0, HEAD_DIM, 2) / HEAD_DIM), max(contexts))
    norm = (torch.rand(HEAD_DIM) + 0.5).to(dtype) if normed else None
    expected_cache = LayerCache(cache.k.float(), cache.v.float())
    q = rope_reference.rope_kv_write(qkv, positions, rope, expected_cache, slots, norm, norm, 1e-6)
    expected = reference.paged_attention(q, expected_cache, batch, 0.125)
    moved, on_device = on(device, batch), LayerCache(cache.k.to(device), cache.v.to(device))
    assert whole.is_whole_prompt(len(qkv), moved)
    move = None if norm is None else norm.to(device)
    actual = whole.whole_prompt(
        qkv.to(device), positions.to(device), rope.to(device), on_device, slots.to(device), moved,
        0.125, move, move, 1e-6,
    )  # fmt: skip
    assert_near(actual, expected, 8e-3)
    written = expected_cache.k.isfinite()
    assert_near(on_device.k.cpu()[written], expected_cache.k[written], 4e-3)


@pytest.mark.parametrize(
    ("query_lens", "context_lens", "is_whole"),
    [
        ([40], [40], True),
        ([1, 40], [9, 40], True),
        ([40], [56], False),
        ([20], [20], False),
        ([40, 40], [40, 40], False),
        ([1, 40], [9, 56], False),
    ],
)
def test_only_whole_single_prompts_go_there(
    device: torch.device, query_lens: list[int], context_lens: list[int], is_whole: bool
) -> None:
    _, _, batch = make_case(query_lens, context_lens, 2, 1, 32, 16, torch.float32)
    assert whole.is_whole_prompt(sum(query_lens), on(device, batch)) == is_whole
