"""The laws: each has a line in the documentation and tests that name it."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = runpy.run_path(str(ROOT / "docs" / "laws.py"))
INVARIANTS = (ROOT / "docs" / "explanation" / "guarantees.md").read_text()
LAWS = [int(number) for number in re.findall(r"^\| (\d+) \|", INVARIANTS, re.MULTILINE)]


def _tests_naming(pattern: str) -> list[str]:
    return [
        str(path)
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.parent.name != "structure" and re.search(pattern, path.read_text())
    ]


def test_the_laws_are_all_written_down() -> None:
    """docs/explanation/guarantees.md has the seventeen laws in order."""
    assert list(range(1, 18)) == LAWS


def test_every_law_has_a_test_that_names_it() -> None:
    """A law that no test names is a wish."""
    nobody = [law for law in LAWS if not _tests_naming(rf"Laws? (\d+, )*(\d+ and )?{law}\b")]
    assert nobody == []


def test_every_law_has_a_test_in_the_fast_tier() -> None:
    """The README's test command sees a break of each law."""
    found = COMMAND["tests_of_laws"]()
    assert [law for law, by_tier in found.items() if not by_tier["fast"]] == []


def test_the_command_shows_every_law_with_its_breaks_and_tests() -> None:
    """``python docs/laws.py`` has a line per law, and with a number every break and test of that law."""
    assert [int(line.split()[0]) for line in COMMAND["summary"]().splitlines()[1:]] == LAWS
    details = COMMAND["details"](3)
    assert [one["words"] for one in COMMAND["breaks"]() if one["law"] == 3 and one["words"] not in details] == []
    assert [test for test in COMMAND["tests_of_laws"]()[3]["fast"] if test not in details] == []


def test_every_law_is_broken_on_purpose() -> None:
    """Each law has a break that a test sees; ``python tests/mutation/break_laws.py`` makes them, one at a time."""
    broken = COMMAND["breaks"]()
    assert sorted({one["law"] for one in broken}) == LAWS
    assert len({one["words"] for one in broken}) == len(broken)
    elsewhere = [one["words"] for one in broken if not one["file"].startswith("airflow_streamstate/")]
    assert elsewhere == []


def test_what_a_break_exchanges_is_there_once() -> None:
    """A break whose text is gone, or occurs twice, would break nothing, or something else."""
    broken = COMMAND["breaks"]()
    counted = {one["words"]: (ROOT / one["file"]).read_text().count(one["old"]) for one in broken}
    assert {words: count for words, count in counted.items() if count != 1} == {}
    assert [one["words"] for one in broken if one["old"] == one["new"]] == []


def test_the_tests_that_see_a_break_are_in_the_fast_tier() -> None:
    """The README's test command sees each break: the tests that are named for it exist, and belong to its tier."""
    fast = {f"tests/{test}" for test in COMMAND["tests_of_tier"]("fast")}
    named = [(one["words"], one["tests"]) for one in COMMAND["breaks"]()]
    assert [words for words, tests in named if not tests] == []
    assert [test for _, tests in named for test in tests if test not in fast] == []


def test_every_exact_rule_has_a_test_that_names_it() -> None:
    """The thirteen exact rules were each found by losing rows: each is held by a test."""
    nobody = [rule for rule in range(1, 14) if not _tests_naming(rf"\b1a\.{rule}\b")]
    assert nobody == []


def _texts(path: Path) -> Iterator[str]:
    """The texts of a module that are no documentation of it."""
    tree = ast.parse(path.read_text())
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.value


def test_no_message_sends_a_user_to_a_law_by_its_number() -> None:
    """Who reads an error at night does not know the laws: the message itself states what would be lost."""
    package = ROOT / "airflow_streamstate"
    named = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in package.rglob("*.py")
        for text in _texts(path)
        if re.search(r"\bLaws? \d|\b1a\.\d", text)
    ]
    assert named == []
