"""Which task reads which part."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from airflow_streamstate.sources.planner import moved, place

PARTS = [f"part {number}" for number in range(240)]


@pytest.mark.parametrize(("before", "after"), [(4, 5), (5, 4), (8, 9), (12, 11), (2, 3)])
def test_few_parts_move_when_the_tasks_change(before: int, after: int) -> None:
    """Little more than necessary: the share of the task that came or went, and what has no room next to it."""
    gone = moved(place(PARTS, before), place(PARTS, after))
    assert len(gone) <= 1.8 * len(PARTS) / max(before, after)


@pytest.mark.parametrize("tasks", [1, 2, 7, 16])
def test_no_task_has_more_than_its_share(tasks: int) -> None:
    """And each part has one."""
    placed = place(PARTS, tasks)
    assert sorted(placed) == sorted(PARTS)
    assert max(Counter(placed.values()).values()) <= math.ceil(len(PARTS) / tasks)
    assert {*placed.values()} <= {*range(tasks)}


def test_a_new_part_moves_few_others() -> None:
    """The same parts come to the same tasks, in whatever order they are listed."""
    assert place(list(reversed(PARTS)), 6) == place(PARTS, 6)
    assert len(moved(place(PARTS[:-1], 6), place(PARTS, 6))) <= 8


def test_there_are_no_more_tasks_than_parts() -> None:
    """An empty task would only cost its start."""
    assert {*place(["a", "b"], 9).values()} <= {0, 1}
    assert place([], 4) == {}
