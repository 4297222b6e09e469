"""The default model in transformers: float32, eager attention, weights by the gguf package."""

from __future__ import annotations

from functools import cache
from typing import Any

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.engine.model_file import default_model

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@cache
def reference_model() -> LlamaForCausalLM:
    reader = gguf.GGUFReader(default_model())

    def field(name: str) -> Any:
        return reader.fields[f"llama.{name}"].contents()

    heads = {"attn_q": field("attention.head_count"), "attn_k": field("attention.head_count_kv")}
    config = LlamaConfig(
        vocab_size=field("vocab_size"),
        hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=heads["attn_q"],
        num_key_value_heads=heads["attn_k"],
        max_position_embeddings=field("context_length"),
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": field("rope.freq_base")},
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    state = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        *block, name, _ = tensor.name.split(".")
        if name in heads:
            # [heads, pairs, 2] back to [heads, 2, pairs].
            pairs = values.reshape(heads[name], -1, 2, values.shape[-1])
            values = pairs.transpose(0, 2, 1, 3).reshape(values.shape)
        prefix = f"model.layers.{block[1]}." if block else ""
        state[f"{prefix}{_NAMES[name]}.weight"] = torch.from_numpy(values)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = LlamaForCausalLM(config)
    model.load_state_dict(state)
    return model.eval()


@torch.inference_mode()
def greedy(prompts: list[list[int]], num_tokens: int) -> list[tuple[list[int], list[float]]]:
    """The likeliest continuations, past any end of turn, and each token's lead.

    Returns:
        By prompt: token ids, and by how much each one's logit exceeds the second best.
    """
    model = reference_model()
    # Greedy to the end, whatever end of turn comes before.
    model.generation_config.eos_token_id = None
    width = max(map(len, prompts))
    padding = [width - len(prompt) for prompt in prompts]
    out = model.generate(
        torch.tensor([[0] * pad + prompt for pad, prompt in zip(padding, prompts, strict=True)]),
        attention_mask=torch.tensor([[0] * pad + [1] * (width - pad) for pad in padding]),
        max_new_tokens=num_tokens,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=0,
    )
    best = torch.stack(out.logits, dim=1).topk(2).values
    leads = best[..., 0] - best[..., 1]
    return list(zip(out.sequences[:, width:].tolist(), leads.tolist(), strict=True))
