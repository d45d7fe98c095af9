"""How many cores Spark has now, for the process that plans batches: it has no way to ask Spark.

The process that registers a source writes the number into a file of this machine, where the planning process runs, too.
"""

from __future__ import annotations

import atexit
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_streamstate.clock import SYSTEM_CLOCK

_EVERY_SECONDS = 2.0
_watched: dict[str, Cores] = {}
_guard = threading.Lock()


@dataclass(frozen=True)
class Cores:
    """Where the number of cores is told.

    Attributes:
        at_first: when this was made.
    """

    path: str
    at_first: int

    def now(self) -> int:
        try:
            return max(1, int(Path(self.path).read_text()))
        except (OSError, ValueError):
            return self.at_first


def watch_cores(context: Any) -> Cores:
    """Tell the cores of this Spark from now on; once for each ``SparkContext``."""
    with _guard:
        known = _watched.get(context.applicationId)
        if known is None:
            count = _count(context)
            path = Path(tempfile.mkdtemp(prefix="streamstate-cores-")) / "cores"
            _write(path, count)
            atexit.register(_remove, path)
            known = _watched[context.applicationId] = Cores(str(path), count)
            threading.Thread(target=_watch, args=(context, path), name="streamstate-cores", daemon=True).start()
        return known


def _watch(context: Any, path: Path) -> None:
    told = 0
    while True:
        SYSTEM_CLOCK.sleep(_EVERY_SECONDS)
        try:
            count = _count(context)
            if count != told:
                _write(path, count)
                told = count
        except Exception:
            return  # Spark has ended


def _count(context: Any) -> int:
    return max(1, int(context._jsc.sc().defaultParallelism()))


def _write(path: Path, count: int) -> None:
    new = path.with_suffix(".new")
    new.write_text(str(count))
    new.replace(path)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()
