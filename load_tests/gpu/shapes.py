"""Models of random weights in the shapes the benchmarks use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engine.model.checkpoint import LayerWeights
from engine.model.config import ModelConfig, RopeConfig
from kernels.weights import Weight


def _config(
    layers: int, hidden: int, mlp: int, heads: int, kv_heads: int, vocab: int, tied: bool = False
) -> ModelConfig:
    return ModelConfig(
        architecture="llama", num_layers=layers, hidden_size=hidden, intermediate_size=mlp,
        num_heads=heads, num_kv_heads=kv_heads, head_dim=hidden // heads, vocab_size=vocab,
        context_window=8192, norm_eps=1e-5, rope=RopeConfig(theta=500000.0), tied=tied,
    )  # fmt: skip


SHAPES = {
    "llama3-8b": _config(32, 4096, 14336, 32, 8, 128256),
    "llama2-7b": _config(32, 4096, 11008, 32, 32, 32000),
    "smollm2-135m": _config(30, 576, 1536, 9, 3, 49152, tied=True),
    "tiny": _config(2, 256, 512, 4, 2, 512),
}


KINDS = ("bf16", "int4", "int8", "w8a8", "fp8")


def random_weight(
    kind: str, rows: int, columns: int, device: str, group: int = 128, gain: float = 1.0
) -> Weight:
    """A weight whose rows have a norm of about `gain`.

    Of the KINDS, w8a8 and fp8 round activations to 8 bits and int8 keeps them.
    """
    spread = gain / columns**0.5
    if kind == "bf16":
        data = torch.randn(rows, columns, device=device, dtype=torch.bfloat16) * spread
        return Weight("dense", data)
    if kind == "int4":
        data = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, device=device)
        scale = (torch.rand(rows, columns // group, device=device) + 0.5) * (spread / 4.6)
        return Weight("int4", data, scale.half(), (-7.5 * scale).half(), group)
    scale = (torch.rand(rows, 1, device=device) + 0.5) * spread
    if kind in ("int8", "w8a8"):
        data = torch.randint(-127, 128, (rows, columns), dtype=torch.int8, device=device)
        return Weight("int8", data, scale / 73, None, columns, rounds_x=kind == "w8a8")
    data = torch.randn(rows, columns, device=device, dtype=torch.bfloat16)
    return Weight("fp8", data.to(torch.float8_e4m3fn), scale, None, columns, rounds_x=True)


@dataclass
class RandomCheckpoint:
    """A checkpoint drawn from a generator, made on the device a layer at a time.

    Attributes:
        config: The model's shape.
        kind: For the layers, one of KINDS.
        head_kind: The same for the output layer.
        device: Where weights are drawn.
        group: INT4 columns that share a scale.
    """

    config: ModelConfig
    kind: str
    head_kind: str = "bf16"
    device: str = "cuda"
    group: int = 128
    quantization: str = "random"
    created_at: int = 0

    def layer(self, index: int) -> LayerWeights:
        c = self.config
        kv, q = c.num_kv_heads * c.head_dim, c.num_heads * c.head_dim

        def draw(rows: int, columns: int, gain: float = 1.0) -> Weight:
            return random_weight(self.kind, rows, columns, self.device, self.group, gain)

        ones = torch.ones(c.hidden_size, device=self.device)
        small = 0.3
        return LayerWeights(
            attention_norm=ones,
            qkv=(draw(q, c.hidden_size), draw(kv, c.hidden_size), draw(kv, c.hidden_size)),
            qkv_bias=None, q_norm=None, k_norm=None,
            o=draw(c.hidden_size, q, small), o_bias=None, mlp_norm=ones,
            gate_up=(
                draw(c.intermediate_size, c.hidden_size),
                draw(c.intermediate_size, c.hidden_size),
            ),
            down=draw(c.hidden_size, c.intermediate_size, small),
        )  # fmt: skip

    def embedding(self) -> Weight:
        kind = self.head_kind if self.config.tied else "bf16"
        return self._table(kind)

    def head(self) -> Weight | None:
        return None if self.config.tied else self._table(self.head_kind)

    def _table(self, kind: str) -> Weight:
        c = self.config
        return random_weight(kind, c.vocab_size, c.hidden_size, self.device, self.group, 1.0)

    def final_norm(self) -> torch.Tensor:
        return torch.ones(self.config.hidden_size, device=self.device)

    def tokenizer(self) -> Any:
        raise NotImplementedError("random weights have no tokenizer")

    def chat_template(self) -> str:
        raise NotImplementedError("random weights have no chat template")

    def release(self) -> None:
        """Nothing was read."""
