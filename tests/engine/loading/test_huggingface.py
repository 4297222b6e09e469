"""Hugging Face directories: what they must hold, what they say, and how they fail."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast

from engine.contract import Message
from engine.loading import ModelFileError, Quantization, load_model
from tests.engine.loading.tiny_directory import (
    change_json,
    tiny_model,
    tokenizer_json,
    write_directory,
    write_tokenizer,
)

CHAT = [Message("user", "ab <tool> cab")]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_directory(tmp_path / "Tiny-Llama", tiny_model("llama"))


def refusal(directory: Path, **options: Any) -> str:
    with pytest.raises(ModelFileError) as caught:
        load_model(directory, **options)
    line = str(caught.value)
    assert line.startswith(str(directory))
    assert "\n" not in line and len(line) <= 600
    return line


def change_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def test_card_and_prompt(directory: Path) -> None:
    loaded = load_model(directory)
    card = loaded.card
    assert (card.id, card.context_window, card.vocab_size) == ("Tiny-Llama", 128, 320)
    assert card.quantization == "f32"
    assert card.created_at == int((directory / "config.json").stat().st_mtime)
    reference = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    expected = reference.apply_chat_template(
        [{"role": "user", "content": CHAT[0].content}],
        chat_template=json.loads((directory / "tokenizer_config.json").read_text())[
            "chat_template"
        ],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    assert loaded.chat_template.encode(CHAT) == expected
    # An added token keeps its id though the control tokens before it are gone.
    assert 260 in expected
    assert loaded.tokenizer.token_bytes(260) == b"<tool>"
    assert loaded.tokenizer.control_ids == {0, 1, 2}
    assert loaded.tokenizer.encode("<|im_end|>") == [3 + byte for byte in b"<|im_end|>"]


def test_context_can_be_limited(directory: Path) -> None:
    assert load_model(directory, max_context=100).card.context_window == 100
    assert load_model(directory, max_context=1000).card.context_window == 128


def test_progress_is_told(directory: Path) -> None:
    seen: list[tuple[float, str]] = []
    load_model(directory, progress=lambda fraction, what: seen.append((fraction, what)))
    fractions = [fraction for fraction, _ in seen]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    assert (0.4, "layer 2 of 3") in [(round(fraction, 2), what) for fraction, what in seen]


def test_ends_of_an_answer_come_from_all_files(directory: Path) -> None:
    assert load_model(directory).tokenizer.eos_ids == {0, 2}
    path = directory / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": [2, 7]}))
    assert load_model(directory).tokenizer.eos_ids == {0, 2, 7}
    path.write_text("{}")
    change_json(directory / "config.json", eos_token_id=None)
    assert load_model(directory).tokenizer.eos_ids == {0, 2}


def test_template_in_a_file_of_its_own_goes_first(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    assert load_model(directory).chat_template.render(CHAT) == "<|im_start|>ab <tool> cab"


def test_template_by_name(directory: Path) -> None:
    named = [{"name": "tool", "template": "no"}, {"name": "default", "template": "yes"}]
    change_json(directory / "tokenizer_config.json", chat_template=named)
    assert load_model(directory).chat_template.render(CHAT) == "yes"


def test_tokenizer_without_tokenizer_json(directory: Path) -> None:
    expected = load_model(directory).chat_template.encode(CHAT)
    values = tokenizer_json()
    (directory / "tokenizer.json").unlink()
    vocab = values["model"]["vocab"]
    (directory / "vocab.json").write_text(json.dumps(vocab))
    (directory / "merges.txt").write_text("#version: 0.2\na b\n")
    change_json(
        directory / "tokenizer_config.json",
        tokenizer_class="GPT2Tokenizer",
        unk_token="<|endoftext|>",
        eos_token="<|im_end|>",
        added_tokens_decoder={
            str(entry["id"]): {key: entry[key] for key in entry if key != "id"}
            for entry in values["added_tokens"]
        },
    )
    assert load_model(directory).chat_template.encode(CHAT) == expected


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model_type": "gemma3"}, "'gemma3' is not supported"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "wide"}, "num_attention_heads"),
        ({"hidden_act": "gelu"}, "'gelu' is not supported"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"max_position_embeddings": 1 << 40}, "context window"),
        ({"num_hidden_layers": 2}, "'model.layers.2"),
        ({"num_hidden_layers": 4}, "'model.layers.3.input_layernorm.weight' is missing"),
        ({"vocab_size": 321}, "has the shape [320, 64], not [321, 64]"),
        ({"attention_bias": True}, "q_proj.bias' is missing"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "'yarn' is not supported"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_parameters": 5}, "rope_scaling is 5"),
        ({"rms_norm_eps": -1.0}, "norm epsilon"),
        ({"quantization_config": {"quant_method": "exotic"}}, "quant_method is 'exotic', which"),
    ],
)
def test_configurations_that_are_refused(
    directory: Path, changes: dict[str, Any], problem: str
) -> None:
    change_json(directory / "config.json", **changes)
    assert problem in refusal(directory)


def test_older_names_of_rope_settings(directory: Path) -> None:
    change_json(
        directory / "config.json",
        rope_parameters=None,
        rope_theta=5000.0,
        rope_scaling={"type": "linear", "factor": 2.0},
    )
    rope = load_model(directory).config.rope
    assert (rope.theta, rope.scaling, rope.factor) == (5000.0, "linear", 2.0)


@pytest.mark.parametrize(
    ("family", "changes", "window"),
    [
        ("mistral", {"sliding_window": 32}, 32),
        ("mistral", {"sliding_window": 4096}, 128),
        ("qwen2", {"sliding_window": 32, "use_sliding_window": False}, 128),
        ("qwen2", {"sliding_window": 32, "use_sliding_window": True}, 32),
    ],
)
def test_sliding_window_limits_the_context(
    family: str, changes: dict[str, Any], window: int, tmp_path: Path
) -> None:
    directory = write_directory(tmp_path, tiny_model(family))
    change_json(directory / "config.json", **changes)
    assert load_model(directory).card.context_window == window


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "noise", "list"])
def test_damaged_files(directory: Path, file: str, damage: str) -> None:
    path = directory / file
    whole = path.read_bytes()
    path.unlink()
    if damage != "gone":
        noise = b"\xff\x00" * 100
        cut = whole[: len(whole) // 2]
        path.write_bytes({"empty": b"", "cut": cut, "noise": noise, "list": b"[1]"}[damage])
    refusal(directory)


def test_tensors_that_are_wrong(directory: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"

    def transpose(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = tensors[name].T.contiguous()

    change_tensors(directory, transpose)
    assert f"'{name}' has the shape [64, 160], not [160, 64]" in refusal(directory)
    change_tensors(directory, lambda tensors: tensors.pop(name))
    assert f"'{name}' is missing" in refusal(directory)
    change_tensors(
        directory, lambda tensors: tensors.update({name: torch.zeros(160, 64, dtype=torch.int32)})
    )
    assert f"'{name}' is torch.int32" in refusal(directory)


def test_norms_that_are_no_numbers(directory: Path) -> None:
    change_tensors(directory, lambda tensors: tensors["model.norm.weight"].fill_(torch.nan))
    assert "'model.norm.weight' has a value that is no number" in refusal(directory)


def test_unknown_tensors_are_named(directory: Path) -> None:
    change_tensors(directory, lambda tensors: tensors.update({"visual.x": torch.zeros(1)}))
    assert "'visual.x'" in refusal(directory)


def test_an_index_stays_in_its_directory(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "m", tiny_model("llama"), max_shard_size="100KB")
    index = directory / "model.safetensors.index.json"
    whole = index.read_text()
    index.write_text(whole.replace("model-00001", "../model-00001"))
    assert "outside the directory" in refusal(directory)
    index.write_text(whole)
    next(directory.glob("model-00002*")).unlink()
    assert re.search("model-00002.*cannot be read", refusal(directory))


@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_group_sizes(kind: Any, group: int, tmp_path: Path) -> None:
    """A width of 576, as in the default model, is 4.5 groups of 128."""
    changes = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3}
    model = tiny_model("llama", **changes, head_dim=64, num_hidden_layers=1, intermediate_size=128)
    directory = write_directory(tmp_path, model)
    if group == 128:
        line = refusal(directory, quantization=Quantization(kind, group))
        assert "layer 'embed_tokens': group size 128 does not divide the width 576" in line
    else:
        load_model(directory, quantization=Quantization(kind, group))


def test_a_directory_that_is_none_of_it(tmp_path: Path) -> None:
    assert "config.json" in refusal(tmp_path)


def broken_tokenizers() -> dict[str, tuple[dict[str, Any], str]]:
    whole = tokenizer_json()
    model = whole["model"]
    return {
        "unigram": ({**whole, "model": {"type": "Unigram", "vocab": []}}, "'Unigram' is not"),
        "no model": ({"added_tokens": []}, "damaged tokenizer"),
        "bad merge": ({**whole, "model": {**model, "merges": [["a", "zz"]]}}, "damaged tokenizer"),
        "large id": ({**whole, "model": {**model, "vocab": {"a": 999}}}, "ids up to 999"),
        "odd id": ({**whole, "model": {**model, "vocab": {"a": "x"}}}, "damaged tokenizer"),
        "words": ({**whole, "pre_tokenizer": None, "decoder": None}, "neither a byte-level"),
        "added": ({**whole, "added_tokens": [{"id": 1}]}, "damaged tokenizer"),
    }


@pytest.mark.parametrize("case", broken_tokenizers())
def test_tokenizers_that_are_refused(case: str, directory: Path) -> None:
    values, problem = broken_tokenizers()[case]
    (directory / "tokenizer.json").write_text(json.dumps(values))
    assert problem in refusal(directory)


def test_a_tokenizer_is_needed(directory: Path) -> None:
    (directory / "tokenizer_config.json").unlink()
    assert "no chat template" in refusal(directory)
    (directory / "tokenizer.json").unlink()
    assert "no tokenizer.json, and none can be made" in refusal(directory)
    write_tokenizer(directory)
    load_model(directory)
