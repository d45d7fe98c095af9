"""Plain English: words that slow a reader down stay out of comments, docstrings and pages."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "airflow_streamstate").rglob("*.py"))
RECORDED = {"rewritten-state.md"}
"""Made of messages that were recorded when they were lived."""
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name not in RECORDED)]
INSTEAD = {
    r"anew": "again; rewritten, rebuilt",
    r"go(es|ne|ing)? on|went on": "continue",
    r"stands?": "is; stays in effect",
    r"lies?": "is stored at, is in",
    r"(is|are|was|were|be) told": "is notified; is reported to",
    r"heard of": "received",
    r"(?-i:for none)": "None: not set",
    r"there is none": "not found; there is no …",
    r"meanwhile": "while it runs; at the same time",
    r"beside": "next to; compared with",
    r"mend(s|ed|ing)?": "fix",
    r"(is|are) to be": "must be, will be",
    r"in words": "as text",
    r"for people": "human-readable",
    r"custody": "lineage",
}
"""Word -> what to write."""
CODE = re.compile(r"```.*?```|``[^`]*``|`[^`]*`|\]\([^)]*\)", re.DOTALL)
NAMES = {"tell", "told", "say", "said", "meanwhile", "anew"}
"""Names of the code that are documented under their own name, as ``name: …``."""


@functools.cache
def _proses() -> list[tuple[str, str]]:
    return [(path.name, CODE.sub("", text)) for path in FILES for text in _prose(path)]


def _prose(path: Path) -> Iterator[str]:
    """The comments and docstrings of a module; what is generated from terms is left to the terms."""
    text = path.read_text(encoding="utf-8")
    found = {
        (node.value.lineno, node.value.col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.start in found):
            yield re.sub(rf"^\s+({'|'.join(NAMES)}): |^\s+:param .*?(?=^\s+:|\Z)", "", token.string, flags=re.M | re.S)


@pytest.mark.parametrize("word", INSTEAD)
def test_comments_and_docstrings_use_plain_words(word: str) -> None:
    """Each word of the list has a plainer one."""
    pattern = re.compile(rf"\b({word})\b", re.IGNORECASE)
    found = [f"{name}: {text.strip()[:80]}" for name, text in _proses() if pattern.search(text)]
    assert found == [], INSTEAD[word]


@pytest.mark.parametrize("word", INSTEAD)
def test_pages_use_plain_words(word: str) -> None:
    """Outside of what is quoted from code."""
    pattern = re.compile(rf"\b({word})\b", re.IGNORECASE)
    found = [
        f"{path.name}: {line.strip()[:120]}"
        for path in PAGES
        for line in CODE.sub("", path.read_text(encoding="utf-8")).splitlines()
        if pattern.search(line)
    ]
    assert found == [], INSTEAD[word]
