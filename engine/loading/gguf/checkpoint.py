"""A GGUF file as a `Checkpoint`: its names and conventions for the Llama family."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.loading.errors import ModelFileError
from engine.loading.gguf.blocks import has_finite_scales, read_weight
from engine.loading.gguf.reader import GgufFile, TensorInfo
from engine.loading.gguf.vocabulary import read_tokenizer
from engine.loading.quantize import Quantization, quantize
from engine.model.checkpoint import LayerWeights
from engine.model.config import ModelConfig, RopeConfig
from engine.tokenizer import Tokenizer
from kernels.weights import Weight

# Architectures as GGUF names them; a Mistral file says llama.
_ARCHITECTURES = ("llama", "qwen2", "qwen3")


class GgufCheckpoint:
    """An opened GGUF file; see `engine.model.checkpoint.Checkpoint`.

    Args:
        path: The file.
        quantization: What to make of dense matrices; None leaves them as they are.

    Raises:
        ModelFileError: when the file is damaged or not supported.
    """

    def __init__(self, path: Path, quantization: Quantization | None = None) -> None:
        self._file = GgufFile(path)
        self._quantization = quantization
        try:
            self.config = _read_config(self._file)
        except ValueError as error:
            raise ModelFileError(path, str(error)) from error
        self._permuted = self.config.architecture == "llama"
        self.quantization = self._describe()
        self.created_at = int(path.stat().st_mtime)
        self._check_tensors()

    def layer(self, index: int) -> LayerWeights:
        config = self.config
        prefix = f"blk.{index}."
        return LayerWeights(
            attention_norm=self._vector(prefix + "attn_norm.weight"),
            qkv=(
                self._head_order(self._matrix(prefix + "attn_q.weight"), config.num_heads),
                self._head_order(self._matrix(prefix + "attn_k.weight"), config.num_kv_heads),
                self._matrix(prefix + "attn_v.weight"),
            ),
            qkv_bias=self._qkv_bias(prefix),
            q_norm=self._optional_vector(prefix + "attn_q_norm.weight"),
            k_norm=self._optional_vector(prefix + "attn_k_norm.weight"),
            o=self._matrix(prefix + "attn_output.weight"),
            o_bias=self._optional_vector(prefix + "attn_output.bias"),
            mlp_norm=self._vector(prefix + "ffn_norm.weight"),
            gate_up=(
                self._matrix(prefix + "ffn_gate.weight"),
                self._matrix(prefix + "ffn_up.weight"),
            ),
            down=self._matrix(prefix + "ffn_down.weight"),
        )

    def embedding(self) -> Weight:
        return self._matrix("token_embd.weight")

    def final_norm(self) -> torch.Tensor:
        return self._vector("output_norm.weight")

    def head(self) -> Weight | None:
        return None if self.config.tied else self._matrix("output.weight")

    def tokenizer(self) -> Tokenizer:
        return read_tokenizer(self._file, self.config.vocab_size)

    def chat_template(self) -> str:
        template = self._file.metadata.get("tokenizer.chat_template")
        if not isinstance(template, str):
            raise ModelFileError(self._file.path, "has no chat template")
        return template

    def release(self) -> None:
        self._file.drop_pages()

    def _describe(self) -> str:
        sizes: Counter[str] = Counter()
        for info in self._file.tensors.values():
            sizes[info.type.name.lower()] += info.size_bytes if len(info.shape) > 1 else 0
        name = sizes.most_common(1)[0][0] if sizes else "none"
        dense = name in ("f32", "f16", "bf16")
        return self._quantization.name if dense and self._quantization else name

    def _check_tensors(self) -> None:
        """Every tensor that will be read is there, with the right shape, and no other."""
        config = self.config
        expected = {"token_embd.weight": (config.vocab_size, config.hidden_size)}
        expected["output_norm.weight"] = (config.hidden_size,)
        if not config.tied:
            expected["output.weight"] = (config.vocab_size, config.hidden_size)
        optional: dict[str, tuple[int, ...]] = {"rope_freqs.weight": (config.head_dim // 2,)}
        for index in range(config.num_layers):
            required, extra = _layer_shapes(config)
            expected |= {f"blk.{index}.{name}": shape for name, shape in required.items()}
            optional |= {f"blk.{index}.{name}": shape for name, shape in extra.items()}
        for name, shape in expected.items():
            self._check_shape(self._info(name), shape)
        for name, info in self._file.tensors.items():
            if name not in expected and name not in optional:
                raise ModelFileError(
                    self._file.path,
                    f"has a tensor {name!r:.80} that {config.architecture} models don't have",
                )
            if name in optional:
                self._check_shape(info, optional[name])

    def _check_shape(self, info: TensorInfo, shape: tuple[int, ...]) -> None:
        if info.shape != shape:
            raise ModelFileError(
                self._file.path,
                f"tensor {info.name!r} has the shape {list(info.shape)}, not {list(shape)}",
            )

    def _info(self, name: str) -> TensorInfo:
        info = self._file.tensors.get(name)
        if info is None:
            raise ModelFileError(self._file.path, f"tensor {name!r} is missing")
        return info

    def _matrix(self, name: str) -> Weight:
        info = self._info(name)
        weight = read_weight(self._file.tensor_bytes(info), info.type, *info.shape)
        if not has_finite_scales(weight):
            raise ModelFileError(self._file.path, f"tensor {name!r} has a scale that is no number")
        if self._quantization is None:
            return weight
        try:
            return quantize(weight, self._quantization.for_tensor(name))
        except ValueError as error:
            raise ModelFileError(self._file.path, f"tensor {name!r}: {error}") from error

    def _vector(self, name: str) -> torch.Tensor:
        info = self._info(name)
        weight = read_weight(self._file.tensor_bytes(info), info.type, 1, info.shape[0])
        values = weight.dequantize()[0]
        if not bool(torch.isfinite(values).all()):
            raise ModelFileError(self._file.path, f"tensor {name!r} has a value that is no number")
        return values

    def _optional_vector(self, name: str) -> torch.Tensor | None:
        return self._vector(name) if name in self._file.tensors else None

    def _qkv_bias(self, prefix: str) -> torch.Tensor | None:
        q, k, v = (self._optional_vector(f"{prefix}attn_{name}.bias") for name in "qkv")
        if q is None and k is None and v is None:
            return None
        if q is None or k is None or v is None:
            raise ModelFileError(self._file.path, f"{prefix}attn has only some of its biases")
        if self._permuted:
            q = q[_half_split_order(self.config.num_heads, self.config.head_dim)]
            k = k[_half_split_order(self.config.num_kv_heads, self.config.head_dim)]
        return torch.cat((q, k, v))

    def _head_order(self, weight: Weight, num_heads: int) -> Weight:
        if not self._permuted:
            return weight
        return _select_rows(weight, _half_split_order(num_heads, self.config.head_dim))


def _select_rows(weight: Weight, rows: torch.Tensor) -> Weight:
    """The matrix with rows `rows` (int64 [rows]) in that order; exact for every kind."""
    return Weight(
        weight.kind,
        weight.data[rows],
        None if weight.scale is None else weight.scale[rows],
        None if weight.minimum is None else weight.minimum[rows],
        weight.group,
    )


def _half_split_order(num_heads: int, head_dim: int) -> torch.Tensor:
    """Row order that undoes GGUF's for Llama, int64 [num_heads * head_dim].

    Llama files keep the two rows of a rotated pair next to each other; here, as in
    the published weights, they are half a head apart.
    """
    rows = torch.arange(num_heads * head_dim)
    return rows.view(num_heads, head_dim // 2, 2).transpose(1, 2).reshape(-1)


def _layer_shapes(
    config: ModelConfig,
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Required and optional tensors of one layer."""
    hidden, mlp = config.hidden_size, config.intermediate_size
    required: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (config.q_size, hidden),
        "attn_k.weight": (config.kv_size, hidden),
        "attn_v.weight": (config.kv_size, hidden),
        "attn_output.weight": (hidden, config.q_size),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (mlp, hidden),
        "ffn_up.weight": (mlp, hidden),
        "ffn_down.weight": (hidden, mlp),
    }
    biases: dict[str, tuple[int, ...]] = {
        "attn_q.bias": (config.q_size,),
        "attn_k.bias": (config.kv_size,),
        "attn_v.bias": (config.kv_size,),
    }
    if config.architecture == "qwen2":
        return required | biases, {}
    if config.architecture == "qwen3":
        required["attn_q_norm.weight"] = required["attn_k_norm.weight"] = (config.head_dim,)
    return required, biases | {"attn_output.bias": (hidden,)}


