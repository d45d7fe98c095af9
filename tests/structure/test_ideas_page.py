"""docs/explanation/ideas.md is made of docs/ideas.toml, and names tests that are there."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IDEAS = runpy.run_path(str(ROOT / "docs" / "ideas.py"))
NAMED: list[str] = IDEAS["named_tests"]()


def test_each_document_has_its_rows_and_some_tests() -> None:
    """Five documents; else the one below holds nothing."""
    assert [len(source["row"]) > 10 for source in IDEAS["sources"]()] == [True] * 5
    assert len(NAMED) > 60


@pytest.mark.parametrize("named", NAMED)
def test_what_is_named_is_there(named: str) -> None:
    """File and function, as they are called today."""
    assert IDEAS["is_there"](named)


def test_a_row_without_a_test_says_why() -> None:
    """It is not here, since Spark does it or cannot."""
    rows = [row for source in IDEAS["sources"]() for row in source["row"]]
    assert [row["term"] for row in rows if not row["tests"] and not row["here"].startswith("not ")] == []


def test_the_page_is_as_its_rows_and_the_tests_are() -> None:
    """It is written by ``python docs/ideas.py``."""
    assert (ROOT / "docs" / "explanation" / "ideas.md").read_text() == IDEAS["page"]()
