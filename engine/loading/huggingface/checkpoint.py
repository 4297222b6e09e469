"""A Hugging Face directory as a `Checkpoint`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from engine.loading.errors import ModelFileError
from engine.loading.huggingface.config import read_config
from engine.loading.huggingface.formats import format_of
from engine.loading.huggingface.formats.dense import Dense
from engine.loading.huggingface.json_file import read_object, read_optional_object
from engine.loading.huggingface.tensors import TensorStore
from engine.loading.huggingface.vocabulary import read_chat_template, read_tokenizer
from engine.loading.quantize import Quantization, quantize
from engine.model.checkpoint import LayerWeights
from engine.tokenizer import Tokenizer
from kernels.weights import Weight

_SHORT_NAMES = {"BF16": "bf16", "F16": "f16", "F32": "f32"}


class HuggingFaceCheckpoint:
    """An opened directory; see `engine.model.checkpoint.Checkpoint`.

    Args:
        directory: Holds config.json, safetensors and the tokenizer's files.
        quantization: What to make of dense matrices; None leaves them as they are.

    Raises:
        ModelFileError: when a file is missing, damaged or not supported.
    """

    def __init__(self, directory: Path, quantization: Quantization | None = None) -> None:
        self._directory = directory
        self._quantization = quantization
        path = directory / "config.json"
        self._values = read_object(path)
        try:
            self.config = read_config(self._values)
            self._format = format_of(self._values)
        except (ValueError, TypeError) as error:
            raise ModelFileError(path, str(error)) from error
        self._dense = Dense()
        self._store = TensorStore(directory)
        self.created_at = int(path.stat().st_mtime)
        try:
            self._check_tensors()
        except ValueError as error:
            raise ModelFileError(path, str(error)) from error
        self.quantization = self._describe()

    def layer(self, index: int) -> LayerWeights:
        attention = f"model.layers.{index}.self_attn."
        mlp = f"model.layers.{index}.mlp."
        return LayerWeights(
            attention_norm=self._vector(f"model.layers.{index}.input_layernorm.weight"),
            qkv=(
                self._linear(attention + "q_proj"),
                self._linear(attention + "k_proj"),
                self._linear(attention + "v_proj"),
            ),
            qkv_bias=self._qkv_bias(attention),
            q_norm=self._optional_vector(attention + "q_norm.weight"),
            k_norm=self._optional_vector(attention + "k_norm.weight"),
            o=self._linear(attention + "o_proj"),
            o_bias=self._optional_vector(attention + "o_proj.bias"),
            mlp_norm=self._vector(f"model.layers.{index}.post_attention_layernorm.weight"),
            gate_up=(self._linear(mlp + "gate_proj"), self._linear(mlp + "up_proj")),
            down=self._linear(mlp + "down_proj"),
        )

    def embedding(self) -> Weight:
        return self._quantized(self._dense.read(self._store, "model.embed_tokens"), "embed_tokens")

    def final_norm(self) -> torch.Tensor:
        return self._vector("model.norm.weight")

    def head(self) -> Weight | None:
        if self.config.tied:
            return None
        return self._linear("lm_head")

    def tokenizer(self) -> Tokenizer:
        return read_tokenizer(self._directory, self.config.vocab_size, self._end_ids())

    def chat_template(self) -> str:
        return read_chat_template(self._directory)

    def release(self) -> None:
        self._store.release()

    def _describe(self) -> str:
        if self._format.name != "dense":
            return self._format.name
        if self._quantization:
            return self._quantization.name
        dtype = self._store.dtype_name("model.layers.0.self_attn.q_proj.weight")
        return _SHORT_NAMES.get(dtype, dtype)

    def _end_ids(self) -> set[int]:
        """Ends of an answer by config.json and generation_config.json."""
        ends: set[int] = set()
        path = self._directory / "generation_config.json"
        for values in (self._values, read_optional_object(path)):
            declared: Any = values.get("eos_token_id")
            listed = declared if isinstance(declared, list) else [declared]
            ends |= {end for end in listed if isinstance(end, int)}
        return {end for end in ends if 0 <= end < self.config.vocab_size}

    def _check_tensors(self) -> None:
        """Every tensor that will be read is there, with the right shape, and no other."""
        expected = dict(self._expected())
        present = set(self._store.names())
        for name, shape in expected.items():
            if name not in present:
                raise ModelFileError(self._directory, f"tensor {name!r} is missing")
            found = self._store.shape(name)
            # A single value may have an axis or none.
            if found != shape and (found, shape) != ((), (1,)):
                raise ModelFileError(
                    self._store.path(name),
                    f"tensor {name!r} has the shape {list(found)}, not {list(shape)}",
                )
        for name in sorted(present - expected.keys()):
            # Tables that older files carry, and the copy of a tied embedding.
            if name.endswith("rotary_emb.inv_freq") or name == "lm_head.weight":
                continue
            # GPTQ's tools give every layer a bias, of zeros where the model has none.
            if name.endswith("_proj.bias") and not self._store.read(name).count_nonzero():
                continue
            raise ModelFileError(
                self._store.path(name),
                f"has a tensor {name!r:.80} that this {self.config.architecture} model "
                "doesn't have",
            )

    def _expected(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        config = self.config
        hidden, mlp = config.hidden_size, config.intermediate_size
        yield "model.embed_tokens.weight", (config.vocab_size, hidden)
        yield "model.norm.weight", (hidden,)
        if not config.tied:
            yield from self._format.shapes("lm_head", config.vocab_size, hidden).items()
        linears = {
            "self_attn.q_proj": (config.q_size, hidden),
            "self_attn.k_proj": (config.kv_size, hidden),
            "self_attn.v_proj": (config.kv_size, hidden),
            "self_attn.o_proj": (hidden, config.q_size),
            "mlp.gate_proj": (mlp, hidden),
            "mlp.up_proj": (mlp, hidden),
            "mlp.down_proj": (hidden, mlp),
        }
        for index in range(config.num_layers):
            layer = f"model.layers.{index}."
            yield layer + "input_layernorm.weight", (hidden,)
            yield layer + "post_attention_layernorm.weight", (hidden,)
            for name, (rows, columns) in linears.items():
                yield from self._format.shapes(layer + name, rows, columns).items()
                if name in self._biased():
                    yield f"{layer}{name}.bias", (rows,)
            if config.architecture == "qwen3":
                yield layer + "self_attn.q_norm.weight", (config.head_dim,)
                yield layer + "self_attn.k_norm.weight", (config.head_dim,)

    def _biased(self) -> tuple[str, ...]:
        """Linear layers with a bias."""
        qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        if self.config.architecture == "qwen2":
            return qkv
        return (*qkv, "self_attn.o_proj") if self._values.get("attention_bias") else ()

    def _linear(self, name: str) -> Weight:
        return self._quantized(self._format.read(self._store, name), name)

    def _quantized(self, weight: Weight, name: str) -> Weight:
        if self._quantization is None:
            return weight
        try:
            return quantize(weight, self._quantization.for_tensor(name))
        except ValueError as error:
            raise ModelFileError(self._directory, f"layer {name!r}: {error}") from error

    def _vector(self, name: str) -> torch.Tensor:
        values = self._store.read(name).float()
        if not bool(torch.isfinite(values).all()):
            raise ModelFileError(
                self._store.path(name), f"tensor {name!r} has a value that is no number"
            )
        return values

    def _optional_vector(self, name: str) -> torch.Tensor | None:
        return self._vector(name) if self._store.has(name) else None

    def _qkv_bias(self, attention: str) -> torch.Tensor | None:
        biases = [self._optional_vector(f"{attention}{name}_proj.bias") for name in "qkv"]
        present = [bias for bias in biases if bias is not None]
        return torch.cat(present) if present else None
