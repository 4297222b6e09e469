"""A decode step's rotation, KV write and attention in one launch, against the references."""

from __future__ import annotations

import pytest
import torch

from kernels.kv_cache import AttentionBatch, LayerCache
from kernels.paged_attention import reference as attention_reference
from kernels.rope_kv_write import reference as rope_reference
from kernels.rope_kv_write import rope_table
from tests.kernels.triton.compare import assert_near
from tests.kernels.triton.test_attention_triton import make_case

SHAPES = [(4, 1, 32, 16), (3, 3, 64, 16), (6, 2, 48, 4), (9, 3, 64, 32)]


@pytest.mark.parametrize(("num_q", "num_kv", "head_dim", "block_size"), SHAPES)
@pytest.mark.parametrize("context_lens", [[1], [16, 17], [5, 64, 33], [130, 1, 15, 95]], ids=str)
def test_like_rotation_then_attention(
    device: torch.device, dtype: torch.dtype, num_q: int, num_kv: int, head_dim: int,
    block_size: int, context_lens: list[int],
) -> None:  # fmt: skip
    from kernels.rope_attention.triton import fits, rope_attention

    rows = len(context_lens)
    _, cache, batch = make_case(
        [1] * rows, context_lens, num_q, num_kv, head_dim, block_size, dtype
    )
    # The step's own slots hold nothing yet, and nothing of them may be read.
    positions = batch.context_lens.long() - 1
    blocks = batch.block_tables[torch.arange(rows), positions // block_size].long()
    slots = blocks * block_size + positions % block_size
    for values in (cache.k, cache.v):
        values[blocks, :, positions % block_size] = float("nan")
    rope = rope_table(1.0 / 10000 ** (torch.arange(head_dim // 2) / (head_dim // 2)), 200)
    # A row stride that isn't the row's length.
    width = (num_q + 2 * num_kv) * head_dim
    qkv = torch.randn(rows, width + 32).to(dtype)[:, :width]
    expected_cache = LayerCache(cache.k.float(), cache.v.float())
    q = rope_reference.rope_kv_write(
        qkv.float(), positions, rope, expected_cache, slots, None, None, 0.0
    )
    scale = head_dim**-0.5
    expected = attention_reference.paged_attention(q, expected_cache, batch, scale)
    moved = AttentionBatch(
        batch.query_starts.to(device), batch.context_lens.to(device),
        batch.block_tables.to(device), 1, batch.max_context_len,
    )  # fmt: skip
    for _ in range(2):
        actual_cache = LayerCache(cache.k.to(device).clone(), cache.v.to(device).clone())
        on_device = qkv.to(device)
        assert fits(on_device, actual_cache, moved, None)
        actual = rope_attention(
            on_device, positions.to(device), rope.to(device), actual_cache, slots.to(device),
            moved, scale,
        )  # fmt: skip
        assert_near(actual, expected, 1e-2)
        for ours, theirs in zip(actual_cache.tensors(), expected_cache.tensors(), strict=True):
            known = torch.isfinite(theirs)
            assert torch.equal(torch.isfinite(ours.cpu()), known)
            assert_near(ours.cpu().float()[known], theirs[known], 4e-3)


def test_padding_writes_nothing_and_gives_zeros(device: torch.device, dtype: torch.dtype) -> None:
    from kernels.rope_attention.triton import rope_attention

    _, cache, batch = make_case([1, 1], [20, 0], 4, 2, 32, 16, dtype)
    cache = LayerCache(*(values.nan_to_num().to(device) for values in cache.tensors()))
    before = [values.clone() for values in cache.tensors()]
    moved = AttentionBatch(
        batch.query_starts.to(device), batch.context_lens.to(device),
        batch.block_tables.to(device), 1, 20,
    )  # fmt: skip
    qkv = torch.randn(2, 8 * 32).to(dtype).to(device)
    rope = rope_table(torch.ones(16), 64).to(device)
    slots = torch.tensor([-1, -1], device=device)
    out = rope_attention(qkv, torch.tensor([19, 0], device=device), rope, cache, slots, moved, 0.2)
    assert torch.isfinite(out[0]).all()
    assert not out[1].any()
    for values, old in zip(cache.tensors(), before, strict=True):
        assert torch.equal(values, old)


def test_wrong_heads_are_refused(device: torch.device, dtype: torch.dtype) -> None:
    from kernels.rope_attention.triton import rope_attention

    _, cache, batch = make_case([1], [4], 4, 2, 32, 16, dtype)
    slots = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="expected heads of 2 groups"):
        rope_attention(
            torch.zeros(1, 7 * 32, dtype=dtype), slots, rope_table(torch.ones(16), 64), cache,
            slots, batch, 0.2,
        )  # fmt: skip
