"""Names for full KV blocks, so that equal prefixes are found and shared.

A block's name depends on its tokens, on every token before it, on the model and
on the tenant: equal names mean equal KV, and tenants never see each other's.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

# 128 bits: a client who picks the tokens can't find two blocks of one name.
_DIGEST_BYTES = 16


def root_name(model_id: str, tenant: str) -> bytes:
    """The parent of a first block."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in (model_id.encode(), tenant.encode()):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def extend_names(names: list[bytes], root: bytes, tokens: Sequence[int], block_size: int) -> None:
    """Append, in place, the names of the full blocks of `tokens` that `names` lacks."""
    for i in range(len(names), len(tokens) // block_size):
        parent = names[-1] if names else root
        block = array("I", tokens[i * block_size : (i + 1) * block_size])
        names.append(hashlib.blake2b(parent + block.tobytes(), digest_size=_DIGEST_BYTES).digest())
