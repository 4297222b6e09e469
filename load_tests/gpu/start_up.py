"""How long a worker takes until it is ready, for 8B weights on local storage.

    python -m load_tests.gpu.start_up make FOLDER       random bf16 weights, 16 GB
    python -m load_tests.gpu.start_up time FOLDER

`time` runs what a worker runs before it says that it is ready, but for the tokenizer, in a
process of its own, and counts from the start of that process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch

from load_tests.gpu.shapes import SHAPES, random_weight

SHAPE = SHAPES["llama3-8b"]


def make(folder: Path) -> None:
    """Write a model directory of random bf16 weights."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    c = SHAPE
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": c.hidden_size, "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_layers, "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads, "head_dim": c.head_dim,
        "vocab_size": c.vocab_size, "max_position_embeddings": c.context_window,
        "rms_norm_eps": c.norm_eps, "rope_theta": c.rope.theta, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    kv, q = c.num_kv_heads * c.head_dim, c.num_heads * c.head_dim
    shapes = {
        "self_attn.q_proj": (q, c.hidden_size), "self_attn.k_proj": (kv, c.hidden_size),
        "self_attn.v_proj": (kv, c.hidden_size), "self_attn.o_proj": (c.hidden_size, q),
        "mlp.gate_proj": (c.intermediate_size, c.hidden_size),
        "mlp.up_proj": (c.intermediate_size, c.hidden_size),
        "mlp.down_proj": (c.hidden_size, c.intermediate_size),
    }  # fmt: skip
    ones = torch.ones(c.hidden_size, dtype=torch.bfloat16)
    places = {}
    for part in range(4):
        tensors = {}
        for index in range(part * 8, part * 8 + 8):
            prefix = f"model.layers.{index}."
            for name, (rows, columns) in shapes.items():
                data = random_weight("bf16", rows, columns, "cuda").data.cpu()
                tensors[f"{prefix}{name}.weight"] = data
            for name in ("input_layernorm", "post_attention_layernorm"):
                tensors[f"{prefix}{name}.weight"] = ones.clone()
        if part == 3:
            for name in ("model.embed_tokens", "lm_head"):
                data = random_weight("bf16", c.vocab_size, c.hidden_size, "cuda").data.cpu()
                tensors[f"{name}.weight"] = data
            tensors["model.norm.weight"] = ones.clone()
        file = f"model-{part + 1:05d}-of-00004.safetensors"
        save_file(tensors, folder / file)
        places |= dict.fromkeys(tensors, file)
    index_file = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index_file))


def load(folder: Path, begun: float) -> None:
    """What a worker does; prints when each part was done."""
    from types import SimpleNamespace

    from engine.cuda_memory import card_memory, step_work_bytes
    from engine.cuda_runner import CudaRunner
    from engine.loading import open_checkpoint
    from engine.model.llama import CausalLM
    from engine.worker import build_cuda

    marks = {"imports": time.time() - begun}
    model = CausalLM(open_checkpoint(folder), "cuda", "speed")
    torch.cuda.synchronize()
    marks["weights"] = time.time() - begun
    work = step_work_bytes(model, build_cuda.gpu_config(1), torch.bfloat16)
    loaded = SimpleNamespace(config=model.config, context_window=model.config.context_window)
    blocks = build_cuda.choose_blocks(0, loaded, torch.bfloat16, work, card_memory())
    runner = CudaRunner(
        model, build_cuda.gpu_config(blocks), max_decode_steps=build_cuda.MAX_DECODE_STEPS
    )
    torch.cuda.synchronize()
    marks["pool"] = time.time() - begun
    runner.warm_up(limit_s=build_cuda.WARM_SECONDS)
    torch.cuda.synchronize()
    marks["graphs"] = time.time() - begun
    print(json.dumps({name: round(seconds, 2) for name, seconds in marks.items()}), blocks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=["make", "time", "load"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--begun", type=float, default=0.0)
    options = parser.parse_args()
    if options.mode == "make":
        make(options.folder)
    elif options.mode == "load":
        load(options.folder, options.begun)
    else:
        for _ in range(2):
            subprocess.run(
                [
                    sys.executable, "-m", "load_tests.gpu.start_up", "load", str(options.folder),
                    "--begun", str(time.time()),
                ],
                check=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
