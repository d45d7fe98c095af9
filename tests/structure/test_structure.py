"""The house rules that a linter does not know."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "airflow_streamstate"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
FORBIDDEN_NAMES = {"utils", "helpers", "common", "core", "misc"}


def test_no_file_is_longer_than_800_lines() -> None:
    """A file above 800 lines holds more than one concern."""
    long = {str(p.relative_to(ROOT)): n for p in MODULES if (n := len(p.read_text().splitlines())) > 800}
    assert long == {}


def test_no_room_is_a_drawer() -> None:
    """No module is called utils, helpers, common or core: one room per concern."""
    assert [str(p) for p in PACKAGE.rglob("*") if p.stem in FORBIDDEN_NAMES] == []


@pytest.mark.parametrize("path", TESTS, ids=lambda p: str(p.relative_to(ROOT / "tests")))
def test_every_test_states_its_promise(path: Path) -> None:
    """Each test has a sentence that states what it promises."""
    silent = [
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]
    assert silent == []


def test_the_root_imports_nothing() -> None:
    """Importing a room in a Spark driver never imports Airflow, because the root imports nothing."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    assert [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)] == []


@pytest.mark.fast
def test_every_room_can_be_imported() -> None:
    """No module of the wheel fails at import, but for those that need pyspark."""
    import airflow_streamstate

    names = [info.name for info in pkgutil.walk_packages(airflow_streamstate.__path__, "airflow_streamstate.")]
    for name in names:
        importlib.import_module(name)
    assert "airflow_streamstate.controller.client" in names
