"""Which marks a source had when an offset was taken of it.

A topic may be deleted and made anew while a query reads it, and offsets of the new one follow those of the old one in
one log. Marks are asked at other times than offsets are taken: so each answer is kept with what was planned by then,
and an offset is of a source whose marks were the same before its batch was planned and after. Where they were not, the
older ones count: the next start then asks a person, and passes over nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

LineAt = Callable[[int], str | None]
"""The offset of one source at the end of a batch; None where the log has it no more."""
FARTHEST_BACK = 50


@dataclass(frozen=True)
class Sighting:
    """One answer.

    Attributes:
        marks: what was said.
        certain_upto: the newest batch that was planned already when it was asked.
        planned_upto: the newest batch whose offsets may have been taken when the answer was there.
    """

    marks: Mapping[str, str]
    certain_upto: int
    planned_upto: int


@dataclass
class MarkHistory:
    """The marks of one source over the batches of a query.

    Attributes:
        kept: under which the offsets were kept that the query began with.
    """

    kept: Mapping[str, str] = field(default_factory=dict)
    _sightings: list[Sighting] = field(default_factory=list)

    def add(self, sighting: Sighting) -> tuple[str, ...]:
        """Keep an answer; the names of the marks that are others than at the answer before, or than those kept."""
        known = dict(self.kept)
        for before in self._sightings:
            known |= before.marks
        if [before.marks for before in self._sightings[-2:]] == [sighting.marks] * 2:
            self._sightings[-1] = sighting  # of a run of equal answers the first and the last say everything
        else:
            self._sightings.append(sighting)
        return tuple(name for name, value in sighting.marks.items() if known.get(name, value) != value)

    def at(self, batch_id: int, line_at: LineAt, has_moved_back: Callable[[str, str], bool]) -> dict[str, str]:
        """The marks of the offset at the end of a batch.

        Args:
            batch_id: the batch.
            line_at: the offset at the end of that batch and of those before it.
            has_moved_back: whether the second offset of two that follow each other is behind the first: a source goes
                back only where it was made anew.
        """
        kept = self._kept()
        if all(sighting.marks == kept for sighting in self._sightings):
            return dict(kept)
        taken = _taken_at(batch_id, line_at)
        before = self._before(taken)
        after = next((one.marks for one in self._sightings if one.certain_upto >= taken), {})
        has_changed = any(value != after.get(name, value) for name, value in before.items())
        if has_changed and self._went_back(taken, line_at, has_moved_back):
            return dict(after)
        return {**after, **before}

    def _kept(self) -> Mapping[str, str]:
        """Where nobody kept any: the first answer."""
        return self.kept or next((one.marks for one in self._sightings), {})

    def _before(self, batch_id: int) -> Mapping[str, str]:
        known = [one.marks for one in self._sightings if one.planned_upto < batch_id]
        return known[-1] if known else self._kept()

    def _went_back(self, batch_id: int, line_at: LineAt, has_moved_back: Callable[[str, str], bool]) -> bool:
        first = max((one.planned_upto for one in self._sightings if one.planned_upto < batch_id), default=None)
        if first is None:
            return False  # it is as old as the query's start: nobody knows what was before
        lines = [line_at(number) for number in range(max(first, batch_id - FARTHEST_BACK) - 1, batch_id + 1)]
        pairs = itertools.pairwise(lines)
        return any(one is not None and other is not None and has_moved_back(one, other) for one, other in pairs)


def _taken_at(batch_id: int, line_at: LineAt) -> int:
    """The batch that took the offset which stands at the end of this one: batches without input repeat it."""
    line = line_at(batch_id)
    for number in range(batch_id - 1, batch_id - FARTHEST_BACK, -1):
        before = line_at(number)
        if before is None:
            return number + 1 if number < 0 else -1
        if before != line:
            return number + 1
    return -1
