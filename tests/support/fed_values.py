"""Numbers for a script that reads JSON files one by one, in the order of their times."""

from __future__ import annotations

import json
import os
from pathlib import Path


def feed(work: Path, number: int, *values: int) -> None:
    """One file in ``work/in``, which is one batch: a row with the key ``a`` for each value."""
    hidden = work / f".{number}"
    hidden.write_text("".join(json.dumps({"k": "a", "v": value}) + "\n" for value in values))
    os.utime(hidden, (1_700_000_000 + number,) * 2)
    hidden.rename(work / "in" / f"{number}.json")
