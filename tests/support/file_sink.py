"""The content of Spark's file sink by its own log; the folder may hold more files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def files_in(folder: Path) -> list[Path]:
    """The committed files of a sink, batch after batch.

    Every tenth entry of the log (every third where a test asks for it) repeats all before it.
    """
    log = folder / "_spark_metadata"
    compacted = max((int(path.stem) for path in log.glob("[0-9]*.compact")), default=-1)
    entries = [log / f"{compacted}.compact"] if compacted >= 0 else []
    plain = [path for path in log.glob("[0-9]*") if not path.suffix and int(path.name) > compacted]
    entries += sorted(plain, key=lambda path: int(path.name))
    actions = [json.loads(line) for entry in entries for line in entry.read_text().splitlines()[1:]]
    return [Path(str(action["path"]).removeprefix("file://")) for action in actions]


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """The committed rows of a sink of format JSON, batch after batch."""
    return [json.loads(line) for file in files_in(folder) for line in file.read_text().splitlines()]
