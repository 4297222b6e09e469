"""A GGUF model of a few kilobytes, for damage and for conventions."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.loading.bytes_map import BYTE_CHARACTERS
from tests.engine.loading.gguf_bytes import gguf_bytes

LAYERS, HIDDEN, MLP, HEADS, KV_HEADS = 2, 64, 96, 4, 2
HEAD_DIM = HIDDEN // HEADS
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*CONTROLS, *sorted(BYTE_CHARACTERS, key=BYTE_CHARACTERS.__getitem__), "ab"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + "
    "'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Tensors = dict[str, tuple[tuple[int, ...], int, bytes]]


def metadata(architecture: str = "llama") -> dict[str, Any]:
    return {
        "general.architecture": architecture,
        f"{architecture}.block_count": LAYERS,
        f"{architecture}.context_length": 128,
        f"{architecture}.embedding_length": HIDDEN,
        f"{architecture}.feed_forward_length": MLP,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.head_count_kv": KV_HEADS,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * 257,
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }


def f32(rng: np.random.Generator, *shape: int) -> tuple[tuple[int, ...], int, bytes]:
    values = rng.normal(size=shape).astype(np.float32) * 0.1
    return shape, 0, values.tobytes()


def tensors(seed: int = 0) -> Tensors:
    rng = np.random.default_rng(seed)
    made: Tensors = {
        "token_embd.weight": f32(rng, len(TOKENS), HIDDEN),
        "output_norm.weight": f32(rng, HIDDEN),
    }
    kv = KV_HEADS * HEAD_DIM
    shapes = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (kv, HIDDEN),
        "attn_v": (kv, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (MLP, HIDDEN),
        "ffn_up": (MLP, HIDDEN),
        "ffn_down": (HIDDEN, MLP),
    }
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            made[f"blk.{layer}.{name}.weight"] = f32(rng, *shape)
    return made


def tiny_gguf(
    changes: dict[str, Any] | None = None, *, without: tuple[str, ...] = (), **more: Any
) -> bytes:
    """A valid file with metadata `changes` and without some keys and tensors.

    Args:
        changes: Metadata to add or replace.
        without: Names of metadata and tensors to leave out.
        more: `tensors`, a table to add; `architecture`; `alignment`; `version`.
    """
    values = metadata(more.pop("architecture", "llama")) | (changes or {})
    table = tensors() | more.pop("tensors", {})
    return gguf_bytes(
        {key: value for key, value in values.items() if key not in without},
        {key: value for key, value in table.items() if key not in without},
        **more,
    )
