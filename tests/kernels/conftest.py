"""Which kernels the CPU ops run on: as built for this machine, for AVX2, or PyTorch."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kernels import native
from kernels.native.build import build
from kernels.native.library import Library

# The second path, on a machine that has more: what an older processor runs.
AVX2 = ("-mno-avx512f", "-mno-avxvnni")


def load(flags: tuple[str, ...]) -> Library:
    """The library built with `flags`, on two threads."""
    library = Library(build(flags))
    library.set_num_threads(2)
    return library


@pytest.fixture(scope="session")
def avx2_library() -> Library:
    return load(AVX2)


@pytest.fixture(scope="session")
def native_library() -> Library:
    return load(())


@pytest.fixture(params=["native", "avx2"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    """The ops run on the library for this machine, then on the one for AVX2."""
    library = request.getfixturevalue(f"{request.param}_library")
    monkeypatch.setattr(native, "_load", lambda: (library, ""))
    yield library


@pytest.fixture(params=["native", "avx2", "torch"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """`compiled`, and PyTorch as where there is no compiler."""
    if request.param == "torch":
        monkeypatch.setattr(native, "_load", lambda: (None, "switched off by a test"))
    else:
        library = request.getfixturevalue(f"{request.param}_library")
        monkeypatch.setattr(native, "_load", lambda: (library, ""))
    yield request.param


@pytest.fixture(autouse=True)
def switch_is_unset() -> None:
    assert os.environ.get("REPARTEE_NATIVE", "1") == "1", "these tests choose the kernels"
