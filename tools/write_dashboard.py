"""Writes docs/grafana.json: a Grafana dashboard over `/metrics`.

python -m tools.write_dashboard
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "grafana.json"
_HEIGHT, _WIDTH, _COLUMNS = 8, 8, 24
_RATE = "$__rate_interval"


def _quantile(share: float, histogram: str, by: str = "tier") -> str:
    return (
        f"histogram_quantile({share}, "
        f"sum by (le, {by}) (rate(repartee_{histogram}_bucket[{_RATE}])))"
    )


def _rate(counter: str, by: str = "") -> str:
    inner = f"rate(repartee_{counter}[{_RATE}])"
    return f"sum by ({by}) ({inner})" if by else f"sum({inner})"


def _share(part: str, whole: str) -> str:
    return f"{_rate(part)} / {_rate(whole)}"


# Row, then its panels: title, unit, and each line's legend and query.
ROWS: list[tuple[str, list[tuple[str, str, dict[str, str]]]]] = [
    (
        "What people feel",
        [
            (
                "Time to first token",
                "s",
                {
                    "p50 {{tier}}": _quantile(0.5, "time_to_first_token_seconds"),
                    "p99 {{tier}}": _quantile(0.99, "time_to_first_token_seconds"),
                },
            ),
            (
                "Gap between chunks",
                "s",
                {
                    "p50 {{tier}}": _quantile(0.5, "chunk_gap_seconds"),
                    "p99 {{tier}}": _quantile(0.99, "chunk_gap_seconds"),
                },
            ),
            ("Wait before running, p99", "s", {"{{tier}}": _quantile(0.99, "queue_seconds")}),
            ("Answers ended", "reqps", {"{{outcome}}": _rate("responses_total", "outcome")}),
            (
                "Answers running",
                "short",
                {"{{tier}}": "sum by (tier) (repartee_responses_running)"},
            ),
            ("HTTP and upgrades", "reqps", {"{{status}}": _rate("http_requests_total", "status")}),
        ],
    ),
    (
        "Engine",
        [
            ("Tokens", "short", {"{{kind}} /s": _rate("tokens_total", "kind")}),
            (
                "Batch and queue",
                "short",
                {
                    "running {{worker}}": "repartee_worker_running",
                    "waiting {{worker}}": "repartee_worker_waiting",
                },
            ),
            (
                "KV blocks",
                "percentunit",
                {
                    "used {{worker}}": "repartee_worker_used_blocks / repartee_worker_blocks",
                    "cached {{worker}}": "repartee_engine_cached_blocks / repartee_worker_blocks",
                    "retained {{worker}}": "repartee_engine_retained_blocks"
                    " / repartee_worker_blocks",
                },
            ),
            (
                "Prompt tokens found in the cache",
                "percentunit",
                {"hits": _share("cached_tokens_total", "prompt_tokens_total")},
            ),
            (
                "Speculation: guesses accepted",
                "percentunit",
                {"accepted": _share("engine_accepted_tokens_total", "engine_drafted_tokens_total")},
            ),
            ("Suspensions", "short", {"per s": _rate("engine_suspensions_total")}),
            (
                "Where a step's time goes",
                "percentunit",
                {
                    part: f"{_rate(f'engine_{part}_seconds_total', 'worker')}"
                    for part in ("schedule", "prepare", "forward", "sample", "text")
                },
            ),
            ("Drafts computed", "short", {"tokens/s": _rate("engine_warm_tokens_total")}),
            (
                "Steps since",
                "s",
                {
                    "step {{worker}}": "repartee_worker_step_age_seconds",
                    "beat {{worker}}": "repartee_worker_beat_age_seconds",
                },
            ),
        ],
    ),
    (
        "Gateways and Redis",
        [
            ("Sockets", "short", {"{{instance}}": "repartee_connections"}),
            ("Bytes for slow readers", "bytes", {"{{instance}}": "repartee_pending_bytes"}),
            (
                "Slow readers",
                "short",
                {
                    "merged deltas /s": _rate("merged_deltas_total"),
                    "cut /s": _rate("slow_closes_total"),
                },
            ),
            (
                "Answers that moved",
                "short",
                {
                    "taken over /s": _rate("taken_over_total"),
                    "handed over /s": _rate("handed_over_total"),
                },
            ),
            (
                "Redis round trips",
                "s",
                {
                    "p50 {{instance}}": _quantile(0.5, "redis_seconds", "instance"),
                    "p99 {{instance}}": _quantile(0.99, "redis_seconds", "instance"),
                },
            ),
            ("Redis faults", "short", {"{{worker}} /s": _rate("redis_errors_total", "worker")}),
            ("Bytes not yet in Redis", "bytes", {"{{worker}}": "repartee_unsent_bytes"}),
        ],
    ),
]


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row, contents in ROWS:
        panels.append(
            {
                "type": "row",
                "title": row,
                "id": len(panels) + 1,
                "gridPos": {"h": 1, "w": _COLUMNS, "x": 0, "y": y},
                "collapsed": False,
                "panels": [],
            }
        )
        y += 1
        for number, (title, unit, lines) in enumerate(contents):
            x = number * _WIDTH % _COLUMNS
            y += _HEIGHT if number and x == 0 else 0
            panels.append(_panel(len(panels) + 1, title, unit, lines, x, y))
        y += _HEIGHT
    return {
        "title": "Repartee",
        "uid": "repartee",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
        },
        "panels": panels,
    }


def _panel(
    number: int, title: str, unit: str, lines: dict[str, str], x: int, y: int
) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "id": number,
        "title": title,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"h": _HEIGHT, "w": _WIDTH, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(65 + index), "expr": query, "legendFormat": legend}
            for index, (legend, query) in enumerate(lines.items())
        ],
    }


def main() -> None:
    """Write the file."""
    PAGE.write_text(json.dumps(dashboard(), indent=1) + "\n")


if __name__ == "__main__":
    main()
