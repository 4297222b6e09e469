"""Damaged and hostile GGUF files: one readable line, bounded memory, never a model."""

from __future__ import annotations

import random
import re
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.loading import ModelFileError, load_model, open_checkpoint
from engine.loading.gguf.reader import GgufFile
from tests.engine.loading.gguf_bytes import gguf_bytes, text
from tests.engine.loading.tiny_gguf import HIDDEN, MLP, f32, tensors, tiny_gguf
from tests.engine.model_file import default_model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def refusal(path: Path, data: bytes) -> str:
    """The one line that loading `data` ends with."""
    path.write_bytes(data)
    with pytest.raises(ModelFileError) as caught:
        load_model(path)
    line = str(caught.value)
    assert str(path) in line
    assert "\n" not in line and len(line) <= 600
    return line


def test_the_tiny_file_itself_loads(path: Path) -> None:
    path.write_bytes(tiny_gguf())
    assert load_model(path).card.quantization == "f32"


def test_metadata_of_all_types(path: Path) -> None:
    numbers = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
    parts = [
        text(f"n{code}") + struct.pack(f"<I{letter}", code, 3) for code, letter in numbers.items()
    ]
    parts += [
        text(f"a{code}") + struct.pack(f"<IIQ3{letter}", 9, code, 3, 1, 2, 3)
        for code, letter in numbers.items()
    ]
    parts.append(text("yes") + struct.pack("<I?", 7, True))
    parts.append(text("s") + struct.pack("<I", 8) + text("žluť"))
    parts.append(text("as") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text(""))
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(parts)) + b"".join(parts))
    metadata = GgufFile(path).metadata
    for code in numbers:
        assert metadata[f"n{code}"] == 3
        assert metadata[f"a{code}"].tolist() == [1, 2, 3]
    assert metadata["yes"] is True
    assert metadata["s"] == "žluť"
    assert metadata["as"] == ["a", ""]


def test_alignment_is_the_files_own(path: Path) -> None:
    path.write_bytes(tiny_gguf({"general.alignment": 64}, alignment=64))
    wanted = np.frombuffer(tensors()["blk.1.ffn_down.weight"][2], np.float32)
    down = open_checkpoint(path).layer(1).down
    assert np.array_equal(down.data.numpy().reshape(-1), wanted)


def test_missing_empty_and_foreign_files(path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such file"):
        load_model(path)
    assert "cannot be read" in refusal(path, b"")
    assert "not a GGUF file" in refusal(path, b"PK\x03\x04" + bytes(100))
    assert "version 1;" in refusal(path, tiny_gguf(version=1))
    assert "big-endian" in refusal(path, b"GGUF" + struct.pack(">IQQ", 3, 0, 0))


@pytest.mark.parametrize("share", [0.0001, 0.001, 0.02, 0.5, 0.99999])
def test_cut_files(path: Path, share: float) -> None:
    whole = default_model().read_bytes()
    assert re.search("cut short|the file has", refusal(path, whole[: int(len(whole) * share)]))


def test_cut_at_every_byte_of_a_small_file(path: Path) -> None:
    whole = tiny_gguf()
    for size in range(1, len(whole) - 32, 997):
        refusal(path, whole[:size])


def test_counts_beyond_the_file_cost_no_memory(path: Path) -> None:
    huge = 1 << 60
    head = b"GGUF" + struct.pack("<I", 3)
    one = struct.pack("<QQ", 0, 1)
    cases = {
        "metadata key": head + struct.pack("<QQ", 0, huge),
        "tensor 0": head + struct.pack("<QQ", huge, 0),
        "metadata key 0": head + one + struct.pack("<Q", huge),
        "1152921504606846976 items": head + one + text("a") + struct.pack("<IIQ", 9, 0, huge),
        "3000000 strings": head + one + text("a") + struct.pack("<IIQ", 9, 8, 3_000_000),
        "needs 24000000 bytes": head + one + text("a") + struct.pack("<IIQ", 9, 12, 3_000_000),
        "array of arrays": head + one + text("a") + struct.pack("<IIQ", 9, 9, 1),
        "type 77": head + one + text("a") + struct.pack("<I", 77),
    }
    tracemalloc.start()
    for part, data in cases.items():
        assert part in refusal(path, data)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 4 << 20


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (struct.pack("<I2QIQ", 2, 4, 4, 0, 1 << 40), "the file has"),
        (struct.pack("<I2QIQ", 2, 1 << 40, 1 << 40, 0, 0), "the file has"),
        (struct.pack("<I2QIQ", 2, 0, 4, 0, 0), "the file has"),
        (struct.pack("<I2QIQ", 2, 33, 4, 3, 0), "block of 32"),
        (struct.pack("<I2QIQ", 2, 4, 4, 99, 0), "number 99"),
        (struct.pack("<I2QIQ", 2, 256, 4, 16, 0), "IQ2_XXS"),
        (struct.pack("<I", 0), "0 dimensions"),
        (struct.pack("<I", 900), "900 dimensions"),
    ],
)
def test_bad_tensor_entries(path: Path, entry: bytes, problem: str) -> None:
    line = refusal(path, b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("odd") + entry + bytes(64))
    assert problem in line and "odd" in line


