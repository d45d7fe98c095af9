"""Plain English: words that slow a reader down stay out of comments, docstrings, pages and texts of code."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

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
IN_TEXTS = INSTEAD | {
    r"told|tells?": "reported, reports; is notified",
    r"said|says": "reported, states; shows",
    r"begun|began|begins?": "started, starts",
    r"give[ns]? up|given-up": "abandoned",
    r"take[ns]? back": "withdrawn, undone",
    r"way back": "rollback",
    r"(is|are) over": "has ended",
    r"a look": "a poll",
    r"of its own": "own; separate",
    r"so many": "this many",
    r"last word": "last event",
    r"where (that|there)": "if",
}
"""Of what a user reads and of what tests match: what INSTEAD has, and words that comments may use."""
VALUES = {"not begun", "given up"}
"""Recorded values and states, which are no sentences."""
STATIC = sorted((ROOT / "airflow_streamstate" / "page" / "static").glob("*.[jh]*"))
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


def _texts(path: Path) -> Iterator[str]:
    """The strings of a module that have a blank, as Python joins them; no docstrings, no code in strings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            text = node.value.strip()
            if " " in text and "\n" not in text and text not in VALUES:
                yield re.sub(r"(?<!\w)--[\w-]+|`[^\s`]+`|`streamstate [^`]*`", "", text)


def _shown(line: str) -> Iterator[str]:
    """What a line of the page's scripts shows: its strings with a blank; placeholders are code."""
    if line.count("`") == 2:
        yield re.sub(r"\$\{[^{}]*\}", "", line.split("`")[1])
    yield from (text for text in re.findall(r'"([^"]*)"', line) if " " in text)


@functools.cache
def _all_texts() -> list[tuple[str, str]]:
    found = [(path.name, text) for path in FILES for text in _texts(path)]
    for path in STATIC:
        found += [(path.name, text) for line in path.read_text(encoding="utf-8").splitlines() for text in _shown(line)]
    return found


@functools.cache
def _matched() -> list[tuple[str, str]]:
    """The texts of tests which match errors, without the names of their facts."""
    return [
        (path.name, re.sub(r"\b\w+=", "", keyword.value.value))
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "match" and isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str)
    ]


@pytest.mark.parametrize("word", IN_TEXTS)
def test_texts_use_plain_words(word: str) -> None:
    """Errors, help and answers of the shell, events, descriptions of terms, and the page in a browser."""
    pattern = re.compile(rf"\b({word})\b", re.IGNORECASE)
    assert [f"{name}: {text[:120]}" for name, text in _all_texts() if pattern.search(text)] == [], IN_TEXTS[word]
    assert [f"{name}: {text[:120]}" for name, text in _matched() if pattern.search(text)] == [], IN_TEXTS[word]


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
