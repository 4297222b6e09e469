"""What a model directory or file gives once opened: its shape, and its weights by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from engine.model.config import ModelConfig
from engine.tokenizer import Tokenizer
from kernels.weights import Weight


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One transformer block; matrices that share an input are fused when packed.

    Attributes:
        attention_norm: float32 [hidden].
        qkv: q [q_size, hidden], k and v [kv_size, hidden]; whole heads one after
            another, the two rows of each rotated pair half a head apart.
        qkv_bias: float32 [q_size + 2 * kv_size] or None.
        q_norm: float32 [head_dim] or None; RMSNorm of each query head.
        k_norm: Same for key heads.
        o: [hidden, q_size].
        o_bias: float32 [hidden] or None.
        mlp_norm: float32 [hidden].
        gate_up: Gate and up, each [intermediate, hidden].
        down: [hidden, intermediate].
    """

    attention_norm: torch.Tensor
    qkv: tuple[Weight, Weight, Weight]
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: Weight
    o_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: tuple[Weight, Weight]
    down: Weight


class Checkpoint(Protocol):
    """An opened model. Weights are read when asked for, a layer at a time.

    Attributes:
        config: The model's shape.
        quantization: For people (`q4_1`, `bf16`).
        created_at: Unix seconds, whole; the file's date.
    """

    config: ModelConfig
    quantization: str
    created_at: int

    def layer(self, index: int) -> LayerWeights: ...

    def embedding(self) -> Weight:
        """[vocab, hidden]."""
        ...

    def final_norm(self) -> torch.Tensor:
        """float32 [hidden]."""
        ...

    def head(self) -> Weight | None:
        """[vocab, hidden]; None where the embedding serves."""
        ...

    def tokenizer(self) -> Tokenizer: ...

    def chat_template(self) -> str:
        """The Jinja source."""
        ...

    def release(self) -> None:
        """Give resident memory of what was read so far back."""
        ...
