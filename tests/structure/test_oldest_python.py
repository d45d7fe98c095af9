"""What drivers run needs no more than Python 3.9; ``tests/compat/test_python39.py`` runs it there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.launch.driver_zip import PACKAGE, TRAVELLING
from airflow_streamstate.launch.spark_home import OLDEST_PYTHON

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ROOT / PACKAGE / "launch"
STARTS = (LAUNCH / "emr_start.py", LAUNCH / "kubernetes_start.py")
"""Run by the driver's Python, before the zip."""
OLDER = ROOT / PACKAGE / "older_python.py"
FILES = sorted(
    {
        ROOT / PACKAGE / "__init__.py",
        *STARTS,
        *(path for room in TRAVELLING for path in (ROOT / PACKAGE / room).rglob("*.py")),
        *(path for room in TRAVELLING if (path := ROOT / PACKAGE / f"{room}.py").is_file()),
    }
)
NEWER_NAMES = {
    *("pairwise", "batched", "UTC", "Self", "TypeAlias", "TypeGuard", "ParamSpec", "Concatenate", "assert_never"),
    *("UnionType", "NoneType", "KW_ONLY", "StrEnum", "file_digest", "stdlib_module_names", "tomllib", "TaskGroup"),
    *("ExceptionGroup", "BaseExceptionGroup", "get_annotations", "aclosing", "reveal_type", "override", "anext"),
}
NEWER_KEYWORDS = {
    "zip": {"strict"},
    "dataclass": {"slots", "kw_only", "match_args", "weakref_slot"},
    "field": {"kw_only"},
    "stat": {"follow_symlinks"},
    "TemporaryDirectory": {"ignore_cleanup_errors"},
    "insort": {"key"},
    "bisect_left": {"key"},
    "bisect_right": {"key"},
}
FEWEST_ARGUMENTS = {"format_exception": 3, "print_exception": 3, "format_exception_only": 2}
"""Of ``traceback``: Python 3.10 takes the error alone."""
TYPES = re.compile(r"None|int|str|bytes|float|bool|list|dict|tuple|set|frozenset|type|object|_?[A-Z]\w*[a-z]\w*")
SEEN_HERE = ("itertools.pairwise", "typing.TypeAlias", "dataclasses.dataclass(slots)")
"""What vermin reports for type checkers' imports and for ``with_newer``."""


def newer_in(text: str) -> list[str]:
    """What a file uses that Python 3.9 lacks, with the numbers of its lines."""
    try:
        tree = ast.parse(text, feature_version=OLDEST_PYTHON)
    except SyntaxError as error:
        return [f"{error.lineno}: {error.msg}"]
    skipped = set(_for_checkers(tree))
    if "from __future__ import annotations" in text:
        skipped |= set(_annotations(tree))
    nodes = [node for node in ast.walk(tree) if node not in skipped]
    found = [(node, what) for node in nodes if (what := _newer(node))]
    return [f"{node.lineno}: {what}" for node, what in found]


def _for_checkers(tree: ast.AST) -> Iterator[ast.AST]:
    """All below ``if TYPE_CHECKING:``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for statement in node.body:
                yield from ast.walk(statement)


def _annotations(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if annotation is not None:
                yield from ast.walk(annotation)


def _newer(node: ast.AST) -> str:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return "a union at run time" if _is_type(node.left) or _is_type(node.right) else ""
    if isinstance(node, ast.ImportFrom):
        names = {alias.name for alias in node.names} if not str(node.module).startswith(PACKAGE) else set()
        return " ".join(sorted(names & NEWER_NAMES))
    if isinstance(node, ast.Import):
        return " ".join(sorted({alias.name for alias in node.names} & NEWER_NAMES))
    if isinstance(node, ast.Attribute):
        return node.attr if node.attr in NEWER_NAMES else ""
    return _newer_call(node) if isinstance(node, ast.Call) else ""


def _is_type(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript):
        return _is_type(node.value)
    name = {ast.Name: "id", ast.Attribute: "attr", ast.Constant: "value"}.get(type(node))
    return name is not None and TYPES.fullmatch(str(getattr(node, name))) is not None


def _newer_call(node: ast.Call) -> str:
    name = str(getattr(node.func, "id", getattr(node.func, "attr", "")))
    keywords = {str(keyword.arg) for keyword in node.keywords} & NEWER_KEYWORDS.get(name, set())
    if keywords:
        return f"{name}({', '.join(sorted(keywords))})"
    is_short = len(node.args) < FEWEST_ARGUMENTS.get(name, 0)
    return f"{name} of the error alone" if is_short else ""


def _allowed(path: Path, found: str) -> bool:
    """``older_python`` names what it replaces; ``frozen`` has its own ``dataclass``, which knows ``kw_only``."""
    text = path.read_text(encoding="utf-8")
    return (path == OLDER and found.endswith("zip(strict)")) or (
        found.endswith("dataclass(kw_only)") and f"from {PACKAGE}.frozen import dataclass\n" in text
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / PACKAGE)))
def test_what_drivers_run_uses_nothing_newer(path: Path) -> None:
    """``airflow_streamstate.older_python`` has what replaces it."""
    found = newer_in(path.read_text(encoding="utf-8"))
    assert [one for one in found if not _allowed(path, one)] == []


NEWER = (
    "zip(a, b, strict=True)",
    "isinstance(x, int | str)",
    "isinstance(x, Stopped | errors.Missing)",
    "Found = dict[str, Manifest | None]",
    "def f(x: int | None): ...",
    "match x:\n    case 1: pass",
    "@dataclass(slots=True)\nclass A: ...",
    "@dataclasses.dataclass(frozen=True, kw_only=True)\nclass A: ...",
    "x: int = field(kw_only=True)",
    "import itertools\nitertools.pairwise(x)",
    "from itertools import pairwise",
    "from datetime import UTC",
    "datetime.UTC",
    "from typing import Self",
    "import tomllib",
    "hashlib.file_digest(x, 'sha256')",
    "traceback.format_exception(error)",
    "path.stat(follow_symlinks=False)",
    "bisect.insort(x, y, key=len)",
)


@pytest.mark.parametrize("text", NEWER)
def test_what_is_newer_is_seen(text: str) -> None:
    """The check would fail."""
    assert len(newer_in(text)) == 1


def test_what_is_not_newer_is_left() -> None:
    """Sets and flags have ``|``, too; annotations are texts; what type checkers import is not run."""
    lines = (
        "from __future__ import annotations",
        "if TYPE_CHECKING:",
        "    from typing import Self",
        "def f(x: int | None) -> str | None: ...",
        "FLAGS = os.O_RDONLY | os.O_CREAT",
        "found = PACES | {1} | known",
        "zip(a, b)",
    )
    assert newer_in("\n".join(lines)) == []


def test_vermin_finds_nothing_newer() -> None:
    """It knows what each version added to the standard library; what it cannot see is checked above."""
    pytest.importorskip("vermin")
    exclusions = [part for name in (*SEEN_HERE, "zip(strict)") for part in ("--exclude", name)]
    oldest = ".".join(map(str, OLDEST_PYTHON))
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from vermin import main; main()", f"-t={oldest}-", "--violations", "--no-tips"),
            *("--processes=1", *exclusions, *map(str, FILES)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
