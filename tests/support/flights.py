"""The flights of ``data/``: fed file by file, counted plainly, and read back from the jobs' output."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.file_sink import files_in

REPOSITORY = Path(__file__).resolve().parents[2]
JOBS = REPOSITORY / "dags" / "jobs"
DATA = REPOSITORY / "data" / "flights-20k.ndjson.gz"


def lines_of_flights() -> list[str]:
    """All flights, one JSON per line, in the order of their times."""
    return gzip.decompress(DATA.read_bytes()).decode().splitlines()


class Flights:
    """The folder into which files of flights arrive, and the one in which results are.

    Args:
        folder: of this test; ``incoming`` and ``delays`` below it.
        pieces: into how many files the flights are cut.

    Attributes:
        total: how many flights there are.
    """

    def __init__(self, folder: Path, pieces: int) -> None:
        self.folder = folder
        lines = lines_of_flights()
        self.total = len(lines)
        self._pieces = [lines[n * len(lines) // pieces : (n + 1) * len(lines) // pieces] for n in range(pieces)]
        self._fed = 0
        (folder / "incoming").mkdir(parents=True)

    @property
    def arguments(self) -> list[str]:
        """The arguments of the jobs."""
        return ["--input", str(self.folder / "incoming"), "--output", str(self.folder / "delays")]

    def feed(self, pieces: int = 1) -> list[str]:
        """The next files arrive, whole at once and one younger than the other; gives their lines."""
        fed: list[str] = []
        for _ in range(pieces):
            lines = self._pieces[self._fed]
            self._fed += 1
            hidden = self.folder / "incoming" / f".{self._fed:03d}"
            hidden.write_text("".join(f"{line}\n" for line in lines))
            os.utime(hidden, (1_700_000_000 + self._fed,) * 2)
            hidden.rename(self.folder / "incoming" / f"{self._fed:03d}.json")
            fed += lines
        return fed

    def written(self) -> Iterator[dict[str, Any]]:
        """The committed rows of the file sink, by its own log."""
        import pyarrow.parquet as parquet

        for file in files_in(self.folder / "delays"):
            yield from parquet.read_table(file).to_pylist()


def counts(lines: list[str], *keys: str) -> Counter[tuple[str, ...]]:
    """Flights per day and keys, counted plainly."""
    rows = [json.loads(line) for line in lines]
    return Counter((row["date"][:10].replace("/", "-"), *(row[key] for key in keys)) for row in rows)


def counts_of(rows: list[dict[str, Any]], *keys: str) -> Counter[tuple[str, ...]]:
    """Flights per day and keys, as the jobs wrote them; rows of one key are added up."""
    found: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        found[(f"{row['day']:%Y-%m-%d}", *(row[key] for key in keys))] += row["flights"]
    return found
