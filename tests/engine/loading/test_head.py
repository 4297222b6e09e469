"""An output layer of fewer bits than its file has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.loading import ModelFileError, Quantization, load_model, open_checkpoint
from engine.loading.head import SmallHead
from tests.engine.loading.tiny_directory import VOCAB, tiny_model, write_directory
from tests.engine.model.paged_run import all_logits

TOKENS = torch.randint(0, VOCAB, (40,), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("kind", "group", "largest"), [("int8", 64, 0.02), ("int4", 64, 0.2)])
def test_only_the_output_layer_changes(
    kind: Any, group: int, largest: float, tied: bool, tmp_path: Path
) -> None:
    reference = tiny_model("llama", tie_word_embeddings=tied)
    write_directory(tmp_path, reference)
    checkpoint = SmallHead(open_checkpoint(tmp_path), kind)
    head, embedding = checkpoint.head(), checkpoint.embedding()
    assert head is not None
    assert (head.kind, head.group, embedding.kind) == (kind, group, "dense")
    with torch.inference_mode():
        reference.lm_head.weight = torch.nn.Parameter(head.dequantize())
        expected = reference(torch.tensor([TOKENS])).logits[0]
    loaded = load_model(tmp_path, compute="fp32", head=kind)
    assert loaded.card.quantization == f"f32, head {kind}"
    torch.testing.assert_close(all_logits(loaded.model, TOKENS), expected, atol=1e-3, rtol=1e-3)
    exact = all_logits(load_model(tmp_path, compute="fp32").model, TOKENS)
    assert 0 < float((expected - exact).norm() / exact.norm()) < largest


@pytest.mark.parametrize("tied", [False, True])
def test_what_is_quantised_is_left_alone(tied: bool, tmp_path: Path) -> None:
    write_directory(tmp_path, tiny_model("llama", tie_word_embeddings=tied))
    checkpoint = SmallHead(open_checkpoint(tmp_path, Quantization("int8", 32)), "int4")
    head = checkpoint.head()
    assert head is None if tied else head is not None and (head.kind, head.group) == ("int8", 32)


def test_heads_that_are_refused(tmp_path: Path) -> None:
    write_directory(tmp_path, tiny_model("llama"))
    with pytest.raises(ModelFileError, match="head: expected one of int8, int4, got 'int3'"):
        load_model(tmp_path, head="int3")  # type: ignore[arg-type]
    checkpoint = open_checkpoint(tmp_path)
    checkpoint.config = replace(checkpoint.config, hidden_size=72)
    with pytest.raises(ValueError, match="that 32 divides, got 72"):
        SmallHead(checkpoint, "int4")
