"""Show which tests enforce the laws: ``python docs/laws.py``; ``python docs/laws.py 3`` shows those of Law 3.

The summary has a line per law: its deliberate breaks in ``tests/mutation/laws.toml``, and how many tests of each tier
have ``Law N`` in their name or docstring. With the number of a law: each break and each test.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import tomllib

DOCS = Path(__file__).resolve().parent
TESTS = DOCS.parent / "tests"
LAWS = range(1, 18)
NAMED = re.compile(r"\blaws?[ _]((?:\d+(?:, | and |_and_|_)?)+)", re.IGNORECASE)


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


@cache
def _tests_with_tiers() -> tuple[tuple[str, set[int], set[str]], ...]:
    sys.path.insert(0, str(TESTS))
    from support import tiers

    found = []
    for path in sorted(TESTS.rglob("test_*.py")):
        relative = path.relative_to(TESTS)
        if relative.parts[0] == "structure":
            continue
        for name, laws, marks in _tests(ast.parse(path.read_text(encoding="utf-8"))):
            found.append((f"{relative}::{name}", laws, tiers.tiers_of(relative.parts[0], marks)))
    return tuple(found)


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


def summary() -> str:
    """A line per law: the number of its breaks, and of its tests by tier."""
    of_laws, broken = tests_of_laws(), breaks()
    tiers = list(of_laws[1])
    lines = ["law  breaks  " + "  ".join(f"{tier:>6}" for tier in tiers)]
    for law, by_tier in of_laws.items():
        count = sum(one["law"] == law for one in broken)
        lines.append(f"{law:>3}  {count:>6}  " + "  ".join(f"{len(by_tier[tier]):>6}" for tier in tiers))
    return "\n".join(lines)


def details(law: int) -> str:
    """Each break of a law with the tests that catch it, then each test that names the law."""
    lines = []
    for one in breaks():
        if one["law"] == law:
            lines += [f"broken: {one['words']} ({one['file']})", *(f"    {test}" for test in one["tests"])]
    for tier, tests in tests_of_laws()[law].items():
        lines += [f"{tier}: tests/{test}" for test in sorted(tests)]
    return "\n".join(lines)


if __name__ == "__main__":
    print(details(int(sys.argv[1])) if sys.argv[1:] else summary())
