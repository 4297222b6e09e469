"""Gumbel noise that depends on nothing but seed, position and token id.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011)
with key = seed and counter = (token id, position, 0, 0). Of the four output words the
first is used: u = ((word0 >> 8) + 0.5) * 2^-24 and noise = -log(-log(u)), in float64,
since u has 25 significant bits.
"""

from __future__ import annotations

import numpy as np

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = 0xFFFFFFFF
_HALF = np.uint64(32)
_LOW = np.uint64(_WORD)

# Noise lies in [-2.853, 17.329], so a token further than this below the likeliest
# (after temperature) can't be chosen.
NOISE_RANGE = 20.19


def philox(
    counter: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Philox4x32-10 of many counters under one key.

    Args:
        counter: Four words, uint64 arrays of one shape, values below 2^32.
        seed: The key, 64 bits, its low word first.

    Returns:
        Four output words, uint64, values below 2^32.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = seed & _WORD, seed >> 32 & _WORD
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (p1 >> _HALF) ^ c1 ^ np.uint64(k0),
            p1 & _LOW,
            (p0 >> _HALF) ^ c3 ^ np.uint64(k1),
            p0 & _LOW,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return c0, c1, c2, c3


def gumbel_noise(token_ids: np.ndarray, position: int, seed: int) -> np.ndarray:
    """Noise of each token id at one position.

    Args:
        token_ids: Integers [N].
        position: Index, in the whole sequence, of the token being sampled.
        seed: 64 bits.

    Returns:
        float64 [N].
    """
    ids = token_ids.astype(np.uint64)
    zero = np.zeros_like(ids)
    word0 = philox((ids, zero + np.uint64(position), zero, zero), seed)[0]
    u = ((word0 >> np.uint64(8)) + 0.5) * 2.0**-24
    return -np.log(-np.log(u))
