"""Loading a model: files in, a running model with its tokenizer and template out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.chat_template import ChatTemplate
from engine.contract import ModelCard
from engine.loading.errors import ModelFileError
from engine.loading.gguf.checkpoint import GgufCheckpoint
from engine.loading.head import HeadKind, SmallHead
from engine.loading.quantize import Quantization
from engine.model.checkpoint import Checkpoint
from engine.model.config import ModelConfig
from engine.model.llama import CausalLM, Progress
from engine.tokenizer import Tokenizer

_QUANTIZATION_SUFFIX = re.compile(r"[.-](I?Q\d\w*|BF16|F16|F32)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Everything the engine needs of a model.

    Attributes:
        config: Its shape.
        model: Its forward pass, weights packed.
        tokenizer: Its vocabulary.
        chat_template: Messages to prompt ids.
        context_window: Tokens of prompt and answer together, as served.
        card: What gateways are told.
    """

    config: ModelConfig
    model: CausalLM
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    context_window: int
    card: ModelCard


def open_checkpoint(path: Path, quantization: Quantization | None = None) -> Checkpoint:
    """Open a GGUF file or a Hugging Face directory without reading its weights.

    Args:
        path: The file or directory.
        quantization: What dense matrices are turned into when read; None keeps them.

    Raises:
        ModelFileError: missing, damaged or not supported.
    """
    if path.is_dir():
        from engine.loading.huggingface.checkpoint import HuggingFaceCheckpoint

        return HuggingFaceCheckpoint(path, quantization)
    if not path.is_file():
        raise ModelFileError(path, "no such file or directory")
    return GgufCheckpoint(path, quantization)


def load_model(
    path: Path,
    device: torch.device | str = "cpu",
    compute: str | None = None,
    *,
    quantization: Quantization | None = None,
    head: HeadKind | None = None,
    max_context: int | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load a model.

    Args:
        path: A GGUF file or a Hugging Face directory.
        device: Where it runs.
        compute: How products are formed; see `kernels.pack`.
        quantization: What dense weights are turned into; None keeps them.
        head: What a dense output layer is turned into; None keeps it.
        max_context: Serve at most this many tokens of context; None means the
            model's own window.
        progress: Called with (fraction done, what comes next).

    Raises:
        ModelFileError: missing, damaged or not supported, in one line.
    """
    checkpoint = open_checkpoint(path, quantization)
    if head is not None:
        try:
            checkpoint = SmallHead(checkpoint, head)
        except ValueError as error:
            raise ModelFileError(path, str(error)) from error
    config = checkpoint.config
    context_window = min(config.context_window, max_context or config.context_window)
    # The cheap parts first, so that a bad file fails before minutes of reading.
    tokenizer = checkpoint.tokenizer()
    try:
        chat_template = ChatTemplate(checkpoint.chat_template(), tokenizer, context_window)
        model = CausalLM(checkpoint, device, compute, context_window, progress)
    except ValueError as error:
        raise ModelFileError(path, str(error)) from error
    card = ModelCard(
        id=_model_id(path),
        created_at=checkpoint.created_at,
        context_window=context_window,
        vocab_size=config.vocab_size,
        max_token_bytes=tokenizer.max_token_bytes,
        quantization=checkpoint.quantization,
    )
    return LoadedModel(config, model, tokenizer, chat_template, context_window, card)


def _model_id(path: Path) -> str:
    """The directory's name, or the file's without type and quantisation."""
    if path.is_dir():
        return path.resolve().name
    return _QUANTIZATION_SUFFIX.sub("", path.stem)
