"""Each family's logits equal transformers' on tiny random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.loading import Quantization, load_model
from engine.loading.quantize import quantize
from kernels.weights import Weight
from tests.engine.loading.tiny_directory import VOCAB, tiny_model, write_directory
from tests.engine.model.paged_run import PagedRun, all_logits

TOKENS = torch.randint(0, VOCAB, (100,), generator=torch.Generator().manual_seed(3)).tolist()
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama biased": ("llama", {"attention_bias": True}),
    "llama one kv head": ("llama", {"num_key_value_heads": 1}),
    "llama linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    ),
    "llama llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama theta": (
        "llama",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    ),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {}),
    "qwen3 biased": ("qwen3", {"attention_bias": True}),
}


def reference_logits(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


@pytest.mark.parametrize("case", CASES)
def test_logits_as_in_transformers(case: str, tmp_path: Path) -> None:
    family, changes = CASES[case]
    reference = tiny_model(family, **changes)
    loaded = load_model(write_directory(tmp_path, reference), compute="fp32")
    expected = reference_logits(reference, TOKENS)
    assert expected.std() > 0.1
    torch.testing.assert_close(all_logits(loaded.model, TOKENS), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_exact(dtype: torch.dtype, tmp_path: Path) -> None:
    reference = tiny_model("llama")
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.copy_(parameter.to(dtype))
    expected = reference_logits(reference, TOKENS)
    loaded = load_model(write_directory(tmp_path, reference.to(dtype)), compute="fp32")
    assert loaded.card.quantization == {torch.bfloat16: "bf16", torch.float16: "f16"}[dtype]
    torch.testing.assert_close(all_logits(loaded.model, TOKENS), expected, atol=2e-4, rtol=1e-4)


def test_shards_are_joined(tmp_path: Path) -> None:
    reference = tiny_model("llama")
    write_directory(tmp_path, reference, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    loaded = load_model(tmp_path, compute="fp32")
    expected = reference_logits(reference, TOKENS)
    torch.testing.assert_close(all_logits(loaded.model, TOKENS), expected, atol=2e-4, rtol=1e-4)


def test_pieces_and_batches_give_the_bits_of_one_prefill(tmp_path: Path) -> None:
    model = load_model(write_directory(tmp_path, tiny_model("qwen3")), compute="fp32").model
    whole = all_logits(model, TOKENS)
    run = PagedRun(model, 3, len(TOKENS))
    others = [TOKENS[::-1], sorted(TOKENS)]
    for start, end in [(0, 1), (1, 18), (18, 19), (19, 64), (64, 100)]:
        logits = run.step([TOKENS[start:end], *(other[start:end][:7] for other in others)])
        assert torch.equal(logits[0], whole[end - 1])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("group", [32, 64, -1])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantised_models_compute_with_the_rounded_weights(
    kind: Any, group: int, tied: bool, tmp_path: Path
) -> None:
    """Equal to a reference whose own matrices are rounded the same way."""
    quantization = Quantization(kind, group)
    reference = tiny_model("llama", intermediate_size=192, tie_word_embeddings=tied)
    write_directory(tmp_path, reference)
    loaded = load_model(tmp_path, compute="fp32", quantization=quantization)
    assert loaded.card.quantization == (kind if group < 0 else f"{kind}-g{group}")
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if parameter.dim() == 2:
                rounding = Quantization("int8", group) if "layers" not in name else quantization
                rounded = quantize(Weight("dense", parameter.detach()), rounding).dequantize()
                assert 0 < (rounded - parameter).abs().max() < 0.1
                parameter.copy_(rounded)
    expected = reference_logits(reference, TOKENS)
    torch.testing.assert_close(all_logits(loaded.model, TOKENS), expected, atol=2e-4, rtol=1e-4)