def _read_config(file: GgufFile) -> ModelConfig:
    """Raises ValueError for what is missing, out of range or not supported."""
    metadata = file.metadata
    architecture = metadata.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise ValueError(
            f"architecture {architecture!r:.80} is not supported; "
            f"supported are {', '.join(_ARCHITECTURES)}"
        )
    values = _Values(metadata, architecture)
    if metadata.get("split.count", 1) not in (0, 1):
        raise ValueError("is one part of a split file; join the parts first")
    if values.get("expert_count", 0):
        raise ValueError("mixtures of experts are not supported")
    hidden_size = values.need("embedding_length")
    num_heads = values.need("attention.head_count")
    if not isinstance(num_heads, int) or num_heads < 1 or not isinstance(hidden_size, int):
        raise ValueError(f"{architecture}.attention.head_count is {num_heads!r:.40}")
    head_dim = values.get("attention.key_length", hidden_size // num_heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if values.get(name, head_dim) != head_dim:
            raise ValueError(
                f"{architecture}.{name} must equal the head dimension ({head_dim}), "
                f"got {values.get(name, head_dim)!r:.40}"
            )
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ValueError("tensor 'token_embd.weight' is missing")
    return ModelConfig(
        architecture=architecture,
        num_layers=values.need("block_count"),
        hidden_size=hidden_size,
        intermediate_size=values.need("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=values.get("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=embedding.shape[0],
        context_window=_context_window(values),
        norm_eps=values.need("attention.layer_norm_rms_epsilon"),
        rope=_read_rope(file, values),
        tied="output.weight" not in file.tensors,
    )


def _context_window(values: _Values) -> int:
    # Within its window, sliding attention is full attention: serve that much.
    context = values.need("context_length")
    window = values.get("attention.sliding_window", 0)
    return min(context, window) if window else context


def _read_rope(file: GgufFile, values: _Values) -> RopeConfig:
    theta = values.get("rope.freq_base", 10000.0)
    kind = values.get("rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise ValueError(
            f"rope scaling {kind!r:.40} is not supported; supported are none, linear, llama3"
        )
    factors = file.tensors.get("rope_freqs.weight")
    if factors is not None:
        if kind != "none":
            raise ValueError(f"rope scaling {kind} and rope_freqs.weight exclude each other")
        if factors.type.name != "F32":
            raise ValueError(f"rope_freqs.weight must be F32, is {factors.type.name}")
        values_f32 = file.tensor_bytes(factors).view("<f4").astype(np.float64)
        return RopeConfig(theta, "factors", factors=tuple(values_f32.tolist()))
    factor = values.get("rope.scaling.factor", values.get("rope.scale_linear", 1.0))
    if kind == "linear" or factor != 1.0:
        return RopeConfig(theta, "linear", factor=factor)
    return RopeConfig(theta)


class _Values:
    """Metadata under one architecture's prefix."""

    def __init__(self, metadata: dict[str, Any], architecture: str) -> None:
        self._metadata = metadata
        self._prefix = architecture + "."

    def get(self, name: str, default: Any) -> Any:
        value = self._metadata.get(self._prefix + name, default)
        if isinstance(value, np.ndarray | list):
            raise ValueError(f"{self._prefix}{name} differs by layer, which is not supported")
        return value

    def need(self, name: str) -> Any:
        if self._prefix + name not in self._metadata:
            raise ValueError(f"metadata {self._prefix}{name} is missing")
        return self.get(name, None)
