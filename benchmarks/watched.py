"""``python -m benchmarks.watched HOME SECONDS``: a watcher in its own process; prints what it cost, as JSON."""

from __future__ import annotations

import json
import resource
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home
from airflow_streamstate.store.local import LocalStore


class CountedStore:
    """A store whose calls are counted, by method."""

    def __init__(self, inner: LocalStore) -> None:
        self._inner = inner
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def counted(*words: Any, **named: Any) -> Any:
            self.calls[name] += 1
            return found(*words, **named)

        return counted


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Watch, and print."""
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    inner = LocalStore(folder)
    store: Any = CountedStore(inner)
    controller = Controller.local(Home.of(store, inner, folder, SYSTEM_CLOCK), requested_by="a benchmark")
    sights: Counter[str] = Counter()
    watcher = controller.watcher(lambda line: sights.update([line.sight]))
    began = SYSTEM_CLOCK.monotonic_seconds()
    watcher.tick()
    first = {"first_seconds": SYSTEM_CLOCK.monotonic_seconds() - began, "first_calls": store.calls.total()}
    assert set(sights) == {"up"}, sights  # noqa: S101 - else something else is measured
    store.calls.clear()
    cpu = _cpu_seconds()
    until = SYSTEM_CLOCK.monotonic_seconds() + seconds
    watcher.run(lambda: SYSTEM_CLOCK.monotonic_seconds() >= until)
    kinds = ", ".join(f"{name} {count}" for name, count in sorted(store.calls.items()))
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {**first, "cpu_seconds": _cpu_seconds() - cpu, "calls": store.calls.total(), "kinds": kinds}
    print(json.dumps({**found, "rss_mb": rss_mb}))


if __name__ == "__main__":
    main()
