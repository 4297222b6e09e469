"""An output layer of fewer bits than its file has: the largest matrix a decode step reads."""

from __future__ import annotations

from typing import Literal

import torch

from engine.loading.quantize import WHOLE_ROW, Quantization, quantize
from engine.model.checkpoint import Checkpoint, LayerWeights
from engine.model.config import ModelConfig
from engine.tokenizer import Tokenizer
from kernels.weights import Weight

HeadKind = Literal["int8", "int4"]
HEAD_KINDS: tuple[HeadKind, ...] = ("int8", "int4")
# Of INT4; INT8 has one scale a row, which the GPU's kernels want.
_INT4_GROUPS = (128, 64, 32)


class SmallHead:
    """A `Checkpoint` whose output layer is rounded to `kind` when read.

    The embedding stays as it is, so that a tied one is held twice. A layer that is quantised
    already is left alone.

    Args:
        checkpoint: The model as its files have it.
        kind: int8 or int4.

    Raises:
        ValueError: The kind is unknown, or no group of INT4 divides the hidden size.
    """

    def __init__(self, checkpoint: Checkpoint, kind: HeadKind) -> None:
        if kind not in HEAD_KINDS:
            raise ValueError(f"head: expected one of {', '.join(HEAD_KINDS)}, got {kind!r}")
        self._checkpoint = checkpoint
        self._to = Quantization("int8", WHOLE_ROW)
        if kind == "int4":
            width = checkpoint.config.hidden_size
            group = next((each for each in _INT4_GROUPS if width % each == 0), 0)
            if not group:
                raise ValueError(f"head: int4 needs a hidden size that 32 divides, got {width}")
            self._to = Quantization("int4", group)
        self.config: ModelConfig = checkpoint.config
        self.quantization = f"{checkpoint.quantization}, head {kind}"
        self.created_at = checkpoint.created_at

    def layer(self, index: int) -> LayerWeights:
        return self._checkpoint.layer(index)

    def embedding(self) -> Weight:
        return self._checkpoint.embedding()

    def final_norm(self) -> torch.Tensor:
        return self._checkpoint.final_norm()

    def head(self) -> Weight | None:
        own = self._checkpoint.head()
        if own is None:
            own = self._checkpoint.embedding()
            if own.kind != "dense":
                return None
        return quantize(own, self._to) if own.kind == "dense" else own

    def tokenizer(self) -> Tokenizer:
        return self._checkpoint.tokenizer()

    def chat_template(self) -> str:
        return self._checkpoint.chat_template()

    def release(self) -> None:
        self._checkpoint.release()
