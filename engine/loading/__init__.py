"""From a model's files to a model that runs, with its tokenizer and chat template.

`load_model` is the whole of it; `open_checkpoint` stops before the weights are read.
"""

from engine.loading.errors import ModelFileError
from engine.loading.loader import LoadedModel, load_model, open_checkpoint
from engine.loading.quantize import Quantization
from engine.model.config import ModelConfig, RopeConfig

__all__ = [
    "LoadedModel",
    "ModelConfig",
    "ModelFileError",
    "Quantization",
    "RopeConfig",
    "load_model",
    "open_checkpoint",
]
