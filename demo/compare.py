"""Compares every output row with a plain batch computation over the same input.

Which files a version read is taken from the file source's own log in the snapshots.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow.parquet as parquet

Key = tuple[str, ...]


@dataclass(frozen=True)
class Totals:
    """Flights and summed delay per key; ``rows`` counts output rows, not keys."""

    flights: Counter[Key]
    delay: Counter[Key]
    rows: int


@dataclass(frozen=True)
class Verdict:
    """One comparison.

    Attributes:
        wrong: keys whose count or sum differs.
    """

    title: str
    input_rows: int
    output_rows: int
    keys: int
    wrong: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Nothing lost, nothing doubled."""
        return not self.wrong


def batch(files: Iterable[Path], columns: Sequence[str]) -> tuple[Totals, int]:
    """Flights and delay per day and columns, computed plainly; and how many flights that were."""
    flights: Counter[Key] = Counter()
    delay: Counter[Key] = Counter()
    for path in files:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            day = datetime.strptime(row["date"], "%Y/%m/%d %H:%M").strftime("%Y-%m-%d")  # noqa: DTZ007
            key = (day, *(row[column] for column in columns))
            flights[key] += 1
            delay[key] += row["delay"]
    return Totals(flights, delay, 0), sum(flights.values())


def output(folder: Path, columns: Sequence[str], *, without: Sequence[str] = ()) -> Totals:
    """What one kind of version wrote: the files that the sink committed and that have these columns.

    Batch ids continue over all versions, so all write to one folder; their columns distinguish them.

    Args:
        columns: the keys besides the day, all of which a file must have.
        without: columns that a file must not have.
    """
    flights: Counter[Key] = Counter()
    delay: Counter[Key] = Counter()
    rows = 0
    for path in committed_files(folder):
        table = parquet.read_table(path)
        names = set(table.column_names)
        if not names.issuperset(columns) or names.intersection(without):
            continue
        for row in table.to_pylist():
            key = (row["day"].strftime("%Y-%m-%d"), *(row[column] for column in columns))
            flights[key] += row["flights"]
            # A mean times its count is the sum again, exact to the minute once rounded: both are far below 2**53.
            delay[key] += row["delay_sum"] if "delay_sum" in names else round(row["delay_mean"] * row["flights"])
            rows += 1
    return Totals(flights, delay, rows)


def committed_files(folder: Path) -> list[Path]:
    """The data files that Spark's file sink has committed."""
    names: dict[str, None] = {}
    log = folder / "_spark_metadata"
    for entry in sorted(log.glob("[0-9]*")):
        for line in entry.read_text(encoding="utf-8").splitlines()[1:]:
            names[Path(json.loads(line)["path"]).name] = None
    return [folder / name for name in names]


def verdict(title: str, expected: Totals, input_rows: int, found: Totals) -> Verdict:
    """The comparison of one with the other, key by key."""
    keys = sorted(set(expected.flights) | set(found.flights))
    wrong = tuple(
        f"{'/'.join(key)}: {found.flights[key]} flights, {found.delay[key]} delay; "
        f"expected {expected.flights[key]}, {expected.delay[key]}"
        for key in keys
        if (found.flights[key], found.delay[key]) != (expected.flights[key], expected.delay[key])
    )
    return Verdict(title, input_rows, found.rows, len(keys), wrong)


def by_day(totals: Totals) -> Totals:
    """The same totals per day alone."""
    flights: Counter[Key] = Counter()
    delay: Counter[Key] = Counter()
    for key, count in totals.flights.items():
        flights[key[:1]] += count
        delay[key[:1]] += totals.delay[key]
    return Totals(flights, delay, totals.rows)
