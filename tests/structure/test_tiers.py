"""What each tier runs, and which worker: parts of a tier together are the tier."""

from __future__ import annotations

from collections import Counter

import pytest

from support.tiers import is_quick, part_of, scope_of


def test_each_test_is_in_one_part_and_parts_are_of_one_size() -> None:
    """The same in each process, so that workers agree; no part is much larger."""
    found = Counter(part_of(f"tests/spark/test_drains.py::test_rows[{number}]", 2) for number in range(1000))
    assert set(found) == {1, 2}
    assert min(found.values()) > 400
    assert [part_of(name, 2) for name in ("a", "b", "c", "d")] == [2, 2, 1, 1]
    assert part_of("tests/spark/test_drains.py::test_rows", 1) == 1


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
        (("contract", "store", "test_promises.py"), set(), False),
    ],
)
def test_quick_is_units_and_structure_without_airflow(
    folders: tuple[str, ...], marks: set[str], expected: bool
) -> None:
    """And without what is marked as slow."""
    assert is_quick(folders, marks) is expected
