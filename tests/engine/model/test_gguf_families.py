"""GGUF's conventions: rotated rows, shared embeddings, mixed types, rope factors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from engine.loading import Quantization, load_model, open_checkpoint
from tests.engine.loading.gguf_bytes import gguf_bytes
from tests.engine.loading.tiny_directory import VOCAB, tiny_model
from tests.engine.loading.tiny_gguf import metadata
from tests.engine.model.paged_run import all_logits
from tests.engine.model.test_families import LLAMA3, TOKENS, reference_logits

Types = gguf.GGMLQuantizationType
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{_NAMES[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{_NAMES[rest]}.{kind}"


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    types: dict[str, Types] | None = None,
    extra: dict[str, Any] | None = None,
    factors: torch.Tensor | None = None,
) -> dict[str, torch.Tensor]:
    """Write the model as converters do.

    Args:
        path: Where to.
        model: Llama, Qwen2 or Qwen3.
        types: Tensor types by the last part of the name; F32 is the rest.
        extra: More metadata.
        factors: rope_freqs.weight.

    Returns:
        The values as stored, by the model's own names.
    """
    config = model.config
    architecture = config.model_type
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    tensors: dict[str, tuple[tuple[int, ...], int, bytes]] = {}
    stored = {}
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy().copy()
        new_name = gguf_name(name)
        part = new_name.split(".")[-2]
        if part in heads and architecture == "llama":
            halves = values.reshape(heads[part], 2, -1, *values.shape[1:])
            values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
        kind = (types or {}).get(part, Types.F32) if values.ndim == 2 else Types.F32
        raw = gguf.quants.quantize(values, kind)
        tensors[new_name] = (values.shape, int(kind), raw.tobytes())
        back = gguf.quants.dequantize(raw, kind).astype(np.float32).reshape(values.shape)
        if part in heads and architecture == "llama":
            pairs = back.reshape(heads[part], -1, 2, *back.shape[1:])
            back = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(back.shape)
        stored[name] = torch.from_numpy(back)
    if factors is not None:
        tensors["rope_freqs.weight"] = (tuple(factors.shape), 0, factors.numpy().tobytes())
    values = metadata(architecture) | {
        f"{architecture}.block_count": config.num_hidden_layers,
        f"{architecture}.embedding_length": config.hidden_size,
        f"{architecture}.feed_forward_length": config.intermediate_size,
        f"{architecture}.attention.key_length": config.head_dim
        if architecture == "qwen3"
        else config.hidden_size // config.num_attention_heads,
        f"{architecture}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }
    path.write_bytes(gguf_bytes(values | (extra or {}), tensors))
    return stored


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tiny.gguf"


def assert_same_logits(path: Path, reference: PreTrainedModel, **options: Any) -> None:
    loaded = load_model(path, compute="fp32", **options)
    assert loaded.config.vocab_size == VOCAB
    expected = reference_logits(reference, TOKENS)
    torch.testing.assert_close(all_logits(loaded.model, TOKENS), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_families(family: str, tied: bool, path: Path) -> None:
    reference = tiny_model(family, tie_word_embeddings=tied)
    write_gguf(path, reference)
    assert open_checkpoint(path).config.tied == tied
    assert_same_logits(path, reference)


def test_biases_are_reordered_with_their_rows(path: Path) -> None:
    reference = tiny_model("llama", attention_bias=True)
    write_gguf(path, reference)
    assert_same_logits(path, reference)


def test_linear_rope_scaling(path: Path) -> None:
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    reference = tiny_model("llama", rope_parameters=rope)
    write_gguf(
        path,
        reference,
        extra={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
    )
    assert_same_logits(path, reference)


def test_rope_factors(path: Path) -> None:
    reference = tiny_model("llama", rope_parameters=LLAMA3)
    plain = 1 / 10000.0 ** (torch.arange(0, 16, 2) / 16)
    factors = plain / reference.model.rotary_emb.inv_freq
    assert factors.max() == 8 and factors.min() == 1
    write_gguf(path, reference, factors=factors)
    assert_same_logits(path, reference)


@pytest.mark.parametrize("tied", [False, True])
def test_types_mix_within_a_layer(tied: bool, path: Path) -> None:
    """Query, key and value, gate and up of different types each keep their own values."""
    reference = tiny_model("llama", tie_word_embeddings=tied)
    types = {
        "token_embd": Types.Q8_0,
        "output": Types.Q5_1,
        "attn_q": Types.Q4_0,
        "attn_k": Types.Q4_1,
        "attn_v": Types.Q8_0,
        "attn_output": Types.Q5_0,
        "ffn_gate": Types.F16,
        "ffn_up": Types.Q4_1,
        "ffn_down": Types.BF16,
    }
    stored = write_gguf(path, reference, types)
    reference.load_state_dict(stored, strict=not tied)
    assert_same_logits(path, reference)


def test_dense_files_can_be_quantised(path: Path) -> None:
    reference = tiny_model("llama")
    write_gguf(path, reference, dict.fromkeys(("attn_q", "ffn_up"), Types.F16))
    loaded = load_model(path, compute="fp32", quantization=Quantization("int8", 32))
    assert loaded.card.quantization == "int8-g32"
    expected = reference_logits(reference, TOKENS)
    error = all_logits(loaded.model, TOKENS) - expected
    assert 0 < error.square().mean().sqrt() < 0.05 * expected.square().mean().sqrt()


def test_sliding_window_limits_the_context(path: Path) -> None:
    write_gguf(path, tiny_model("llama"), extra={"llama.attention.sliding_window": 48})
    assert load_model(path).card.context_window == 48
