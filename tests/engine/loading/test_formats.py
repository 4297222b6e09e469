"""Quantised directories: every value exact, the text as transformers writes it, clear refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.contract import Delta, GenerateRequest, Message, SamplingParams, Tier
from engine.engine import Engine
from engine.loading import LoadedModel, ModelFileError, load_model, open_checkpoint
from engine.loading.huggingface.checkpoint import HuggingFaceCheckpoint
from engine.runner import CpuRunner
from kernels.weights import Weight
from tests.engine.loading import quantized_directory as tiny
from tests.engine.loading.format_cases import CASES, CHANNEL8, INT4, TOKEN8, ct, gptq_config, write
from tests.engine.loading.quantized_directory import change_quantization, quantized_directory
from tests.engine.model.paged_run import all_logits


def weights_of(checkpoint: Any, index: int) -> dict[str, Weight]:
    layer = checkpoint.layer(index)
    names = [f"self_attn.{name}_proj" for name in "qkvo"]
    names += [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    return dict(zip(names, (*layer.qkv, layer.o, *layer.gate_up, layer.down), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_values_and_logits(case: str, tmp_path: Path) -> None:
    _, _, name, kind, group, rounds_x = CASES[case]
    reference = write(tmp_path, case)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.quantization == name
    for layer, weight in weights_of(checkpoint, 1).items():
        weight.validate()
        expected = reference.get_submodule(f"model.layers.1.{layer}").weight
        assert (weight.kind, weight.rounds_x) == (kind, rounds_x)
        assert weight.group == (group or weight.columns)
        assert torch.equal(weight.dequantize(), expected), layer
    tokens = torch.randint(0, 320, (40,), generator=torch.Generator().manual_seed(3)).tolist()
    with torch.inference_mode():
        expected = reference(torch.tensor([tokens])).logits[0]
    assert expected.std() > 0.1
    loaded = load_model(tmp_path, compute="fp32")
    torch.testing.assert_close(all_logits(loaded.model, tokens), expected, atol=1e-3, rtol=1e-3)


def written(loaded: LoadedModel, prompt: str, max_tokens: int) -> str:
    """The engine's answer, greedy."""
    config = EngineConfig(num_blocks=32, check_invariants=True)
    engine = Engine(
        config, card=loaded.card, runner=CpuRunner(loaded.model, config),
        vocabulary=loaded.tokenizer, encode_chat=loaded.chat_template.encode,
    )  # fmt: skip
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    request = GenerateRequest(
        request_id="r", model=loaded.card.id, messages=(Message("user", prompt),),
        sampling=sampling, tier=Tier.STANDARD, tenant="", conversation_id=None, reply_to="",
        created_at=0.0, deadline_at=1e12,
    )  # fmt: skip
    engine.add(engine.prepare(request))
    text = ""
    while engine.has_work():
        text += "".join(event.text for event in engine.step() if isinstance(event, Delta))
    return text


@pytest.mark.parametrize(
    "case",
    ["awq g32", "gptq 4 sym=False act=True v1", "gptq 8 sym=False act=False v2", "ct int4",
     "ct w8a8", "ct fp8 rows", "fp8 blocks"],
)  # fmt: skip
def test_text_as_transformers_writes_it(case: str, tmp_path: Path) -> None:
    reference = write(tmp_path, case)
    loaded = load_model(tmp_path, compute="fp32")
    prompt = loaded.chat_template.encode((Message("user", "ab cab"),))
    made = reference.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=32, min_new_tokens=32,
        eos_token_id=None, pad_token_id=0,
    )[0, len(prompt) :]  # fmt: skip
    expected = b"".join(loaded.tokenizer.token_bytes(token) for token in made.tolist())
    assert written(loaded, "ab cab", 32) == expected.decode(errors="replace")


def test_a_fixed_zero_point_needs_no_minimums(tmp_path: Path) -> None:
    write(tmp_path, "gptq 8 sym=True act=False v1")
    assert open_checkpoint(tmp_path).layer(0).o.minimum is None


