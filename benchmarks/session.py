"""What every benchmark gets: its folder, its length, and the console."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.flights import write_flights

FLIGHT_FILES = 160


@dataclass(frozen=True)
class Session:
    """One run of ``python -m benchmarks``.

    Attributes:
        folder: for everything that is not the result; removed at the end.
    """

    folder: Path
    quick: bool
    console: Console

    def say(self, text: str) -> None:
        """One line of progress."""
        self.console.print(text, highlight=False, soft_wrap=True)

    def flights(self) -> Path:
        """A folder of 160 files of 20,000 flights, written once."""
        folder = self.folder / "flights"
        if not folder.exists():
            write_flights(folder, FLIGHT_FILES)
        return folder
