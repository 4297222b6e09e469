"""Hugging Face directories of tiny random models, written by transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engine.loading.bytes_map import BYTE_CHARACTERS
from tests.engine.loading.tiny_gguf import CONTROLS, TEMPLATE

FAMILIES: dict[str, tuple[type[PretrainedConfig], type[PreTrainedModel]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
VOCAB = 320


def tiny_model(family: str, **changes: Any) -> PreTrainedModel:
    """Random weights, biases and norms included, float32, eager attention."""
    values: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32 if family == "qwen3" else 16,
        "max_position_embeddings": 128,
        "sliding_window": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "attn_implementation": "eager",
    }
    config_class, model_class = FAMILIES[family]
    torch.manual_seed(0)
    model = model_class(config_class(**(values | changes))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = torch.randn_like(parameter)
            parameter.copy_(1 + 0.2 * spread if "norm" in name else 0.1 * spread)
    return model


def tokenizer_json() -> dict[str, Any]:
    """A byte-level tokenizer: 3 control tokens, 256 bytes, one merge, one added token."""
    vocab = {token: index for index, token in enumerate(CONTROLS)}
    vocab |= {character: 3 + byte for character, byte in BYTE_CHARACTERS.items()}
    vocab["ab"] = 259
    backend = Tokenizer(models.BPE(vocab, [("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in CONTROLS])
    backend.add_tokens([AddedToken("<tool>", normalized=False)])
    return json.loads(backend.to_str())


def write_tokenizer(directory: Path) -> None:
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    config = {
        "bos_token": "<|im_start|>",
        "eos_token": {"content": "<|im_end|>"},
        "chat_template": TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def write_directory(directory: Path, model: PreTrainedModel, **options: Any) -> Path:
    """The model's own files and a tokenizer's; `options` go to `save_pretrained`."""
    model.save_pretrained(directory, **options)
    write_tokenizer(directory)
    return directory


def change_json(path: Path, **changes: Any) -> None:
    """Set values; None removes one."""
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
