"""The parts of each step as a stacked drawing, in SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from engine.step_trace import PARTS, StepRecord

_WIDTH, _HEIGHT = 960, 320
_LEFT, _TOP, _BOTTOM = 56, 28, 34
# Told apart by the colour-blind too: Okabe and Ito's.
_COLOURS = ("#56b4e9", "#009e73", "#0072b2", "#e69f00", "#cc79a7", "#999999")
_STYLE = "font-family='sans-serif' font-size='12' fill='#333'"


def svg(records: Sequence[StepRecord]) -> str:
    """A bar for each step, milliseconds upwards."""
    most_ms = max((record.total_s * 1000 for record in records), default=0.0) or 1.0
    per_ms = (_HEIGHT - _TOP - _BOTTOM) / most_ms
    width = (_WIDTH - _LEFT - 8) / max(len(records), 1)
    shapes = [_label(8 + _LEFT, 16, "milliseconds a step")]
    for place, (part, colour) in enumerate(zip(PARTS, _COLOURS, strict=True)):
        x = _WIDTH - 90 * (len(PARTS) - place)
        shapes.append(f"<rect x='{x}' y='7' width='10' height='10' fill='{colour}'/>")
        shapes.append(_label(x + 14, 16, part))
    foot = _HEIGHT - _BOTTOM
    for share in (0.0, 0.5, 1.0):
        y = foot - share * most_ms * per_ms
        shapes.append(f"<path d='M{_LEFT} {y:.1f}H{_WIDTH - 8}' stroke='#ddd'/>")
        shapes.append(_label(4, y + 4, f"{share * most_ms:.3g}"))
    for number, record in enumerate(records):
        y = float(foot)
        for part, colour in zip(PARTS, _COLOURS, strict=True):
            height = record.part_s(part) * 1000 * per_ms
            y -= height
            x = _LEFT + number * width
            shapes.append(
                f"<rect x='{x:.2f}' y='{y:.2f}' width='{width:.2f}' height='{height:.2f}' "
                f"fill='{colour}'/>"
            )
    shapes.append(_label(_LEFT, _HEIGHT - 10, f"{len(records)} steps, oldest first"))
    head = f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{_HEIGHT}'>"
    return "\n".join([head, "<rect width='100%' height='100%' fill='white'/>", *shapes, "</svg>\n"])


def _label(x: float, y: float, text: str) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' {_STYLE}>{escape(text)}</text>"
