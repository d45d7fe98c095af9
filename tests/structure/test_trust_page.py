"""docs/explanation/trust.md names a test for each attack, and the tests are there."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "trust.md").read_text(encoding="utf-8")
LINK = re.compile(r"\[test\]\(https://github\.com/airflow-streamstate/airflow-streamstate/blob/main/([^)#]+)#(\w+)\)")
ROWS = [line for part in PAGE.split("\n## ") if "| test |\n" in part for line in part.splitlines() if line[:2] == "| "]
ATTACKS = [row for row in ROWS if not row.endswith("| test |")]


@functools.cache
def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_attack_has_a_test() -> None:
    """A line without one is a hope."""
    assert len(ATTACKS) > 20
    assert [row for row in ATTACKS if not LINK.search(row.rpartition(" | ")[2])] == []


@pytest.mark.parametrize(("path", "name"), LINK.findall(PAGE))
def test_what_is_linked_is_there(path: str, name: str) -> None:
    """File and function, as they are called today."""
    assert name.startswith("test_")
    assert name in functions_of(ROOT / path)


def test_everybody_of_the_policy_is_on_the_page() -> None:
    """Who is trusted with what."""
    said = PAGE.partition("## Who is trusted")[2].partition("\n## ")[0]
    everybody = ["controller", "driver", "job script", "executors", "watcher", "api-server", "viewer"]
    assert [who for who in [*everybody, "author of a stream's file"] if who not in said] == []
