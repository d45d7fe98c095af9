"""``airflow_streamstate.plan.segments``: what two sequences have in common."""

from __future__ import annotations

import itertools
import random

import pytest

from airflow_streamstate.plan.segments import blocks_of


class Counted:
    """An item that counts how often it is compared or looked up."""

    asked = 0

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        Counted.asked += 1
        return isinstance(other, Counted) and self.name == other.name

    def __hash__(self) -> int:
        Counted.asked += 1
        return hash(self.name)


def longest(old: str, new: str) -> int:
    """The length of a longest common subsequence, by its definition."""
    row = [0] * (len(old) + 1)
    for item in new:
        before = row
        row = [0]
        for place, other in enumerate(old):
            row.append(before[place] + 1 if item == other else max(before[place + 1], row[place]))
    return row[-1]


@pytest.mark.parametrize("seed", range(60))
def test_the_blocks_are_both_sequences_and_what_is_the_same_is_as_long_as_can_be(seed: int) -> None:
    """Blocks that differ are as short as can be, and no two of one kind follow each other."""
    chance = random.Random(seed)
    old, new = ("".join(chance.choices("abc"[: 1 + seed % 3], k=chance.randrange(14))) for _ in range(2))
    blocks = list(blocks_of(old, new))
    assert "".join(old[before] for _, before, _ in blocks) == old
    assert "".join(new[now] for _, _, now in blocks) == new
    same = [(old[before], new[now]) for is_same, before, now in blocks if is_same]
    assert all(before == now for before, now in same)
    assert sum(len(before) for before, _ in same) == longest(old, new)
    assert not any(not one[0] and not other[0] for one, other in itertools.pairwise(blocks))


def test_nothing_is_compared_again_and_again() -> None:
    """Two long sequences of which every other item is the same: where ``difflib`` needs the cube of their length."""
    count = 2_000
    old, new = ([Counted("x" if place % 2 else f"{name}{place}") for place in range(count)] for name in ("a", "b"))
    Counted.asked = 0
    same = sum(before.stop - before.start for is_same, before, _ in blocks_of(old, new) if is_same)
    assert same == count // 2
    assert Counted.asked < 10 * count
