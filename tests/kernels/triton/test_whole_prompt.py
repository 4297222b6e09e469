"""A long prompt through the library's attention, against the reference."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend

from kernels.paged_attention import reference
from tests.kernels.triton.compare import assert_near
from tests.kernels.triton.test_attention_triton import make_case, run

whole = importlib.import_module("kernels.paged_attention.whole_prompt")


@pytest.fixture
def library(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The library's module, its limits low; off the card another backend stands in."""
    attention = importlib.import_module("kernels.paged_attention.triton")
    monkeypatch.setattr(attention, "LIBRARY_TOKENS", 30)
    monkeypatch.setattr(attention, "has_library_attention", lambda: True)
    if device.type == "cpu":
        inner = whole.sdpa_kernel
        monkeypatch.setattr(whole, "sdpa_kernel", lambda _: inner(SDPBackend.MATH))
    return attention


@pytest.mark.parametrize("length", [30, 64, 513])
@pytest.mark.parametrize("block_size", [4, 16])
def test_like_the_reference(
    device: torch.device, dtype: torch.dtype, length: int, block_size: int, library: Any
) -> None:
    q, cache, batch = make_case([length], [length], 4, 2, 64, block_size, dtype)
    run(device, q, cache, batch)


def test_only_whole_single_prompts_go_there(
    device: torch.device, dtype: torch.dtype, library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone: list[int] = []
    monkeypatch.setattr(library, "whole_prompt", lambda q, *_: (gone.append(len(q)), q)[1])
    for query_lens, context_lens, is_whole in (
        ([40], [40], True), ([40], [56], False), ([20], [20], False), ([40, 40], [40, 40], False),
    ):  # fmt: skip
        q, cache, batch = make_case(query_lens, context_lens, 2, 1, 32, 16, dtype)
        moved = type(batch)(
            batch.query_starts.to(device), batch.context_lens.to(device),
            batch.block_tables.to(device), batch.max_query_len, batch.max_context_len,
        )  # fmt: skip
        gone.clear()
        on_device = type(cache)(*(values.to(device) for values in cache.tensors()))
        actual = library.paged_attention(q.to(device), on_device, moved, 0.2)
        assert bool(gone) == is_whole
        if not is_whole:
            assert_near(actual, reference.paged_attention(q, cache, batch, 0.2), 8e-3)
