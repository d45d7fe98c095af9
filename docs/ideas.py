"""Write ``docs/explanation/ideas.md`` anew: ``python docs/ideas.py``. A test fails when the page is stale.

The rows are in ``docs/ideas.toml``. Each names its tests, as ``tests/folder/file.py::test`` or a whole file; what they
hold is said by their docstrings, and their tier is the one in which pytest runs them.
"""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomllib

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
HEAD = """# Where the ideas come from

Written by `python docs/ideas.py`. Five documents stand behind this package: Samza's pipeline drain, mosaik's snapshot
sync, Malstrom's stateful programs and its stateful source, and the plan of a streaming library. Each row is a term of
one of them: what it is here, or why not on Spark, and the tests that fail when it is no longer so.
[What the tests hold](#the-tests) stands below.
"""
TESTS_HEAD = """
## The tests

[Contributing](../project/contributing.md#tiers) says when a tier runs.

| test | tier | what it holds |
|---|---|---|
"""


def sources() -> list[dict[str, Any]]:
    """The documents with their rows, as ``docs/ideas.toml`` has them."""
    found: list[dict[str, Any]] = tomllib.loads((DOCS / "ideas.toml").read_text(encoding="utf-8"))["source"]
    return found


def named_tests() -> list[str]:
    """What the rows name as proof, each once, in order."""
    return sorted({test for source in sources() for row in source["row"] for test in row["tests"]})


def is_there(named: str) -> bool:
    """Whether a test, a file of tests or a page is there, as it is called today."""
    path, _, function = named.partition("::")
    file = ROOT / path
    return file.is_file() and (not function or function in _functions(file))


def page() -> str:
    """The page as it should be. Raises SystemExit for a test that is not there."""
    gone = [named for named in named_tests() if not is_there(named)]
    if gone:
        raise SystemExit(f"docs/ideas.toml names what is not there: {', '.join(gone)}")
    parts = [HEAD]
    for source in sources():
        parts.append(f"\n## {source['title']}\n\n{source['words']}\n\n| term | here | tests |\n|---|---|---|\n")
        for row in source["row"]:
            links = ", ".join(_link(named) for named in row["tests"])
            parts.append(f"| {row['term']} | {row['here']} | {links} |\n")
    return "".join((*parts, TESTS_HEAD, *_rows_of_tests()))


def _rows_of_tests() -> Iterator[str]:
    tiers = runpy.run_path(str(DOCS / "laws.py"))["tiers_by_test"]()
    for named in filter(_is_test, named_tests()):
        test = named.removeprefix("tests/")
        own = {
            tier for one, of_tiers in tiers.items() if one == test or one.startswith(f"{test}::") for tier in of_tiers
        }
        ordered = ", ".join(tier for tier in ("fast", "full", "named") if tier in own)
        yield f'| <a id="{_anchor(named)}"></a>`{named}` | {ordered} | {_promise(named)} |\n'


def _link(named: str) -> str:
    if not _is_test(named):
        target = Path(named)
        return f"[{target.stem}](../{target.relative_to('docs')})".replace("../explanation/", "")
    path, _, function = named.partition("::")
    words = function.removeprefix("test_").replace("_", " ") or f"all of `{Path(path).name}`"
    return f"[{words}](#{_anchor(named)})"


def _is_test(named: str) -> bool:
    return named.startswith("tests/")


def _anchor(named: str) -> str:
    return re.sub(r"\W+", "-", named.removeprefix("tests/").replace(".py", ""))


def _promise(named: str) -> str:
    """The first paragraph of its docstring, without the rules that it names."""
    path, _, function = named.partition("::")
    file = ROOT / path
    text = _functions(file)[function] if function else ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    words = " ".join((text or "").partition("\n\n")[0].split()).replace("``", "`").replace("|", "\\|")
    return re.sub(r" \((?:Laws?|1a\.)[^)]*\)", "", words)


def _functions(file: Path) -> dict[str, str]:
    """The docstring of each function of a module, by name."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {node.name: ast.get_docstring(node) or "" for node in functions}


if __name__ == "__main__":
    (DOCS / "explanation" / "ideas.md").write_text(page(), encoding="utf-8")
