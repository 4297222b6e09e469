"""Sampling on the GPU: no sort, no synchronisation with the host.

Scores (scaled logit plus Gumbel noise) and block maxima come from one launch over all of
the vocabulary; a second, one program a row, merges them. A row with top_k, top_p or
min_p draws by elimination: these filters keep the front of the order (logit down, id
up), so a winner outside of them takes everything behind it out as well, and the best of
the rest is the next to be looked at, with the same noise. What is left at the end is
what a sort would have left.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from kernels.checks import expect
from kernels.cuda.launch import overlap_options
from kernels.sampling.batch import SamplingBatch

BLOCK = 2048
FLOAT_MAX = tl.constexpr(3.4028234663852886e38)


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """How R rows are sampled, on the device, without the ragged lists.

    Attributes:
        temperature: float32 [R]; 0 means greedy.
        top_k: int32 [R]; 0 means off.
        top_p: float32 [R].
        min_p: float32 [R].
        seeds: int64 [R].
        positions: int64 [R]; a CUDA graph's steps count them up in place.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seeds: torch.Tensor
    positions: torch.Tensor

    @classmethod
    def from_batch(cls, batch: SamplingBatch, device: torch.device) -> DeviceRows:
        """The rows of `batch` on `device`."""
        return cls(
            _move(batch.temperature.float(), device),
            _move(batch.top_k.clamp(max=2**31 - 1).int(), device),
            _move(batch.top_p.float(), device),
            _move(batch.min_p.float(), device),
            _move(batch.seeds, device),
            _move(batch.positions, device),
        )


@triton.jit
def _gumbel(token, position, seed):
    """Noise of each token id; see `kernels.sampling.noise`."""
    c0 = token.to(tl.uint32)
    c1 = position.to(tl.uint32) + tl.zeros_like(c0)
    c2 = tl.zeros_like(c0)
    c3 = tl.zeros_like(c0)
    k0 = (seed & 0xFFFFFFFF).to(tl.uint32) + tl.zeros_like(c0)
    k1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32) + tl.zeros_like(c0)
    for _ in tl.static_range(10):
        m0 = tl.full(c0.shape, 0xD2511F53, tl.uint32)
        m1 = tl.full(c0.shape, 0xCD9E8D57, tl.uint32)
        high0 = tl.umulhi(c0, m0)
        low0 = c0 * m0
        high1 = tl.umulhi(c2, m1)
        low1 = c2 * m1
        c0 = high1 ^ c1 ^ k0
        c1 = low1
        c2 = high0 ^ c3 ^ k1
        c3 = low0
        k0 = k0 + tl.full(c0.shape, 0x9E3779B9, tl.uint32)
        k1 = k1 + tl.full(c0.shape, 0xBB67AE85, tl.uint32)
    n = (c0 >> 8).to(tl.int32)
    # u = (n + 0.5) / 2^24 has 25 bits: above a half it is held as its distance from 1.
    distance = ((16777215 - n).to(tl.float32) + 0.5) * 5.9604644775390625e-08
    rest = 1.0 - distance
    near_one = tl.where(rest == 1.0, distance, tl.log(rest) * (distance / (rest - 1.0)))
    below = -tl.log((n.to(tl.float32) + 0.5) * 5.9604644775390625e-08)
    return -tl.log(tl.where(n < 8388608, below, near_one))


@triton.jit
def _clean(x):
    """NaN as -inf, +inf as the largest float32."""
    x = tl.where(x == x, x, -float("inf"))
    return tl.minimum(x, FLOAT_MAX)


