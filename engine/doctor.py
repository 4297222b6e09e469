"""What this machine offers the engine, as one JSON document on standard output.

Run apart from the command line (`python -m engine.doctor`), which must not import
torch itself.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from engine.worker.build import choose_device
from kernels import native

# Instruction sets that the kernels or torch's own libraries make use of.
ISA_FLAGS = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx_vnni",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "i8mm",
)


def examine() -> dict[str, Any]:
    """Versions, CPU, memory, native kernels and GPUs.

    Returns:
        A document of plain values; sizes in bytes.
    """
    return {
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("torch", "triton", "transformers")},
        "cpu": _cpu(),
        "memory_bytes": _memory_bytes(),
        "native": _native(),
        "gpus": _gpus(),
        "auto_device": choose_device("auto"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> dict[str, Any]:
    fields: dict[str, str] = {}
    # /proc is Linux's own; elsewhere the name and the flags stay unknown.
    if Path("/proc/cpuinfo").is_file():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return {
        "name": fields.get("model name") or platform.processor() or platform.machine(),
        "isa": [flag for flag in ISA_FLAGS if flag in flags],
        "usable_cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "torch_capability": torch.backends.cpu.get_cpu_capability(),
    }


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _native() -> dict[str, Any]:
    """Whether the compiled CPU kernels are there, for which instructions, or why not."""
    status = native.status()
    return {"available": status.available, "isa": status.isa, "reason": status.reason}


def _gpus() -> list[dict[str, Any]]:
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        found.append(
            {
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "memory_bytes": total,
                "free_bytes": free,
            }
        )
    return found


if __name__ == "__main__":
    json.dump(examine(), sys.stdout)
