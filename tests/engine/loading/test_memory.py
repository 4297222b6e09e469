"""What loading the default model costs in memory, measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from engine.loading import load_model
from tests.engine.model_file import default_model

_PROGRAM = """
import json, sys
from pathlib import Path

def status_kb(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

import torch
before = status_kb("VmRSS")
from engine.loading import load_model
model = load_model(Path(sys.argv[1]))
# Not getrusage's peak, which outlives exec: it would be the test runner's.
peak = status_kb("VmHWM")
heavy = sorted({"transformers", "gguf"} & set(sys.modules))
print(
    json.dumps(
        {"before": before, "after": status_kb("VmRSS"), "peak": peak, "heavy": heavy}
    )
)
"""


def test_loading_costs_little_more_than_the_weights() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(default_model())],
        capture_output=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    figures = json.loads(done.stdout)
    assert figures["heavy"] == []
    file_kb = default_model().stat().st_size / 1024
    # Weights once, the tokenizer's tables and the libraries it brings.
    assert figures["after"] - figures["before"] < file_kb + 100 * 1024
    assert figures["peak"] - figures["before"] < file_kb + 150 * 1024
    assert figures["peak"] < 600 * 1024


def test_the_tied_embedding_is_held_once() -> None:
    model = load_model(default_model()).model
    assert model.config.tied
    assert model.weight_bytes < 1.05 * default_model().stat().st_size
