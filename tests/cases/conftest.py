"""One `repartee serve` with the packaged model for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from load_tests.processes import Server, repartee
from tests.cases.ask import WINDOW_TOKENS, Product
from tests.engine.model_file import default_model


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The running processes, with so little KV that a window is filled in seconds."""
    folder = tmp_path_factory.mktemp("cases")
    options = ("--model", str(default_model()), "--kv-blocks", str(WINDOW_TOKENS // 16))
    # A busy machine foresees long waits; none of these tests is about being refused for one.
    options += ("--max-wait", "600")
    with repartee(folder / "data", folder / "log", *options) as running:
        yield running


@pytest.fixture(scope="session")
def product(server: Server) -> Product:
    """How a test asks it."""
    return Product(f"{server.host}:{server.port}")
