"""Parts of a tier together are the tier."""

from __future__ import annotations

from collections import Counter

from support.tiers import part_of


def test_each_test_is_in_one_part_and_parts_are_of_one_size() -> None:
    """The same in each process, so that workers agree; no part is much larger."""
    found = Counter(part_of(f"tests/spark/test_drains.py::test_rows[{number}]", 2) for number in range(1000))
    assert set(found) == {1, 2}
    assert min(found.values()) > 400
    assert [part_of(name, 2) for name in ("a", "b", "c", "d")] == [2, 2, 1, 1]
    assert part_of("tests/spark/test_drains.py::test_rows", 1) == 1
