"""How long a step may take in which prompts are computed beside chats that decode.

Each such step costs the machine some time in itself: the decodes in it make one token
each, of batches that are not full yet, and whoever starts late ends late, again in small
batches. With many prompts and few chats, as where a crowd comes at once, few long steps
let all of them start sooner and end sooner; with many chats and few prompts short steps
keep the chats' tokens coming.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered

from engine.config import EngineConfig
from engine.sequence import Sequence


def mixed_step_ms(
    decodes: Ordered[Sequence], prefills: Ordered[Sequence], config: EngineConfig
) -> float:
    """Milliseconds that a step may always take, however short its decodes are.

    `EngineConfig.mixed_step_ms`, as many times as prompts wait for each chat that decodes,
    up to what a step of prompts alone may take. Prompts of lower tiers than the first of
    the chats don't count: VIPs don't wait for others.

    Args:
        decodes: Sequences that decode in the step; one at least.
        prefills: Sequences whose prompts wait to be computed.
        config: The engine's.
    """
    first_rank = min(seq.rank for seq in decodes)
    num_prompts = sum(seq.rank <= first_rank for seq in prefills)
    stretched_ms = config.mixed_step_ms * num_prompts / len(decodes)
    return max(config.mixed_step_ms, min(stretched_ms, config.prefill_step_ms))
