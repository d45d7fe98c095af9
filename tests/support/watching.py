"""``streamstate watch`` in a separate process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.launches import wait_until

_SHELL = "from airflow_streamstate.cli.main import main; main()"


class WatchProcess:
    """One process of ``streamstate watch WORDS``; its lines go to ``path``."""

    def __init__(self, path: Path, *words: str) -> None:
        self.path = path
        with path.open("a") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _SHELL, "watch", "--json", *words],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines that it has printed so far, and those before it in this file."""
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def wait_for(self, sight: str, count: int = 1, seconds: float = 120.0) -> None:
        """Wait until it has printed this sight ``count`` times."""
        wait_until(
            lambda: sum(line["sight"] == sight for line in self.lines) >= count,
            lambda: f"{sight} {count} times: {self.path.read_text()}",
            seconds,
        )

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end; its exit status."""
        self.process.send_signal(number)
        return self.process.wait(timeout=60)


@contextmanager
def watching(path: Path, *words: str) -> Iterator[WatchProcess]:
    """A process that is killed afterwards, where it is not ended."""
    watch = WatchProcess(path, *words)
    try:
        yield watch
    finally:
        watch.process.kill()
        watch.process.wait()
