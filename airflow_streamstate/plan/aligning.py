"""What two sequences have in common, in their order: a longest common subsequence.

``difflib`` needs the cube of the length for sequences in which one item comes again and again. Here a row of the table
of lengths is one number of as many bits as the old sequence has items, so a step costs one addition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence

Pair = tuple[int, int]
"""(place in the old sequence, place in the new one)."""
Block = tuple[bool, slice, slice]
"""Whether the items are the same in both; where they are in the old sequence; in the new one."""


def blocks_of(old: Sequence[Hashable], new: Sequence[Hashable]) -> Iterator[Block]:
    """Both sequences as blocks that are the same in both, and blocks that are not, in turn."""
    at_old = at_new = 0
    pairs = _common(old, new)
    index = 0
    while index < len(pairs):
        first_old, first_new = pairs[index]
        if (first_old, first_new) != (at_old, at_new):
            yield False, slice(at_old, first_old), slice(at_new, first_new)
        count = 1
        while index + count < len(pairs) and pairs[index + count] == (first_old + count, first_new + count):
            count += 1
        at_old, at_new, index = first_old + count, first_new + count, index + count
        yield True, slice(first_old, at_old), slice(first_new, at_new)
    if at_old < len(old) or at_new < len(new):
        yield False, slice(at_old, len(old)), slice(at_new, len(new))


def _common(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[Pair]:
    shorter = min(len(old), len(new))
    head = 0
    while head < shorter and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < shorter - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    inner = _longest(old[head : len(old) - tail], new[head : len(new) - tail])
    return [
        *((place, place) for place in range(head)),
        *((head + before, head + now) for before, now in inner),
        *((len(old) - left, len(new) - left) for left in range(tail, 0, -1)),
    ]


def _longest(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[Pair]:
    """The pairs of a longest common subsequence, by its bits (Hyyrö 2004); a 0 is where the length grows by one."""
    places: dict[Hashable, int] = defaultdict(int)
    for place, item in enumerate(old):
        places[item] |= 1 << place
    ones = (1 << len(old)) - 1
    row, rows = ones, []
    for item in new:
        shared = row & places.get(item, 0)
        row = ((row + shared) | (row - shared)) & ones
        rows.append(row)
    pairs: list[Pair] = []
    before, now = len(old), len(new)
    while before and now:
        if rows[now - 1] >> (before - 1) & 1:
            before -= 1
            continue
        now -= 1
        if now and not rows[now - 1] >> (before - 1) & 1:
            continue
        before -= 1
        pairs.append((before, now))
    return pairs[::-1]
