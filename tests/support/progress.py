"""The progress of a query, by its checkpoint on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from support.launches import wait_until


def files_read(checkpoint: Path) -> int:
    """Files, one to a batch, that the query's committed batches have read.

    The source's own log does not show it: a file is in it before the batch that reads it is planned, and a barrier
    may come in between. The next deployment then reads it, and this one never does. Nor do batch ids: batches without
    data have theirs, too.
    """
    committed = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
    if not committed:
        return 0
    version, *_, source_line = (checkpoint / "offsets" / str(max(committed))).read_text().splitlines()
    offset = source_line.partition(":")[2] if version == "v2" else source_line
    return int(json.loads(offset)["logOffset"]) + 1


def wait_read(checkpoint: Path, files: int, log: Callable[[], str], seconds: float = 240.0) -> None:
    """Wait until committed batches have read this many files; ``log``: of the driver, for a failure."""
    wait_until(lambda: files_read(checkpoint) == files, lambda: f"{files} files to be read:\n{log()}", seconds)
