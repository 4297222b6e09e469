"""RMSNorm in plain fp32 PyTorch."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, norm: torch.Tensor | None, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) * norm over the last axis, in float32; None returns x as float32."""
    x = x.float()
    if norm is None:
        return x
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * norm.float()
