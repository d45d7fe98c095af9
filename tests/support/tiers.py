"""The tier of a test: ``pytest --tier fast``, ``full`` or ``named`` selects it.

``fast`` is the README's test command. ``full`` is what CI runs in addition. ``named`` is what runs by name alone.
A test of ``tests/sim`` belongs to the later tiers, too: each runs more of its cases than the one before.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

TIERS = ("fast", "full", "named")

FAST_FOLDERS = {"unit", "structure", "contract", "sim", "net"}
NAMED_FOLDERS = {"compat", "kubernetes", "soak", "emr_live"}
SERVERS = {"s3", "objects"}
"""Marks of tests that need a server which is built first: too long for ``fast``."""

ORDER = ("airflow", "kafka", "cluster", "yarn", "kubernetes", "sinks", "spark", "compat", "soak", "sim", "contract")
"""Folders whose tests start first, since one of their files takes minutes."""

SETTINGS = {
    "fast": {"STREAMSTATE_SIM": "sample"},
    "full": {},
    "named": {"STREAMSTATE_SIM": "full", "STREAMSTATE_TRUTH": "full", "STREAMSTATE_SINKS": "full"},
}
"""How much a test of several tiers does in each: variables of the environment, where they are not set already."""


def tiers_of(folder: str, marks: set[str]) -> set[str]:
    """The tiers of one test.

    Args:
        folder: of the test, below ``tests``.
        marks: names of its marks. A mark ``fast``, ``full`` or ``named`` decides.
    """
    own = [tier for tier in TIERS if tier in marks]
    if folder in NAMED_FOLDERS:
        usual = "named"
    elif marks & SERVERS or folder not in FAST_FOLDERS:
        usual = "full"
    else:
        usual = "fast"
    first = own[-1] if own else usual
    if folder != "sim":
        return {first}
    found = set(TIERS[TIERS.index(first) :])
    return found - {"full"} if "moto" in marks else found  # ``full`` has a real server for the same cases


def tiers_of_item(item: pytest.Item, tests: Path) -> set[str]:
    """The tiers of one collected test; ``tests`` is the folder of all tests."""
    return tiers_of(_folder(item, tests), {mark.name for mark in item.iter_markers()})


def part_of(node_id: str, parts: int) -> int:
    """The part of its tier, from 1 on, in which a test runs where the tier is run in this many parts."""
    return int(hashlib.sha256(node_id.encode()).hexdigest(), 16) % parts + 1


def rank_of_item(item: pytest.Item, tests: Path) -> int:
    """The place of a test's folder among the folders: what takes long starts first; ``tests`` holds all folders."""
    folder = _folder(item, tests)
    return ORDER.index(folder) if folder in ORDER else len(ORDER)


def _folder(item: pytest.Item, tests: Path) -> str:
    return item.path.relative_to(tests).parts[0]
