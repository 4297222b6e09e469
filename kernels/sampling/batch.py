"""What the sampler is told about each row of logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

# Below this a temperature means greedy: near ties apart, noise could not change the
# choice, and the quotients need not be finite.
GREEDY_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """How to choose one token.

    Attributes:
        temperature: Below `GREEDY_TEMPERATURE` means greedy.
        top_k: 0 or less, or at least the vocabulary size: off. 1 means greedy.
        top_p: 1 means off; 0 means greedy.
        min_p: 0 means off.
        repetition_penalty: 1 means off.
        frequency_penalty: 0 means off.
        presence_penalty: 0 means off.
        seed: 64 bits.
        position: Index, in the whole sequence, of the token being sampled.
        bias: (token id, bias) pairs.
        seen: Distinct tokens of prompt and answer with their counts in the answer;
            needed only where a penalty is on.
        masked: Token ids that can't be chosen.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int = 0
    position: int = 0
    bias: Sequence[tuple[int, float]] = ()
    seen: Sequence[tuple[int, int]] = ()
    masked: Sequence[int] = ()

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken, without noise."""
        return self.temperature < GREEDY_TEMPERATURE or self.top_k == 1 or self.top_p == 0.0

    @property
    def is_plain(self) -> bool:
        """Whether the choice is the argmax of the logits as they are."""
        return self.is_greedy and not (self.bias or self.seen or self.masked)


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Rows as tensors; R rows, ragged lists as starts [R + 1] and concatenated items.

    Attributes:
        plain: bool [R]; the argmax of the logits as they are.
        temperature: float64 [R]; 0 means greedy, else at least `GREEDY_TEMPERATURE`.
        top_k: int64 [R]; 0 means off.
        top_p: float64 [R].
        min_p: float64 [R].
        repetition_penalty: float32 [R].
        frequency_penalty: float32 [R].
        presence_penalty: float32 [R].
        seeds: int64 [R].
        positions: int64 [R].
        bias_starts: int64 [R + 1].
        bias_ids: int64.
        bias_values: float32.
        seen_starts: int64 [R + 1].
        seen_ids: int64, each id once a row.
        seen_counts: float32; counts in the answer, 0 for a token of the prompt alone.
        masked_starts: int64 [R + 1].
        masked_ids: int64.
    """

    plain: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    repetition_penalty: torch.Tensor
    frequency_penalty: torch.Tensor
    presence_penalty: torch.Tensor
    seeds: torch.Tensor
    positions: torch.Tensor
    bias_starts: torch.Tensor
    bias_ids: torch.Tensor
    bias_values: torch.Tensor
    seen_starts: torch.Tensor
    seen_ids: torch.Tensor
    seen_counts: torch.Tensor
    masked_starts: torch.Tensor
    masked_ids: torch.Tensor

    @classmethod
    def from_rows(cls, rows: Sequence[SamplingRow]) -> SamplingBatch:
        """Pack rows into CPU tensors."""
        floats = torch.tensor(
            [
                [0.0 if row.is_greedy else row.temperature for row in rows],
                [row.top_p for row in rows],
                [row.min_p for row in rows],
                [row.repetition_penalty for row in rows],
                [row.frequency_penalty for row in rows],
                [row.presence_penalty for row in rows],
            ],
            dtype=torch.float64,
        )
        integers = torch.tensor(
            [
                [max(row.top_k, 0) for row in rows],
                [row.seed for row in rows],
                [row.position for row in rows],
            ],
            dtype=torch.int64,
        )
        penalties = floats[3:].float()
        bias_starts, bias_ids, bias_values = _pairs([row.bias for row in rows])
        seen_starts, seen_ids, seen_counts = _pairs([row.seen for row in rows])
        return cls(
            plain=torch.tensor([row.is_plain for row in rows], dtype=torch.bool),
            temperature=floats[0],
            top_k=integers[0],
            top_p=floats[1],
            min_p=floats[2],
            repetition_penalty=penalties[0],
            frequency_penalty=penalties[1],
            presence_penalty=penalties[2],
            seeds=integers[1],
            positions=integers[2],
            bias_starts=bias_starts,
            bias_ids=bias_ids,
            bias_values=bias_values,
            seen_starts=seen_starts,
            seen_ids=seen_ids,
            seen_counts=seen_counts,
            masked_starts=_starts([row.masked for row in rows]),
            masked_ids=torch.tensor(
                [token for row in rows for token in row.masked], dtype=torch.int64
            ),
        )

    def __len__(self) -> int:
        return self.plain.shape[0]


def _starts(lists: Sequence[Sequence[Any]]) -> torch.Tensor:
    """Where each list begins in all of them joined, and the end."""
    return torch.tensor([0, *accumulate(map(len, lists))], dtype=torch.int64)


def _pairs(
    lists: Sequence[Sequence[tuple[int, float]]],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Starts, token ids and values of ragged pairs."""
    ids = [token for pairs in lists for token, _ in pairs]
    values = [value for pairs in lists for _, value in pairs]
    return (
        _starts(lists),
        torch.tensor(ids, dtype=torch.int64),
        torch.tensor(values, dtype=torch.float32),
    )
