"""The engine's arithmetic: one function an op, the same names on every device.

The device of the tensors picks the implementation: `cpu.py` for the CPU, `triton.py`
for CUDA. Each op's `reference.py` is the same arithmetic in plain fp32 PyTorch.
Sampling is imported from `kernels.sampling`.
"""

from kernels.embedding import embedding
from kernels.linear_add import linear_add
from kernels.mlp_add import mlp_add
from kernels.norm_linear import norm_linear
from kernels.norm_swiglu import norm_swiglu
from kernels.pack import pack
from kernels.paged_attention import paged_attention
from kernels.rms_norm import rms_norm
from kernels.rope_attention import rope_attention
from kernels.rope_kv_write import rope_kv_write, rope_table

__all__ = [
    "embedding",
    "linear_add",
    "mlp_add",
    "norm_linear",
    "norm_swiglu",
    "pack",
    "paged_attention",
    "rms_norm",
    "rope_attention",
    "rope_kv_write",
    "rope_table",
]
