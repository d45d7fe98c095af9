"""Write ``docs/project/law-tests.md`` anew: ``python docs/laws.py``. A test fails when the page is stale.

The page lists the deliberate breaks of ``tests/mutation/laws.toml``, and then the tests whose name or docstring says
``Law N``. The tier of a test is the one in which pytest runs it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomllib

DOCS = Path(__file__).resolve().parent
TESTS = DOCS.parent / "tests"
LAWS = range(1, 18)
NAMED = re.compile(r"\blaws?[ _]((?:\d+(?:, | and |_and_|_)?)+)", re.IGNORECASE)
HEAD = """# Which test holds which law

Written by `python docs/laws.py`. [The guarantees](../explanation/guarantees.md) are the laws;
[contributing](contributing.md#tiers) says when a tier runs. `fast` is the README's test command.

## What a broken law turns red

`tests/mutation/laws.toml` breaks each law of the package on purpose. `python tests/mutation/break_laws.py` makes these
breaks, one at a time, in a copy of the repository, and fails where a named test stays green. All of these tests are of
the tier `fast`; the tier `full` makes a sample of the breaks, another one at each commit.

| law | what is broken | in | what turns red |
|---|---|---|---|
"""
BY_NAME = """
## Tests that name a law

From the names and docstrings of the tests.

| law | tier | tests |
|---|---|---|
"""


def tests_of_laws() -> dict[int, dict[str, set[str]]]:
    """For each law and tier the tests, as ``folder/file.py::test``."""
    sys.path.insert(0, str(TESTS))
    from support import tiers

    found: dict[int, dict[str, set[str]]] = {law: {tier: set() for tier in tiers.TIERS} for law in LAWS}
    for test, laws, of_tiers in _tests_with_tiers():
        for law in laws & set(LAWS):
            for tier in of_tiers:
                found[law][tier].add(test)
    return found


def tests_of_tier(tier: str) -> set[str]:
    """The tests of a tier, as ``folder/file.py::test``."""
    return {test for test, of_tiers in tiers_by_test().items() if tier in of_tiers}


def tiers_by_test() -> dict[str, set[str]]:
    """The tiers of each test, by ``folder/file.py::test``."""
    return {test: of_tiers for test, _, of_tiers in _tests_with_tiers()}


def breaks() -> list[dict[str, Any]]:
    """The deliberate breaks, by law, as ``tests/mutation/laws.toml`` has them."""
    found = tomllib.loads((TESTS / "mutation" / "laws.toml").read_text(encoding="utf-8"))["break"]
    return sorted(found, key=lambda one: one["law"])


def _tests_with_tiers() -> Iterator[tuple[str, set[int], set[str]]]:
    sys.path.insert(0, str(TESTS))
    from support import tiers

    for path in sorted(TESTS.rglob("test_*.py")):
        relative = path.relative_to(TESTS)
        if relative.parts[0] == "structure":
            continue
        for name, laws, marks in _tests(ast.parse(path.read_text(encoding="utf-8"))):
            yield f"{relative}::{name}", laws, tiers.tiers_of(relative.parts[0], marks)


def _tests(tree: ast.Module) -> Iterator[tuple[str, set[int], set[str]]]:
    of_module = {
        mark
        for node in tree.body
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "pytestmark" for target in node.targets)
        for mark in _marks(node.value)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            said = f"{node.name} {ast.get_docstring(node) or ''}"
            laws = {int(number) for group in NAMED.findall(said) for number in re.findall(r"\d+", group)}
            # The marks of single parameters are not the test's.
            decorators = [one for one in node.decorator_list if "parametrize" not in ast.dump(one)]
            yield node.name, laws, of_module.union(*(_marks(one) for one in decorators))


def _marks(node: ast.expr) -> set[str]:
    return {
        inner.attr
        for inner in ast.walk(node)
        if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Attribute) and inner.value.attr == "mark"
    }


def page() -> str:
    """The page as it should be."""
    broken = []
    for one in breaks():
        module = one["file"].removeprefix("airflow_streamstate/")
        seen_by = ", ".join(f"`{test.removeprefix('tests/')}`" for test in one["tests"])
        broken.append(f"| {one['law']} | {one['words']} | `{module}` | {seen_by} |\n")
    rows = []
    for law, by_tier in tests_of_laws().items():
        for tier, names in by_tier.items():
            files = sorted({name.partition("::")[0] for name in names})
            listed = ", ".join(f"`{file}`" for file in files)
            rows.append(f"| {law} | {tier} | {listed or 'none'} |\n")
    return HEAD + "".join(broken) + BY_NAME + "".join(rows)


if __name__ == "__main__":
    (DOCS / "project" / "law-tests.md").write_text(page(), encoding="utf-8")
