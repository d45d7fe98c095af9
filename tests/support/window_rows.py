"""Input whose rows can be identified in the output: own windows, powers of two as sums."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

from support.drivers import seconds_of
from support.file_sink import rows_in

ROWS_PER_FILE = 4
SECONDS_PER_FILE = 20
KEYS = "ab"
Windows = Counter[tuple[str, int, int]]


class WindowRows:
    """JSON files for a count and a sum per window of ten seconds and key: each file is one window and closes the last.

    Args:
        base: ``in`` below it is the input, ``out`` the output.
    """

    def __init__(self, base: Path) -> None:
        self._base = base
        self.files = 0
        (base / "in").mkdir(parents=True, exist_ok=True)

    def feed(self) -> None:
        """One more file, whole at once, younger than those before it."""
        rows = range(self.files * ROWS_PER_FILE, (self.files + 1) * ROWS_PER_FILE)
        seconds = [self.files * SECONDS_PER_FILE + row % ROWS_PER_FILE for row in rows]
        hidden = self._base / "in" / f".{self.files:05d}"
        hidden.write_text(
            "".join(
                json.dumps({"t": seconds_of(second // 60, second % 60), "k": KEYS[row % 2], "v": 2**row}) + "\n"
                for second, row in zip(seconds, rows, strict=True)
            )
        )
        os.utime(hidden, (1_700_000_000 + self.files,) * 2)
        hidden.rename(self._base / "in" / f"{self.files:05d}.json")
        self.files += 1

    def expected(self) -> Windows:
        """(key, rows, sum) of every window that was fed."""
        starts = range(0, self.files * ROWS_PER_FILE, ROWS_PER_FILE)
        return Counter((key, 2, 2 ** (row + at) + 2 ** (row + at + 2)) for row in starts for at, key in enumerate(KEYS))

    def found(self) -> Windows:
        """The same, as the file sink holds it."""
        return Counter((row["k"], row["n"], row["s"]) for row in rows_in(self._base / "out"))
