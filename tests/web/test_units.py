"""The page's modules that need no browser, under node's own test runner."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable

JS = Path(__file__).parent / "js"


@pytest.mark.parametrize("path", sorted(JS.glob("*.test.mjs")), ids=lambda path: path.stem)
def test_javascript(path: Path) -> None:
    # Playwright brings a node of its own, so that none has to be installed.
    node, _ = compute_driver_executable()
    result = subprocess.run(
        [node, "--test", "--test-reporter=tap", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "# tests 0" not in result.stdout
