"""The default model's tokenizer as transformers would have it, made from the file's vocabulary."""

from __future__ import annotations

from functools import cache

import gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.engine.model_file import default_model


@cache
def reference_tokenizer() -> PreTrainedTokenizerFast:
    """With control tokens in the vocabulary, matched wherever they are spelled."""
    fields = gguf.GGUFReader(default_model()).fields
    tokens, merges, types, template = (
        fields[name].contents()
        for name in (
            "tokenizer.ggml.tokens",
            "tokenizer.ggml.merges",
            "tokenizer.ggml.token_type",
            "tokenizer.chat_template",
        )
    )
    pairs = [tuple(merge.split(" ")) for merge in merges]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    backend.decoder = decoders.ByteLevel()
    controls = [token for token, kind in zip(tokens, types, strict=True) if kind == 3]
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in controls])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )
