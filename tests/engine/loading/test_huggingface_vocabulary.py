"""tokenizer.json of SentencePiece models, against transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from engine.loading.huggingface.vocabulary import read_tokenizer
from tests.engine.texts import random_texts

MARK = "\u2581"
LEADS = {
    "legacy": (
        normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]),
        None,
    ),
    "first": (
        None,
        pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="first", split=False),
    ),
    "always": (
        None,
        pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always", split=False),
    ),
    "never": (
        None,
        pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="never", split=False),
    ),
    "in a sequence": (
        None,
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="first", split=False),
            ]
        ),
    ),
}


def backend_of(lead: str) -> Tokenizer:
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += [
        MARK,
        *"abcdehlotuwr",
        "he",
        "ll",
        "hell",
        MARK + "he",
        MARK + "hell",
        MARK + "w",
        "the",
    ]
    merges = [
        ("h", "e"),
        ("l", "l"),
        ("he", "ll"),
        (MARK, "he"),
        (MARK + "he", "ll"),
        (MARK, "w"),
        ("t", "he"),
    ]
    backend = Tokenizer(
        models.BPE(
            {word: index for index, word in enumerate(words)},
            merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    normalizer, pre_tokenizer = LEADS[lead]
    if normalizer is not None:
        backend.normalizer = normalizer
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.add_special_tokens(
        [AddedToken(word, normalized=False) for word in ("<unk>", "<s>", "</s>")]
    )
    return backend


@pytest.mark.parametrize("lead", LEADS)
def test_marked_text_as_in_transformers(lead: str, tmp_path: Path) -> None:
    backend = backend_of(lead)
    (tmp_path / "tokenizer.json").write_text(backend.to_str())
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}})
    )
    tokenizer = read_tokenizer(tmp_path, 400, ())
    reference = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    texts = random_texts(150, 21, ("<s>", "</s>", " hell", "hello world", " ", "</s> "))
    for text in [*texts, "<s>hello</s>world", "hello<s> hello", " hello", "<s> </s>"]:
        ids = tokenizer.encode_marked(text)
        assert ids == reference.encode(text, add_special_tokens=False), text
        if lead == "never":
            plain = text.replace("<s>", "").replace("</s>", "")
            assert tokenizer.decode(ids) == plain
    assert tokenizer.eos_ids == {2}
    assert tokenizer.control_ids == {0, 1, 2}
    assert tokenizer.max_token_bytes == len("</s>") + 1
