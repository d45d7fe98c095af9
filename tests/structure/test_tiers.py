"""What each tier runs, and in which worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.tiers import NOT_QUICK, is_quick, scope_of

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("node_id", "scope"),
    [
        ("tests/kafka/test_life.py::test_rows", "kafka"),
        ("tests/kafka/test_chain.py::test_rows[tests/x]", "kafka"),
        ("tests/unit/store/test_s3.py::test_rows", "tests/unit/store/test_s3.py"),
    ],
)
def test_tests_with_one_slow_server_run_in_one_worker(node_id: str, scope: str) -> None:
    """Each worker would start its own broker or cluster; other files are spread one by one."""
    assert scope_of(node_id) == scope


@pytest.mark.parametrize(
    ("folders", "marks", "expected"),
    [
        (("unit", "plan", "test_rules.py"), set(), True),
        (("structure", "test_rooms.py"), {"parametrize"}, True),
        (("unit", "plan", "test_rules.py"), {"fast"}, False),
        (("unit", "operators", "test_deploy.py"), set(), False),
        (("unit", "test_assets.py"), set(), False),
        (("unit", "sources", "test_planner_x.py"), set(), True),
        (("contract", "store", "test_promises.py"), set(), False),
    ],
)
def test_quick_is_units_and_structure_without_airflow(
    folders: tuple[str, ...], marks: set[str], expected: bool
) -> None:
    """And without what is marked as slow."""
    assert is_quick(folders, marks) is expected


def test_what_quick_leaves_out_is_there() -> None:
    """A renamed file has its new name there; any other import of Airflow or Spark is refused in the run."""
    assert [place for place in NOT_QUICK if not (TESTS / place).exists()] == []