@triton.jit
def _score_kernel(
    logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seeds_ptr, positions_ptr,
    scores_ptr, best_ptr, index_ptr, top_ptr, stride, V, BLOCKS, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One block of one row: scores against the block's own largest logit, and the best."""
    row = tl.program_id(0)
    block = tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    inside = token < V
    if PDL:
        gdc_wait()
    x = tl.load(logits_ptr + row.to(tl.int64) * stride + token, mask=inside, other=-float("inf"))
    x = _clean(x.to(tl.float32))
    top = tl.max(x, 0)
    # A block without a finite logit has no best; any finite base avoids inf - inf.
    base = tl.where(top == -float("inf"), 0.0, top)
    temperature = tl.load(temperature_ptr + row)
    score = x - base
    if temperature > 0:
        seed = tl.load(seeds_ptr + row)
        position = tl.load(positions_ptr + row)
        score = score / temperature + _gumbel(token, position, seed)
        filtered = (tl.load(top_k_ptr + row) > 0) | (tl.load(top_p_ptr + row) < 1.0)
        if filtered | (tl.load(min_p_ptr + row) > 0.0):
            tl.store(scores_ptr + row.to(tl.int64) * V + token, score, mask=inside)
    best, place = tl.max(score, 0, return_indices=True)
    tl.store(best_ptr + row * BLOCKS + block, best)
    tl.store(index_ptr + row * BLOCKS + block, block * BLOCK + place)
    tl.store(top_ptr + row * BLOCKS + block, top)


@triton.jit
def _order_key(x):
    """uint32 that orders as x does."""
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def _top_k_weight(logits, top, temperature, top_k, V, BLOCK: tl.constexpr):
    """Sum of exp of the scaled logits of the top_k likeliest: the k-th by radix, in 4 passes."""
    prefix = tl.zeros((), tl.uint32)
    wanted = top_k
    digits = tl.arange(0, 256)
    for step in tl.static_range(4):
        counts = tl.zeros([256], tl.int32)
        for start in range(0, V, BLOCK):
            token = start + tl.arange(0, BLOCK)
            x = tl.load(logits + token, mask=token < V, other=-float("inf")).to(tl.float32)
            key = _order_key(_clean(x))
            ours = token < V
            if step > 0:
                ours = ours & ((key >> (32 - 8 * step)) == prefix)
            byte = ((key >> (24 - 8 * step)) & 255).to(tl.int32)
            counts += tl.histogram(byte, 256, mask=ours)
        reaching = tl.cumsum(counts, 0, reverse=True)
        digit = tl.max(tl.where(reaching >= wanted, digits, 0), 0)
        above = tl.sum(tl.where(digits > digit, counts, 0), 0)
        wanted -= above
        prefix = (prefix << 8) | digit.to(tl.uint32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, V, BLOCK):
        token = start + tl.arange(0, BLOCK)
        x = tl.load(logits + token, mask=token < V, other=-float("inf")).to(tl.float32)
        x = _clean(x)
        weight = tl.exp((x - top) / temperature)
        total += tl.where((token < V) & (_order_key(x) > prefix), weight, 0.0)
    # Of those equal to the k-th, only as many as there is room for.
    bits = tl.where(prefix >> 31 != 0, prefix & 0x7FFFFFFF, prefix ^ 0xFFFFFFFF)
    kth = bits.to(tl.float32, bitcast=True)
    return tl.sum(total, 0) + wanted.to(tl.float32) * tl.exp((kth - top) / temperature)


@triton.jit
def _choose_kernel(
    logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, scores_ptr, best_ptr,
    index_ptr, top_ptr, out_ptr, stride, V, BLOCKS, BLOCK: tl.constexpr, BLOCKS_P: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Merge one row's blocks; draw by elimination where a filter is on."""
    row = tl.program_id(0)
    blocks = tl.arange(0, BLOCKS_P)
    ok = blocks < BLOCKS
    if PDL:
        gdc_wait()
    temperature = tl.load(temperature_ptr + row)
    divisor = tl.where(temperature > 0, temperature, 1.0)
    tops = tl.load(top_ptr + row * BLOCKS + blocks, mask=ok, other=-float("inf"))
    best = tl.load(best_ptr + row * BLOCKS + blocks, mask=ok, other=-float("inf"))
    top = tl.max(tops, 0)
    base = tl.where(top == -float("inf"), 0.0, top)
    # A block without a finite logit can't win, whatever its noise.
    merged = tl.where(tops == -float("inf"), -float("inf"), (tops - base) / divisor + best)
    winner = tl.argmax(merged, 0)
    choice = tl.load(index_ptr + row * BLOCKS + winner)
    choice = tl.where(top == -float("inf"), -1, choice)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    top_k = tl.where(top_k >= V, 0, top_k)
    filtered = (temperature > 0) & ((top_k > 0) | (top_p < 1.0) | (min_p > 0.0))
    if filtered & (choice >= 0):
        logits = logits_ptr + row.to(tl.int64) * stride
        scores = scores_ptr + row.to(tl.int64) * V
        whole = 0.0
        if (top_k > 0) & (top_p < 1.0):
            whole = _top_k_weight(logits, top, temperature, top_k, V, BLOCK)
        searching = choice >= 0
        while searching:
            limit = _clean(tl.load(logits + choice).to(tl.float32))
            num_before = tl.zeros([BLOCK], tl.int32)
            weight_before = tl.zeros([BLOCK], tl.float32)
            weight_all = tl.zeros([BLOCK], tl.float32)
            next_score = -float("inf")
            next_choice = choice
            for block in range(BLOCKS):
                token = block * BLOCK + tl.arange(0, BLOCK)
                x = tl.load(logits + token, mask=token < V, other=-float("inf"))
                x = _clean(x.to(tl.float32))
                before = (x > limit) | ((x == limit) & (token < choice))
                weight = tl.exp((x - top) / temperature)
                num_before += before.to(tl.int32)
                weight_before += tl.where(before, weight, 0.0)
                weight_all += weight
                block_top = tl.load(top_ptr + row * BLOCKS + block)
                score = tl.load(scores + token, mask=before, other=-float("inf"))
                high, place = tl.max(score, 0, return_indices=True)
                high = tl.where(high == -float("inf"), high, high + (block_top - top) / temperature)
                if high > next_score:
                    next_score = high
                    next_choice = block * BLOCK + place
            before_all = tl.sum(weight_before, 0)
            total = tl.where((top_k > 0) & (top_p < 1.0), whole, tl.sum(weight_all, 0))
            count = tl.sum(num_before, 0)
            kept = (top_k == 0) | (count < top_k)
            kept = kept & ((top_p >= 1.0) | (before_all < top_p * total))
            kept = kept & (tl.exp((limit - top) / temperature) >= min_p)
            searching = (count > 0) & (kept == 0)
            if searching:
                choice = next_choice
    tl.store(out_ptr + row, choice.to(tl.int64))


@triton.jit
def _adjust_kernel(
    logits_ptr, bias_starts_ptr, bias_ids_ptr, bias_ptr, seen_starts_ptr, seen_ids_ptr,
    counts_ptr, masked_starts_ptr, masked_ids_ptr, repetition_ptr, frequency_ptr, presence_ptr, V,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Bias, penalties and mask of one row, in place."""
    row = tl.program_id(0)
    logits = logits_ptr + row.to(tl.int64) * V
    i = tl.arange(0, BLOCK)
    end = tl.load(bias_starts_ptr + row + 1)
    for start in range(tl.load(bias_starts_ptr + row), end, BLOCK):
        ok = start + i < end
        token = tl.load(bias_ids_ptr + start + i, mask=ok, other=0)
        tl.atomic_add(logits + token, tl.load(bias_ptr + start + i, mask=ok, other=0.0), mask=ok)
    tl.debug_barrier()
    repetition = tl.load(repetition_ptr + row)
    frequency = tl.load(frequency_ptr + row)
    presence = tl.load(presence_ptr + row)
    end = tl.load(seen_starts_ptr + row + 1)
    for start in range(tl.load(seen_starts_ptr + row), end, BLOCK):
        ok = start + i < end
        token = tl.load(seen_ids_ptr + start + i, mask=ok, other=0)
        count = tl.load(counts_ptr + start + i, mask=ok, other=0.0)
        x = _clean(tl.load(logits + token, mask=ok, other=0.0))
        x = tl.where(x > 0, x / repetition, x * repetition)
        x = x - frequency * count - presence * (count > 0).to(tl.float32)
        tl.store(logits + token, x, mask=ok)
    tl.debug_barrier()
    end = tl.load(masked_starts_ptr + row + 1)
    for start in range(tl.load(masked_starts_ptr + row), end, BLOCK):
        ok = start + i < end
        token = tl.load(masked_ids_ptr + start + i, mask=ok, other=0)
        tl.store(logits + token, tl.full([BLOCK], -float("inf"), tl.float32), mask=ok)


def sample_rows(
    logits: torch.Tensor, rows: DeviceRows, out: torch.Tensor | None = None
) -> torch.Tensor:
    """One token a row, without bias, penalties or mask; see `kernels.sampling.sample`.

    Args:
        logits: bf16 or float32 [R, V], left as they are.
        rows: How each row is sampled.
        out: int64 [R] to write to; None makes one.

    Returns:
        int64 [R]; -1 for a row without a logit above -inf.

    Raises:
        ValueError: Wrong shape or dtype.
    """
    num_rows, vocabulary = logits.shape
    expect("logits", logits, [None, None], [torch.bfloat16, torch.float32], contiguous=False)
    expect("temperature", rows.temperature, [num_rows], [torch.float32])
    if out is None:
        out = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    blocks = triton.cdiv(vocabulary, BLOCK)
    scores = torch.empty(num_rows, vocabulary, dtype=torch.float32, device=logits.device)
    best = torch.empty(num_rows, blocks, dtype=torch.float32, device=logits.device)
    top = torch.empty_like(best)
    index = torch.empty(num_rows, blocks, dtype=torch.int32, device=logits.device)
    options = overlap_options()
    _score_kernel[(num_rows, blocks)](
        logits, rows.temperature, rows.top_k, rows.top_p, rows.min_p, rows.seeds, rows.positions,
        scores, best, index, top, logits.stride(0), vocabulary, blocks, BLOCK, num_warps=4,
        **options,
    )  # fmt: skip
    _choose_kernel[(num_rows,)](
        logits, rows.temperature, rows.top_k, rows.top_p, rows.min_p, scores, best, index, top,
        out, logits.stride(0), vocabulary, blocks, BLOCK, triton.next_power_of_2(blocks),
        num_warps=8, **options,
    )  # fmt: skip
    return out


def sample_triton(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """See `kernels.sampling.sample`; in float32, so a tie within its rounding may fall otherwise.

    Args:
        logits: bf16 or float32 [R, V] on the device, left as they are.
        batch: R rows, on the CPU.
    """
    device = logits.device
    ragged = (batch.bias_ids, batch.seen_ids, batch.masked_ids)
    if any(len(items) for items in ragged):
        logits = logits.float().contiguous().clone()
        _adjust_kernel[(len(batch),)](
            logits, _move(batch.bias_starts, device), _move(batch.bias_ids, device),
            _move(batch.bias_values, device), _move(batch.seen_starts, device),
            _move(batch.seen_ids, device), _move(batch.seen_counts, device),
            _move(batch.masked_starts, device), _move(batch.masked_ids, device),
            _move(batch.repetition_penalty, device), _move(batch.frequency_penalty, device),
            _move(batch.presence_penalty, device), logits.shape[1], 256, num_warps=4,
        )  # fmt: skip
    return sample_rows(logits, DeviceRows.from_batch(batch, device))


def _move(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` on `device`; the host doesn't wait for what the device still does."""
    return tensor.to(device, non_blocking=True)
