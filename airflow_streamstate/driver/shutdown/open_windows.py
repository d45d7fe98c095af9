"""The windows that a drain closes early, read from the ``pre-drain`` snapshot while the flush runs."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from datetime import datetime
from functools import partial

from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.logical_query import POLL_SECONDS, LogicalQuery
from airflow_streamstate.snapshot.leases import leased

PATIENCE_SECONDS = 1.0
MAX_PATIENCE_SECONDS = 10.0
Bounds = tuple[datetime, datetime]


class OpenWindows:
    """The bounds of the open windows of some queries; a drain neither fails nor waits long for them."""

    def __init__(self, attempt: Attempt, snapshot_id: str | None, queries: Sequence[LogicalQuery]) -> None:
        self._attempt = attempt
        self._began_at_seconds = attempt.clock.monotonic_seconds()
        self._found: dict[str, Bounds | None] = {}
        self._wanted: list[str] = []
        for query in queries:
            if snapshot_id is not None and query.startable.facts.stateful:
                self._wanted.append(query.name)
                attempt.in_background(partial(self._read, query, snapshot_id), gives_way=False)

    def of(self, name: str) -> Bounds | None:
        """The bounds for a query; None where it has no window, or they were not read in time.

        Reader and flush read the same state on the same machine, so the reader gets the flush's time once more.
        """
        clock = self._attempt.clock
        flush_seconds = clock.monotonic_seconds() - self._began_at_seconds
        end = clock.monotonic_seconds() + min(max(flush_seconds, PATIENCE_SECONDS), MAX_PATIENCE_SECONDS)
        while name in self._wanted and name not in self._found and clock.monotonic_seconds() < end:
            clock.sleep(POLL_SECONDS)
        if name in self._wanted and name not in self._found:
            self._wanted.remove(name)  # do not wait a second time
        return self._found.get(name)

    def _read(self, query: LogicalQuery, snapshot_id: str) -> None:
        attempt = self._attempt
        bounds: Bounds | None = None
        try:
            with leased(attempt.control, snapshot_id, f"the drain of {attempt.deployment_id}") as lease:
                manifest = attempt.control.need_manifest(snapshot_id)
                manifest = lease.landed(attempt.places, manifest, [query.name])
                checkpoint = lease.folder_of(attempt.checkpoints, manifest, query.name)
                bounds = query.startable.open_windows(attempt.uri_of(checkpoint))
        except Exception:
            attempt.reporter.say(f"the open windows of {query.name} are not known: {traceback.format_exc()}")
        self._found[query.name] = bounds
