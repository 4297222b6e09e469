"""The shape of a model of the Llama family, checked on construction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
MAX_CONTEXT_TOKENS = 1 << 20
MAX_LAYERS = 1024
MAX_WIDTH = 1 << 20
MAX_VOCAB = 1 << 22


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """How positions turn queries and keys.

    Attributes:
        theta: Base of the wavelengths.
        scaling: none; linear divides positions by `factor`; llama3 stretches long
            wavelengths by `factor` and blends between the two wavelength bounds;
            factors divides each frequency by its own entry of `factors`.
        factor: For linear and llama3; 1 means no stretching.
        low_freq_factor: llama3: wavelengths above original_context / this stretch fully.
        high_freq_factor: llama3: wavelengths below original_context / this stay.
        original_context: llama3: tokens the model was first trained on.
        factors: factors: one divisor per rotated pair, head_dim / 2 of them.
    """

    theta: float = 10000.0
    scaling: Literal["none", "linear", "llama3", "factors"] = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _finite_above_zero("rope theta", self.theta)
        _finite_above_zero("rope scaling factor", self.factor)
        if self.scaling == "llama3":
            _finite_above_zero("rope low_freq_factor", self.low_freq_factor)
            _finite_above_zero("rope high_freq_factor", self.high_freq_factor)
            _in_range("rope original context", self.original_context, MAX_CONTEXT_TOKENS)
            if self.high_freq_factor <= self.low_freq_factor:
                raise ValueError(
                    f"rope high_freq_factor must be above low_freq_factor "
                    f"({self.low_freq_factor:g}), got {self.high_freq_factor:g}"
                )
        for value in self.factors:
            _finite_above_zero("rope_freqs entry", value)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the forward pass must know of a model.

    Attributes:
        architecture: One of ARCHITECTURES, as its file names it.
        num_layers: Transformer blocks.
        hidden_size: Width of the residual stream.
        intermediate_size: Width inside the gated MLP.
        num_heads: Query heads.
        num_kv_heads: Key and value heads; divides num_heads.
        head_dim: Width of one head; even.
        vocab_size: Rows of the embedding; token ids are below it.
        context_window: Tokens of prompt and answer together.
        norm_eps: RMSNorm's epsilon.
        rope: Rotary embedding.
        tied: Whether the head is the embedding.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_window: int
    norm_eps: float
    rope: RopeConfig
    tied: bool

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            raise ValueError(
                f"architecture {self.architecture!r} is not supported; "
                f"supported are {', '.join(ARCHITECTURES)}"
            )
        _in_range("number of layers", self.num_layers, MAX_LAYERS)
        _in_range("hidden size", self.hidden_size, MAX_WIDTH)
        _in_range("intermediate size", self.intermediate_size, MAX_WIDTH)
        _in_range("number of heads", self.num_heads, MAX_WIDTH)
        _in_range("number of key/value heads", self.num_kv_heads, self.num_heads)
        _in_range("head dimension", self.head_dim, MAX_WIDTH)
        _in_range("vocabulary size", self.vocab_size, MAX_VOCAB)
        _in_range("context window", self.context_window, MAX_CONTEXT_TOKENS)
        _finite_above_zero("norm epsilon", self.norm_eps)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"number of heads ({self.num_heads}) must be a multiple of the number "
                f"of key/value heads ({self.num_kv_heads})"
            )
        if self.head_dim % 2:
            raise ValueError(f"head dimension must be even, got {self.head_dim}")
        if self.rope.factors and len(self.rope.factors) != self.head_dim // 2:
            raise ValueError(
                f"rope factors must be {self.head_dim // 2}, got {len(self.rope.factors)}"
            )

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def attention_scale(self) -> float:
        return 1.0 / math.sqrt(self.head_dim)


def _in_range(name: str, value: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
        raise ValueError(f"{name} must be from 1 to {high}, got {value!r:.40}")


def _finite_above_zero(name: str, value: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be a finite number above 0, got {value!r:.40}")
