"""Flights arriving as files: the recorded order, one file after another, whole or not at all."""

from __future__ import annotations

import gzip
import threading
from pathlib import Path

from airflow_streamstate.clock import Clock


class Feed:
    """Writes files of flights into a folder that a stream reads.

    Args:
        recording: gzipped NDJSON, in order of time.
        folder: where files appear; created here.
        seconds_between_files: the pace at first; the file source orders by modification time, so every file has its
            own.
    """

    def __init__(
        self, recording: Path, folder: Path, clock: Clock, *, rows_per_file: int, seconds_between_files: float
    ) -> None:
        with gzip.open(recording, "rt", encoding="utf-8") as lines:
            rows = lines.readlines()
        self.files = [rows[at : at + rows_per_file] for at in range(0, len(rows), rows_per_file)]
        self.folder = folder
        self.folder.mkdir(parents=True)
        self.written = 0
        self._clock = clock
        self._seconds_between_files = seconds_between_files
        self._stop = threading.Event()
        self._limit = 0
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def start(self) -> None:
        """Start writing, up to the limit that ``let_arrive`` sets."""
        self._thread.start()

    def let_arrive(self, share: float, *, seconds_between_files: float | None = None) -> None:
        """Let files arrive until this share of all rows is there (at the feed's pace, or from now on at this one, while
        other things continue)."""
        if seconds_between_files is not None:
            self._seconds_between_files = seconds_between_files
        self._limit = max(self._limit, round(share * len(self.files)))

    def wait_arrived(self) -> None:
        """Wait until everything that was let in is there."""
        while self.written < self._limit and self._thread.is_alive():
            self._clock.sleep(0.1)

    def stop(self) -> None:
        """End the feed."""
        self._stop.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._stop.wait(self._seconds_between_files):
            if self.written < min(self._limit, len(self.files)):
                name = f"flights-{self.written:05d}.json"
                hidden = self.folder / f".{name}"
                hidden.write_text("".join(self.files[self.written]), encoding="utf-8")
                hidden.rename(self.folder / name)
                self.written += 1
