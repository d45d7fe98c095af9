"""Offsets of committed batches, told to a consumer group of the source's own system: for its tools, never read back."""

from __future__ import annotations

from collections.abc import Callable

from airflow_streamstate.connectors.source import NO_OFFSET, GroupedSource, OpenSource
from airflow_streamstate.driver.agent.lag import committed_offsets
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.attempt.ports import QueryProgress
from airflow_streamstate.errors import StreamStateError

LOOK_SECONDS = 1.0
"""How often the agent looks for a batch that was committed since."""
AFTER_FAILURE_SECONDS = 10.0


class GroupCommits:
    """Commits to ``commit_offsets_to_group`` after each batch, in the background; a failure is noted once."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._group = attempt.spec.version.settings.commit_offsets_to_group
        self._told: dict[str, int] = {}
        self._busy: set[str] = set()
        self._quiet_until_seconds = 0.0

    def commit_new(self) -> None:
        """Commit the offsets of each query that has committed a batch since the last time."""
        now = self._attempt.clock.monotonic_seconds()
        if not self._group or now < self._quiet_until_seconds:
            return
        self._quiet_until_seconds = now + LOOK_SECONDS
        for query in self._attempt.queries.all():
            if query.name in self._busy or not query.is_active():
                continue
            progress = query.last_progress()
            if progress is not None and progress.batch_id != self._told.get(query.name):
                self._busy.add(query.name)
                self._attempt.in_background(self._committer(query, progress), gives_way=False)

    def _committer(self, query: LogicalQuery, progress: QueryProgress) -> Callable[[], None]:
        def commit() -> None:
            try:
                _, offsets, _ = committed_offsets(query, progress)
                sources = self._attempt.sources.sources(query.name)
                numbers = range(min(len(offsets), len(sources)))
                told = [self._commit(query.name, number, offsets[number]) for number in numbers]
                if all(told):
                    self._told[query.name] = progress.batch_id
                else:
                    self._quiet_until_seconds = self._attempt.clock.monotonic_seconds() + AFTER_FAILURE_SECONDS
            except StreamStateError:
                pass  # Spark's JVM is ending
            finally:
                self._busy.discard(query.name)

        return commit

    def _commit(self, query_name: str, number: int, offset: str) -> bool:
        """Whether the group has the offset now, or there is nothing to tell."""
        if offset == NO_OFFSET or not self._attempt.sources.sources(query_name)[number].is_known:
            return True

        def commit(opened: OpenSource) -> bool:
            if isinstance(opened, GroupedSource):
                opened.commit_to_group(self._group, offset)
            return True

        return self._attempt.sources.ask(query_name, number, "to keep offsets of a consumer group", commit) is True
