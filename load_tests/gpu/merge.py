"""Puts what the tuners found into this card's table of launch settings.

python -m load_tests.gpu.merge OUT.json ...
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from kernels.cuda.launch import settings_path

OPS = (
    "int4_gemv", "int4_wgmma", "row_gemv", "rope_attention", "rope_attention_rows", "byte_mma",
    "byte_dot",
)  # fmt: skip


def merge(path: Path, found: list[Path]) -> None:
    """Update the table at `path` with the ops' settings in `found`, later files first."""
    table = json.loads(path.read_text()) if path.exists() else {}
    for file in found:
        new = json.loads(file.read_text())
        table["machine"] = new.get("machine", table.get("machine"))
        for op in OPS:
            table.setdefault(op, {}).update(new.get(op, {}))
    path.write_text(json.dumps(table, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("found", type=Path, nargs="+")
    parser.add_argument("--table", type=Path, help="instead of this machine's card's")
    options = parser.parse_args()
    merge(options.table or settings_path(torch.cuda.get_device_name(0)), options.found)


if __name__ == "__main__":
    main()
