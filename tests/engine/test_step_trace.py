"""The ring of steps, its table, its trace, and a profile over the fake model."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from engine.profile import REFUSED, main, profile
from engine.step import StepTimes
from engine.step_plot import svg
from engine.step_trace import (
    PARTS,
    StepRecord,
    StepTrace,
    breakdown,
    chrome_trace,
    with_publishes,
)
from tests.fakes.runner import Bench


def record(started_s: float, forward_s: float) -> StepRecord:
    times = StepTimes(0.001, 0.002, forward_s, 0.003, 0.004, 0.005)
    return StepRecord(started_s, times, num_sequences=2, num_tokens=9, num_sampled=2)


def test_old_steps_fall_out() -> None:
    trace = StepTrace(capacity=3)
    for i in range(5):
        trace.add(record(float(i), 0.01))
    assert [r.started_s for r in trace.records] == [2.0, 3.0, 4.0]
    assert trace.num_added == 5


def test_the_table_has_each_part_and_adds_up() -> None:
    text = breakdown([record(0.0, 0.01), record(1.0, 0.03)])
    rows = [line.split("|")[1:-1] for line in text.splitlines()[2:]]
    totals = {row[0].strip(): float(row[1]) for row in rows}
    assert totals.keys() == {*PARTS, "step"}
    assert totals["forward"] == 40.0
    assert sum(totals[part] for part in PARTS) == pytest.approx(totals["step"]) == 70.0
    assert "| step     |     70.0 | 100.0%" in text


def test_nothing_ran() -> None:
    assert "| step     |      0.0 |" in breakdown([])
    assert chrome_trace([])["traceEvents"] == []


def test_parts_follow_each_other_inside_their_step() -> None:
    events = chrome_trace([record(1.0, 0.01), record(2.0, 0.02)])["traceEvents"]
    assert [event["name"] for event in events] == ["step 0", *PARTS, "step 1", *PARTS]
    step, *parts = events[: 1 + len(PARTS)]
    assert step["ts"] == parts[0]["ts"] == 1e6
    for part, following in pairwise(parts):
        assert part["ts"] + part["dur"] == pytest.approx(following["ts"])
    assert sum(part["dur"] for part in parts) == pytest.approx(step["dur"])
    assert step["args"] == {"sequences": 2, "tokens": 9, "sampled": 2}


def test_the_engine_records_each_step() -> None:
    bench = Bench()
    bench.add("a", "hello", max_tokens=6)
    bench.run()
    records = bench.engine.trace.records
    assert len(records) == len(bench.runner.plans) == bench.engine.totals.steps
    assert sum(r.num_sampled for r in records) == 6
    assert all(r.times.forward_s > 0 for r in records)
    assert records[0].started_s < records[-1].started_s


def test_a_profile_answers_its_chats(tmp_path: Path) -> None:
    bench = Bench(num_blocks=512)
    records = profile(bench.engine, num_chats=3, num_prompt_words=5, num_answer_tokens=7)
    assert sum(r.num_sampled for r in records) == 21
    assert not bench.engine.has_work()
    assert sum(r.times.publish_s for r in records) > 0


def test_the_drawing_has_a_bar_for_each_part_of_each_step() -> None:
    records = [record(0.0, 0.01), record(1.0, 0.025)]
    drawing = ElementTree.fromstring(svg(records))
    bars = [
        (float(shape.get("x", "")), float(shape.get("y", "")), float(shape.get("height", "")))
        for shape in drawing.iter("{http://www.w3.org/2000/svg}rect")
        if shape.get("width") not in ("100%", "10")
    ]
    assert len(bars) == 2 * len(PARTS)
    first, second = bars[: len(PARTS)], bars[len(PARTS) :]
    assert sum(bar[2] for bar in second) / sum(bar[2] for bar in first) == pytest.approx(
        records[1].total_s / records[0].total_s, rel=0.01
    )
    # Upon each other, side by side.
    assert first[1][1] + first[1][2] == pytest.approx(first[0][1], abs=0.02)
    assert second[0][0] > first[0][0]
    assert ElementTree.fromstring(svg([])).tag.endswith("svg")


def test_writes_belong_to_the_step_before_them() -> None:
    records = [record(1.0, 0.01), record(2.0, 0.01)]
    writes = [(0.5, 9.0), (1.1, 0.25), (1.9, 0.5), (7.0, 0.125)]
    times = [r.times.publish_s for r in with_publishes(records, writes)]
    assert times == [0.75, 0.125]


def test_a_report_says_what_disagrees() -> None:
    bench = Bench()
    bench.add("a", "hello", max_tokens=6)
    bench.engine.step()
    report = bench.engine.report()
    assert report.fault == ""
    assert len(report.records) == 1
    bench.engine.scheduler.running[0].block_table.pop()
    assert bench.engine.report().fault == "a computed past its blocks"


def test_a_missing_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(tmp_path / "none.gguf")]) == REFUSED
    assert capsys.readouterr().err.count("\n") == 1
