"""The tier of a test: ``pytest --tier fast``, ``full`` or ``named`` selects it.

``fast`` is the README's test command. ``full`` is what CI runs in addition. ``named`` is what runs by name alone.
A test of ``tests/sim`` belongs to the later tiers, too: each runs more of its cases than the one before.
``--tier quick`` is the part of ``fast`` for the inner loop: units and structure, without Spark and Airflow.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TIERS = ("fast", "full", "named")
QUICK = "quick"

QUICK_FOLDERS = {"unit", "structure"}
NOT_QUICK = (
    "structure/test_sinks_page.py",
    "structure/test_terms.py",
    "unit/connectors/test_partitioned.py",
    "unit/controller/commands/test_snapshot_requests.py",
    "unit/demo/test_site.py",
    "unit/driver/rehearsal/test_script_failures.py",
    "unit/driver/spark",
    "unit/driver/test_main.py",
    "unit/hooks",
    "unit/notifications",
    "unit/operators",
    "unit/page",
    "unit/sensors",
    "unit/sources/test_growing_files.py",
    "unit/sources/test_planner.py",
    "unit/sources/test_spark_source.py",
    "unit/test_assets.py",
    "unit/test_provider_info.py",
    "unit/triggers",
)
"""Files and folders that import Airflow or Spark."""

FAST_FOLDERS = {"unit", "structure", "contract", "sim", "net"}
NAMED_FOLDERS = {"compat", "kubernetes", "soak", "emr_live"}
SERVERS = {"s3", "objects"}
"""Marks of tests that need a server which is built first: too long for ``fast``."""

ORDER = ("airflow", "kafka", "cluster", "yarn", "kubernetes", "sinks", "spark", "compat", "soak", "sim", "contract")
"""Folders whose tests start first, since one of their files takes minutes."""

TOGETHER = ("cluster", "kafka", "yarn")
"""Folders whose tests share a server that takes half a minute to start: one worker runs all tests of one."""
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
    marks = {mark.name for mark in item.iter_markers()}
    quick = {QUICK} if is_quick(item.path.relative_to(tests).parts, marks) else set()
    return quick | tiers_of(_folder(item, tests), marks)


def is_quick(folders: tuple[str, ...], marks: set[str]) -> bool:
    """Whether a test belongs to ``quick``.

    Args:
        folders: of the test, below ``tests``.
        marks: names of its marks. ``fast`` leaves a test to the tier ``fast``: it is slow, or imports Airflow.
    """
    return is_quick_place(folders) and not marks & {*TIERS, *SERVERS}


def is_quick_place(folders: tuple[str, ...]) -> bool:
    """Whether tests of ``quick`` may be below these folders; what is elsewhere is not even imported."""
    path = "/".join(folders)
    is_left_out = any(path == place or path.startswith(f"{place}/") for place in NOT_QUICK)
    return folders[0] in QUICK_FOLDERS and not is_left_out


def scope_of(node_id: str) -> str:
    """What one worker runs alone: a file, or a folder of ``TOGETHER``."""
    path = node_id.partition("::")[0]
    folder = path.removeprefix("tests/").partition("/")[0]
    return folder if folder in TOGETHER else path


def rank_of_item(item: pytest.Item, tests: Path) -> int:
    """The place of a test's folder among the folders: what takes long starts first; ``tests`` holds all folders."""
    folder = _folder(item, tests)
    return ORDER.index(folder) if folder in ORDER else len(ORDER)


def _folder(item: pytest.Item, tests: Path) -> str:
    return item.path.relative_to(tests).parts[0]
