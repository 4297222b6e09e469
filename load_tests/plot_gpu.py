"""Draws a card's figures beside vLLM's: `python -m load_tests.plot_gpu RESULTS.json OUT.svg`.

A bar a figure, as a multiple of vLLM's; for times to the first token how many times sooner.
A mark shows where the aim lies.
"""

from __future__ import annotations

import argparse
import json
from html import escape
from pathlib import Path
from typing import Any

ROW = 24
LEFT = 300
SCALE = 110
WIDTH = LEFT + 640
MOST = 4.6
OURS, AIM, GRID = "#2f6fab", "#c2571a", "#d8d8d8"


def ratios(results: dict[str, Any]) -> list[tuple[str, float, float | None]]:
    """(label, our multiple of vLLM's figure, the aim's) in the file's order."""
    rows: list[tuple[str, float, float | None]] = []
    for row in results["decode_tok_s"]:
        label = f"{row['shape']} {row['weights']}, batch {row['batch']}: {row['ours']:,.0f} tok/s"
        rows.append((label, row["ours"] / row["vllm"], row["aim"] and row["aim"] / row["vllm"]))
    for row in results["ttft_ms"]:
        label = f"{row['shape']} {row['weights']}, first token of {row['prompt']}: {row['ours']} ms"
        rows.append((label, row["vllm"] / row["ours"], row["aim"] and row["vllm"] / row["aim"]))
    return rows


def draw(results: dict[str, Any]) -> str:
    """The plot as SVG."""
    rows = ratios(results)
    height = 70 + ROW * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="10" y="20" font-size="14">Times as fast as vLLM 0.26.0 on one '
        f"{escape(results['card'])}, {escape(results['date'])}; the mark is the aim</text>",
    ]
    for tick in range(5):
        x = LEFT + tick * SCALE
        colour = "#555555" if tick == 1 else GRID
        parts.append(f'<line x1="{x}" y1="36" x2="{x}" y2="{height - 24}" stroke="{colour}"/>')
        parts.append(f'<text x="{x}" y="{height - 8}" text-anchor="middle">{tick}</text>')
    for index, (label, ratio, aim) in enumerate(rows):
        y = 42 + index * ROW
        length = min(ratio, MOST) * SCALE
        beyond = max(length, min(aim or 0.0, MOST) * SCALE)
        parts.append(f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(label)}</text>')
        parts.append(
            f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="16" fill="{OURS}"/>'
            f'<text x="{LEFT + beyond + 6:.1f}" y="{y + 12}">{ratio:.2f}</text>'
        )
        if aim:
            x = LEFT + min(aim, MOST) * SCALE
            parts.append(
                f'<rect x="{x - 1.5:.1f}" y="{y - 3}" width="3" height="22" fill="{AIM}"/>'
            )
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    options.out.write_text(draw(json.loads(options.results.read_text())))


if __name__ == "__main__":
    main()
