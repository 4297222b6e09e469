"""`docs/cases.md` names every known case once, and only tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Numbers left out were never given.
NUMBERS = {
    "TXT": (1, 2, 5, 6, 9),
    "SPC": (1, 3),
    "STP": (1, 2, 4, 6),
    "TPL": (1, 2, 4, 6, 7),
    "SMP": (1, 2, 3, 4, 5, 7, 9, 11),
    "BAT": (1,),
    "CTX": (1, 2, 4, 5),
    "CAN": (1, 2, 5, 7, 8),
    "SLW": (1, 3, 4),
    "RES": (1, 3, 4, 6),
    "PNG": (1, 3, 4),
    "FRM": (1, 2, 4, 6, 7, 9, 10, 11),
    "AUT": (1, 2, 4, 6),
    "ORG": (1, 3, 4),
    "PRI": (1, 2, 4, 6),
    "PFX": (1, 2, 6),
    "SPD": (1, 2, 4, 6),
    "QNT": (1, 3),
    "GGF": (1, 2, 4, 7, 8),
    "MEM": (1, 3, 4),
    "SHT": (1, 2),
    "RDS": (2, 3, 6, 7),
    "MET": (1, 2),
    "HLT": (1,),
    "USG": (1, 2),
    "FIN": (1, 2),
    "XSS": (1,),
    "UIX": (1, 3, 4),
    "A11": (1, 3),
}
IDS = [f"{kind}-{number:02}" for kind, numbers in NUMBERS.items() for number in numbers]
_NODE = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


@cache
def rows() -> list[list[str]]:
    """Cells of the table's rows, its head left out."""
    lines = (ROOT / "docs" / "cases.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:1] == "|"]
    return cells[2:]


@cache
def functions_of(path: str) -> set[str]:
    """Names of the test functions in a file, those in classes included."""
    tree = ast.parse((ROOT / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, functions)}


def test_every_case_is_there_once_and_in_order() -> None:
    assert len(IDS) == 99
    assert [row[0] for row in rows()] == IDS


@pytest.mark.parametrize("case_id", IDS)
def test_a_case_has_its_tests(case_id: str) -> None:
    _, kind, behaviour, tests = next(row for row in rows() if row[0] == case_id)
    assert kind
    assert behaviour
    nodes = _NODE.findall(tests)
    assert _NODE.sub("", tests).strip(", ") == ""
    assert nodes
    assert len(nodes) == len(set(nodes))
    for path, name in nodes:
        assert name in functions_of(path), f"{path}::{name}"
