"""The table of rooms that contributing.md opens with is that of the package, and its numbers stay small."""

from __future__ import annotations

import ast
import re
import runpy
from collections import Counter
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "airflow_streamstate"
FILES = sorted(PACKAGE.rglob("*.py"))
MOST_FILES, MOST_SHARED_NAMES, MOST_LINES = 351, 10, 800


def _rooms() -> dict[str, object]:
    return runpy.run_path(str(ROOT / "docs" / "rooms.py"))


def test_the_table_and_the_picture_are_those_of_the_package() -> None:
    """``python docs/rooms.py`` writes both."""
    rooms = _rooms()
    page = rooms["PAGE"].read_text(encoding="utf-8")  # type: ignore[attr-defined]
    assert rooms["refreshed"](page) == page  # type: ignore[operator]
    assert rooms["PICTURE"].read_text(encoding="utf-8") == rooms["picture"]()  # type: ignore[operator,attr-defined]


def test_each_file_of_the_package_is_in_one_room() -> None:
    """A stranger finds each file by one row of the table."""
    rooms = _rooms()["ROOMS"]
    held = Counter(path for room in rooms for path in room.files())  # type: ignore[attr-defined]
    outside = [path for path in FILES if held[path] != 1 and path != PACKAGE / "__init__.py"]
    assert outside == []


def test_there_are_few_files_and_none_is_long() -> None:
    """A file is a noun that a reader of the docs knows; two rooms seldom have one of the same name."""
    assert len(FILES) <= MOST_FILES
    assert [str(path) for path in FILES if len(path.read_text(encoding="utf-8").splitlines()) > MOST_LINES] == []
    examples = PACKAGE / "example_dags"
    names = Counter(path.stem for path in FILES if examples not in path.parents)
    shared = sorted(name for name, count in names.items() if count > 1 and name not in {"__init__", "options"})
    assert len(shared) <= MOST_SHARED_NAMES, shared


def test_every_file_that_is_mutated_exists() -> None:
    """A pattern that matches nothing would leave decisions out without notice."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]["only_mutate"]
    assert [pattern for pattern in patterns if not list(ROOT.glob(pattern))] == []
    assert len(set(patterns)) == len(patterns)


def test_no_two_classes_have_one_name() -> None:
    """A class is found by its name alone."""
    defined: Counter[str] = Counter()
    for path in FILES:
        defined.update(
            node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)
        )
    assert {name for name, count in defined.items() if count > 1} == set()


def test_every_file_that_the_page_names_exists() -> None:
    """The ways through the code, file by file, lead somewhere."""
    page = (ROOT / "docs" / "project" / "contributing.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[\w-]+/)+[a-z0-9_-]+\.(?:py|toml|md|txt))`", page))
    tops = (ROOT, PACKAGE, ROOT / "docs", ROOT / "tests")
    assert [name for name in sorted(named) if not any((top / name).exists() for top in tops)] == []