def test_doubled_names(path: Path) -> None:
    doubled = text("a") + struct.pack("<IB", 0, 1)
    assert "twice" in refusal(path, b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + doubled * 2)
    tensor = text("t") + struct.pack("<IQIQ", 1, 1, 0, 0)
    data = b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + tensor * 2 + bytes(64)
    assert "twice" in refusal(path, data)


@pytest.mark.parametrize(
    ("changes", "without", "problem"),
    [
        ({"general.architecture": "gemma3"}, (), "'gemma3' is not supported"),
        ({}, ("general.architecture",), "None is not supported"),
        ({}, ("llama.block_count",), "llama.block_count is missing"),
        ({"llama.block_count": "many"}, (), "number of layers"),
        ({"llama.block_count": 3}, (), "'blk.2.attn_norm.weight' is missing"),
        ({"llama.block_count": 1}, (), "'blk.1.attn_norm.weight' that"),
        ({"llama.block_count": 1 << 31}, (), "number of layers"),
        ({"llama.context_length": 1 << 30}, (), "context window"),
        ({"llama.attention.head_count": 0}, (), "head_count is 0"),
        ({"llama.attention.head_count_kv": 3}, (), "multiple"),
        ({"llama.attention.head_count_kv": [2, 2]}, (), "differs by layer"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, (), "norm epsilon"),
        ({"llama.rope.freq_base": 0.0}, (), "rope theta"),
        ({"llama.rope.scaling.type": "yarn"}, (), "'yarn' is not supported"),
        ({"llama.rope.dimension_count": 8}, (), "rope.dimension_count"),
        ({"llama.expert_count": 8}, (), "mixtures of experts"),
        ({"split.count": 3}, (), "split file"),
        ({"llama.feed_forward_length": MLP + 1}, (), "has the shape"),
        ({}, ("token_embd.weight",), "'token_embd.weight' is missing"),
        ({}, ("blk.1.ffn_up.weight",), "'blk.1.ffn_up.weight' is missing"),
        ({}, ("tokenizer.ggml.tokens",), "tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.tokens": ["a"]}, (), "260 token_type"),
        ({"tokenizer.ggml.tokens": ["a"] * 400}, (), "400 tokens and 260 embedding rows"),
        ({"tokenizer.ggml.eos_token_id": 5000}, (), "eos_token_id is 5000"),
        ({"tokenizer.ggml.merges": ["nospace"]}, (), "merges"),
        ({"tokenizer.ggml.merges": ["a unknown"]}, (), "damaged tokenizer"),
        ({"tokenizer.ggml.model": "bert"}, (), "'bert' is not supported"),
        ({"tokenizer.ggml.pre": "exotic"}, (), "'exotic' is not supported"),
        ({}, ("tokenizer.chat_template",), "no chat template"),
        ({"tokenizer.chat_template": "{% for %}"}, (), "not valid Jinja"),
        ({"general.alignment": 0}, (), "general.alignment is 0"),
    ],
)
def test_what_a_file_must_hold(
    path: Path, changes: dict[str, Any], without: tuple[str, ...], problem: str
) -> None:
    assert problem in refusal(path, tiny_gguf(changes, without=without))


def test_wrong_shapes_and_unknown_tensors(path: Path) -> None:
    rng = np.random.default_rng(0)
    line = refusal(path, tiny_gguf(tensors={"blk.0.attn_q.weight": f32(rng, HIDDEN, 32)}))
    assert "'blk.0.attn_q.weight' has the shape [64, 32], not [64, 64]" in line
    line = refusal(path, tiny_gguf(tensors={"blk.0.attn_q.bias": f32(rng, HIDDEN)}))
    assert "some of its biases" in line
    line = refusal(path, tiny_gguf(tensors={"blk.0.ffn_gate_exps.weight": f32(rng, 2, 2)}))
    assert "'blk.0.ffn_gate_exps.weight'" in line


def test_scales_that_are_no_numbers(path: Path) -> None:
    block = struct.pack("<e", float("nan")) + bytes(32)
    line = refusal(path, tiny_gguf(tensors={"blk.0.attn_v.weight": ((32, 64), 8, block * 64)}))
    assert "'blk.0.attn_v.weight' has a scale that is no number" in line
    infinite = np.full(HIDDEN, np.inf, np.float32).tobytes()
    line = refusal(path, tiny_gguf(tensors={"output_norm.weight": ((HIDDEN,), 0, infinite)}))
    assert "'output_norm.weight' has a value that is no number" in line


def test_vocabulary_without_weights(path: Path) -> None:
    data = gguf_bytes({"general.architecture": "llama"}, {})
    assert "llama.embedding_length is missing" in refusal(path, data)


def test_flipped_header_bytes_never_escape(path: Path) -> None:
    """Any byte of the header set to anything: a refusal, or a file that still loads."""
    whole = tiny_gguf()
    header = whole.index(b"blk.1.ffn_down.weight") + 60
    draw = random.Random(1)
    num_refused = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(draw.choice((1, 1, 4))):
            data[draw.randrange(header)] = draw.randrange(256)
        path.write_bytes(data)
        try:
            load_model(path)
        except ModelFileError as error:
            num_refused += 1
            assert "\n" not in str(error)
    assert num_refused > 100