def test_inputs_of_differing_orders(tmp_path: Path) -> None:
    """q, k and v are one matrix in the engine, which then can't keep their groups."""
    packers = {
        f"self_attn.{name}_proj": tiny.gptq(
            32, 4, symmetric=False, act_order=True, version=1, seed=seed
        )
        for seed, name in enumerate("qkv")
    }
    reference = quantized_directory(
        tmp_path,
        lambda layer: next((each for name, each in packers.items() if layer.endswith(name)), None),
        gptq_config(4, 32, modules_in_block_to_quantize=[list(packers)]),
    )
    loaded = load_model(tmp_path, compute="fp32")
    tokens = list(range(30))
    with torch.inference_mode():
        expected = reference(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(all_logits(loaded.model, tokens), expected, atol=1e-3, rtol=1e-3)


def kinds(directory: Path) -> dict[str, str]:
    return {name: weight.kind for name, weight in weights_of(open_checkpoint(directory), 0).items()}


@pytest.mark.parametrize(
    ("case", "field", "excluded"),
    [
        ("awq g32", "modules_to_not_convert", "mlp.down_proj"),
        ("awq g32", "modules_to_not_convert", "model.layers.0.mlp.down_proj"),
        ("awq g32", "modules_to_not_convert", "down_proj"),
        ("gptq 4 sym=True act=False v1", "modules_to_not_convert", "down_proj"),
        ("fp8 blocks", "modules_to_not_convert", "mlp.down_proj"),
        ("fp8 one scale", "ignored_layers", "model.layers.0.mlp.down_proj"),
        ("ct int4", "ignore", "model.layers.0.mlp.down_proj"),
        ("ct int4", "ignore", "re:.*down_proj$"),
    ],
)
def test_layers_left_out(case: str, field: str, excluded: str, tmp_path: Path) -> None:
    packer, config = CASES[case][:2]
    quantized_directory(
        tmp_path,
        lambda layer: None if layer == "lm_head" or layer.endswith("down_proj") else packer,
        {**config, field: [excluded, "lm_head"]}, num_hidden_layers=1,
    )  # fmt: skip
    found = kinds(tmp_path)
    assert found.pop("mlp.down_proj") == "dense"
    assert set(found.values()) == {CASES[case][3]}


def test_a_part_of_a_name_excludes_nothing(tmp_path: Path) -> None:
    write(tmp_path, "awq g32", num_hidden_layers=1)
    change_quantization(tmp_path, modules_to_not_convert=["layers.00", "wn_proj"])
    assert set(kinds(tmp_path).values()) == {"int4"}


def test_schemes_by_layer(tmp_path: Path) -> None:
    config = ct("mixed-precision", INT4)
    groups = config["config_groups"]
    groups["group_0"] |= {"targets": ["re:.*self_attn.*"], "format": "pack-quantized"}
    groups["group_1"] = {
        "targets": ["Linear"], "weights": CHANNEL8, "input_activations": TOKEN8,
        "format": "int-quantized",
    }  # fmt: skip

    def packer(layer: str) -> tiny.Packer | None:
        if layer == "lm_head":
            return None
        attention = "self_attn" in layer
        return tiny.ct_packed(32, 4, symmetric=True) if attention else tiny.int8("channel")

    quantized_directory(tmp_path, packer, config)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.quantization == "w4a16-g32+w8a8"
    found = kinds(tmp_path)
    assert {found[f"self_attn.{name}_proj"] for name in "qkvo"} == {"int4"}
    assert {found[f"mlp.{name}_proj"] for name in ("gate", "up", "down")} == {"int8"}


def test_settings_by_layer_in_gptq(tmp_path: Path) -> None:
    base = tiny.gptq(32, 4, symmetric=True, act_order=False, version=1)
    fine = tiny.gptq(64, 8, symmetric=True, act_order=False, version=1)

    def packer(layer: str) -> tiny.Packer | None:
        if layer == "lm_head" or "k_proj" in layer:
            return None
        return fine if layer.endswith("o_proj") else base

    dynamic = {"-:.*k_proj": {}, r"+:.*\.o_proj": {"bits": 8, "group_size": 64}}
    quantized_directory(tmp_path, packer, gptq_config(4, 32, dynamic=dynamic))
    found = weights_of(open_checkpoint(tmp_path), 0)
    assert found["self_attn.k_proj"].kind == "dense"
    assert (found["self_attn.o_proj"].kind, found["self_attn.o_proj"].group) == ("int8", 64)
    assert (found["self_attn.q_proj"].kind, found["self_attn.q_proj"].group) == ("int4", 32)


def test_a_quantised_head(tmp_path: Path) -> None:
    packer = tiny.gptq(32, 8, symmetric=True, act_order=False, version=1)
    reference = quantized_directory(
        tmp_path, lambda _: packer, gptq_config(8, 32, lm_head=True), num_hidden_layers=1
    )
    head = open_checkpoint(tmp_path).head()
    assert head is not None and head.kind == "int8"
    assert torch.equal(head.dequantize(), reference.lm_head.weight)


def test_biases_of_zeros(tmp_path: Path) -> None:
    """Some tools give every layer a bias; only one with values changes anything."""
    base = tiny.gptq(32, 4, symmetric=True, act_order=False, version=1)

    def biased(value: float) -> tiny.Packer:
        def pack(rows: int, columns: int) -> tiny.Packed:
            packed = base(rows, columns)
            packed.tensors["bias"] = torch.full((rows,), value)
            return packed

        return pack

    for value in (0.0, 0.5):
        quantized_directory(
            tmp_path, lambda layer, v=value: None if layer == "lm_head" else biased(v),
            gptq_config(4, 32), num_hidden_layers=1,
        )  # fmt: skip
        if value:
            assert "down_proj.bias' that this llama model doesn't have" in refusal(tmp_path)
        else:
            assert set(kinds(tmp_path).values()) == {"int4"}


def refusal(directory: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        load_model(directory)
    return str(caught.value)


@pytest.mark.parametrize(
    ("case", "changes", "problem"),
    [
        ("awq g32", {"quant_method": "exotic"}, "quant_method is 'exotic'"),
        ("awq g32", {"bits": 3}, "quantization_config.bits is 3"),
        ("awq g32", {"version": "gemv"}, "version is 'gemv'"),
        ("awq g32", {"zero_point": False}, "zero_point is False"),
        ("awq g32", {"group_size": 16}, "group_size is 16"),
        ("awq g32", {"group_size": 128}, "128 does not divide the 64 columns"),
        ("awq g32", {"group_size": 64}, "qzeros' has the shape [2, 8], not [1, 8]"),
        ("awq g32", {"modules_to_not_convert": "mlp"}, "modules_to_not_convert is 'mlp'"),
        ("gptq 4 sym=True act=False v1", {"bits": 2}, "bits is 2"),
        ("gptq 4 sym=True act=False v1", {"bits": True}, "bits is True"),
        ("gptq 4 sym=True act=False v1", {"checkpoint_format": "marlin"}, "is 'marlin'"),
        ("gptq 4 sym=True act=False v1", {"desc_act": "yes"}, "desc_act is 'yes'"),
        ("gptq 4 sym=True act=False v1", {"dynamic": {"(": {}}}, "pattern '('"),
        ("gptq 4 sym=True act=False v1", {"dynamic": {"+:x": {"bits": 5}}}, "+:x.bits is 5"),
        ("ct int4", {"format": "marlin-24"}, "format is 'marlin-24'"),
        ("ct int4", {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme is"),
        ("ct int4", {"sparsity_config": {"format": "x"}}, "sparsity_config.format is 'x'"),
        ("ct int4", {"quantization_status": "frozen"}, "quantization_status is 'frozen'"),
        ("ct int4", {"config_groups": {}}, "config_groups is {}"),
        ("ct int4", {"config_groups": 5}, "config_groups is 5; it must be an object"),
        ("ct int4", {"ignore": ["re:("]}, "bad pattern"),
        ("fp8 blocks", {"activation_scheme": "x"}, "activation_scheme is 'x'"),
        ("fp8 blocks", {"weight_block_size": [128]}, "weight_block_size is [128]"),
        ("fp8 blocks", {"scale_fmt": "ue8m0"}, "scale_fmt is 'ue8m0'"),
    ],
)
def test_settings_that_are_refused(
    case: str, changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    write(tmp_path, case, num_hidden_layers=1)
    change_quantization(tmp_path, **changes)
    line = refusal(tmp_path)
    assert problem in line
    assert line.startswith(str(tmp_path)) and "\n" not in line


@pytest.mark.parametrize(
    ("weights", "inputs", "problem"),
    [
        ({"num_bits": 3}, None, "weights.num_bits is 3"),
        ({"type": "float"}, None, "weights.type is 'float'"),
        ({"strategy": "tensor"}, None, "weights.strategy is 'tensor'"),
        ({"group_size": 16}, None, "weights.group_size is 16"),
        ({"dynamic": True}, None, "weights.dynamic is True"),
        ({"actorder": "sideways"}, None, "weights.actorder is 'sideways'"),
        ({}, TOKEN8, "input_activations is"),
    ],
)
def test_packed_schemes_that_are_refused(
    weights: dict[str, Any], inputs: Any, problem: str, tmp_path: Path
) -> None:
    write(tmp_path, "ct int4", num_hidden_layers=1)
    groups = ct("", INT4 | weights, inputs)["config_groups"]
    change_quantization(tmp_path, config_groups=groups)
    assert f"config_groups.group_0.{problem}" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ({"num_bits": 4}, "num_bits is 4"),
        ({"symmetric": False}, "symmetric is False"),
        ({"dynamic": False}, "dynamic is False"),
        ({"dynamic": "local"}, "dynamic is 'local'"),
        ({"strategy": "channel"}, "strategy is 'channel'"),
        ({"type": "float"}, "type is 'float'"),
    ],
)
def test_activations_that_are_refused(inputs: Any, problem: str, tmp_path: Path) -> None:
    write(tmp_path, "ct w8a8", num_hidden_layers=1)
    groups = ct("", CHANNEL8, TOKEN8 | inputs)["config_groups"]
    change_quantization(tmp_path, config_groups=groups)
    assert f"config_groups.group_0.input_activations.{problem}" in refusal(tmp_path)


def damaged(directory: Path, name: str, change: Any) -> str:
    from safetensors.torch import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    tensors[name] = change(tensors[name])
    save_file(tensors, directory / "model.safetensors")
    return refusal(directory)


@pytest.mark.parametrize(
    ("case", "name", "change", "problem"),
    [
        ("awq g32", "q_proj.scales", lambda t: t.fill_(torch.inf), "a scale that is no number"),
        ("awq g32", "q_proj.qweight", lambda t: t.long(), "is torch.int64, not int32"),
        ("awq g32", "q_proj.scales", lambda t: t.int(), "is torch.int32, not float16 or"),
        (
            "gptq 4 sym=True act=True v1", "q_proj.g_idx", lambda t: t.fill_(0),
            "does not give each group 32 inputs",
        ),
        ("ct fp8 rows", "q_proj.weight", lambda t: t.float(), "not float8_e4m3fn"),
        ("ct w8a8", "q_proj.weight_scale", lambda t: t[:-1], "has the shape [63, 1], not [64, 1]"),
    ],
)  # fmt: skip
def test_tensors_that_are_refused(
    case: str, name: str, change: Any, problem: str, tmp_path: Path
) -> None:
    write(tmp_path, case, num_hidden_layers=1)
    assert problem in damaged(tmp_path, f"model.layers.0.self_attn.{name}", change)


def test_quantising_what_is_quantised(tmp_path: Path) -> None:
    from engine.loading import Quantization

    write(tmp_path, "awq g32", num_hidden_layers=1)
    checkpoint = HuggingFaceCheckpoint(tmp_path, Quantization("int8"))
    with pytest.raises(ModelFileError, match="is int4 already"):
        checkpoint.layer(0)
