"""FP8 as `quant_method: fp8` declares it: e4m3 in blocks, or with one scale a matrix.

In blocks (DeepSeek's way) a matrix has `weight_scale_inv` [rows / 128, columns / 128] beside
it, by which its values are multiplied; without blocks the scale is one number, called
`weight_scale` by the tools that leave `weight_block_size` out.
"""

from __future__ import annotations

from engine.loading.huggingface.formats.mixed import Mixed
from engine.loading.huggingface.formats.scaled_bytes import ScaledBytes
from engine.loading.huggingface.formats.settings import Settings, within


def fp8_format(settings: Settings) -> Mixed:
    """FP8 as config.json describes it.

    Raises:
        ValueError: naming a setting that isn't supported.
    """
    settings.choice("fmt", ("e4m3",), "e4m3")
    settings.choice("scale_fmt", ("float",), "float")
    settings.unset("modules_to_convert")
    static = settings.choice("activation_scheme", ("dynamic", "static"), "dynamic") == "static"
    excluded = (
        "lm_head", *settings.names("modules_to_not_convert"), *settings.names("ignored_layers"),
    )  # fmt: skip
    blocked = settings.has("weight_block_size")
    input_name = ("activation_scale" if blocked else "input_scale") if static else ""
    block = block_size(settings, "weight_block_size")
    one = ScaledBytes(
        "fp8" if block == (0, 0) else f"fp8-{block[0]}x{block[1]}", "fp8", block, True,
        "weight_scale_inv" if blocked else "weight_scale", input_name,
    )  # fmt: skip
    return Mixed(one.name, [(lambda layer: not any(within(each, layer) for each in excluded), one)])


def block_size(settings: Settings, name: str) -> tuple[int, int]:
    """A field [rows, columns]; (0, 0) where it is null."""
    value = settings.get(name)
    if value is None:
        return (0, 0)
    if isinstance(value, list) and len(value) == 2:
        high, wide = value
        if type(high) is int and type(wide) is int and high >= 1 and wide >= 1:
            return high, wide
    raise settings.refusal(name, value, "null or two whole numbers from 1")
