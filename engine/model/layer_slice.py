"""Rows of a step that take part in some layers only."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.kv_cache import AttentionBatch


@dataclass(slots=True)
class LayerSlice:
    """The last rows of a step, which go through some layers while the others go through all.

    Attributes:
        layers: Which layers.
        num_rows: How many rows.
        others: The step's batch without them; None where there are no other rows.
        hidden: [num_rows, hidden size], as the layer before left them; unread where the
            first layer is among `layers`. Afterwards, as the last of `layers` left them.
    """

    layers: range
    num_rows: int
    others: AttentionBatch | None
    hidden: torch.Tensor | None = None
