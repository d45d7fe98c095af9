"""The queries that an attempt has started, by name."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_streamstate.driver.attempt.logical_query import LogicalQuery


class AttemptQueries:
    """What the script's thread adds, and the agent's thread reads.

    Attributes:
        first_failed: the query that failed first by itself and was told; None while none has.
        last_start_at_seconds: when the script last started a query, by the monotonic clock; None before the first.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, LogicalQuery] = {}
        self._guard = threading.Lock()
        self.first_failed: LogicalQuery | None = None
        self.last_start_at_seconds: float | None = None

    def __getitem__(self, name: str) -> LogicalQuery:
        return self._by_name[name]

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> LogicalQuery | None:
        """The query of this name; None where none was started."""
        return self._by_name.get(name)

    def names(self) -> list[str]:
        """The names, in the order of their first starts."""
        return list(self._by_name)

    def all(self) -> list[LogicalQuery]:
        """The queries as they are now: what is added later does not change the list."""
        return list(self._by_name.values())

    def add(self, query: LogicalQuery) -> None:
        """Take up a query; a later start of the same name takes the place of the earlier one."""
        self._by_name[query.name] = query

    def note_start(self, at_seconds: float) -> None:
        """Note that the script's ``start()`` has come back."""
        self.last_start_at_seconds = at_seconds

    def begin_to_tell(self, query: LogicalQuery) -> bool:
        """Whether this call is the one that tells of a query's failure: two threads may look at once."""
        with self._guard:
            is_first, query.is_failure_told = not query.is_failure_told, True
            return is_first

    def note_failed(self, query: LogicalQuery) -> None:
        """Note that the failure of a query was told."""
        if self.first_failed is None:
            self.first_failed = query
