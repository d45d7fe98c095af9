"""Input in plenty: the 20,000 recorded flights over and over, each time 91 days later, one file each.

Every copy covers a separate quarter of a year, so event time only goes forward and nothing is late.
"""

from __future__ import annotations

import gzip
import os
from datetime import datetime, timedelta
from pathlib import Path

RECORDING = Path(__file__).resolve().parents[1] / "data" / "flights-20k.ndjson.gz"
ROWS_PER_FILE = 20_000
_DAYS_PER_FILE = 91
_DAY_FORMAT = "%Y/%m/%d"


def write_flights(folder: Path, files: int) -> None:
    """Write this many files of 20,000 flights; each has its own modification time, by which Spark orders them."""
    folder.mkdir(parents=True)
    with gzip.open(RECORDING, "rt", encoding="utf-8") as lines:
        rows = [_split(line) for line in lines]
    days = {day: datetime.strptime(day, _DAY_FORMAT) for _, day, _ in rows}  # noqa: DTZ007 - a local day
    first_at = int(RECORDING.stat().st_mtime)
    for number in range(files):
        shift = timedelta(days=number * _DAYS_PER_FILE)
        shifted = {day: (at + shift).strftime(_DAY_FORMAT) for day, at in days.items()}
        path = folder / f"flights-{number:05d}.json"
        path.write_text("".join(f"{before}{shifted[day]}{after}" for before, day, after in rows), encoding="utf-8")
        os.utime(path, (first_at + number, first_at + number))


def link_some(source: Path, target: Path, files: int) -> None:
    """A folder with the first ``files`` of those files."""
    target.mkdir(parents=True)
    for path in sorted(source.iterdir())[:files]:
        (target / path.name).hardlink_to(path)


def _split(line: str) -> tuple[str, str, str]:
    """A line around the day of its date, which may be anywhere in it."""
    start = line.index('"date":') + len('"date":')
    start = line.index('"', start) + 1
    end = start + len("2001/01/01")
    return line[:start], line[start:end], line[end:]
