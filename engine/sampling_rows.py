"""How a sequence's next token is to be sampled, as the sampler reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Tokens

from engine.sequence import Sequence
from kernels.sampling import SamplingRow


def sampling_row(seq: Sequence, guessed: Tokens[int] = ()) -> SamplingRow:
    """The row for the token after `seq.tokens` and `guessed`.

    Args:
        seq: The sequence, as of the step.
        guessed: Draft tokens before the one that is sampled.
    """
    params = seq.sampling
    position = len(seq.tokens) + len(guessed)
    penalised = (
        params.repetition_penalty != 1.0
        or params.frequency_penalty != 0.0
        or params.presence_penalty != 0.0
    )
    num_answer_tokens = position - seq.num_prompt_tokens
    return SamplingRow(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        seed=seq.seed,
        position=position,
        bias=params.logit_bias,
        seen=_seen(seq, guessed) if penalised else (),
        masked=seq.masked_ids if num_answer_tokens < params.min_tokens else (),
    )


def is_plain(seq: Sequence) -> bool:
    """Whether the next tokens depend on logits, seed and position alone.

    That is, without bias, penalties and masked tokens, which change from token to token.
    """
    params = seq.sampling
    return (
        not params.logit_bias
        and params.repetition_penalty == 1.0
        and params.frequency_penalty == 0.0
        and params.presence_penalty == 0.0
        and (not seq.masked_ids or len(seq.tokens) - seq.num_prompt_tokens >= params.min_tokens)
    )


def _seen(seq: Sequence, guessed: Tokens[int]) -> tuple[tuple[int, int], ...]:
    """Each token of prompt and answer with its count in the answer."""
    counts = Counter(seq.tokens[seq.num_prompt_tokens :])
    counts.update(guessed)
    for token in seq.tokens[: seq.num_prompt_tokens]:
        counts.setdefault(token, 0)
    return tuple(counts.items())
