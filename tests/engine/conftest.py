"""Shared by the engine's tests."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_pytorch_thread() -> None:
    """PyTorch's waiting threads spin; on a busy machine one thread is several times faster.

    The kernels have threads of their own.
    """
    torch.set_num_threads(1)
