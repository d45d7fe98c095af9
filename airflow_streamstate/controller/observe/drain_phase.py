"""How far a drain of a deployment has come with each of its queries: from its events alone."""

from __future__ import annotations

from typing import Literal

from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.protocol.commands import DrainNotification
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import (
    Accepted,
    Drained,
    DrainFailed,
    Draining,
    Finished,
    QueryStarted,
    Rejected,
    Stopped,
)

DrainPhase = Literal["accepted", "flushing", "drained", "failed"]


def drain_phases(seen: Observation) -> dict[str, DrainPhase]:
    """Where the last drain of the deployment stands, per query; queries that it has nothing to do with are left out.

    ``accepted``: the query reads nothing new, or ends its batch · ``flushing``: its flush batch was announced ·
    ``drained``: that batch is committed · ``failed``: it is what the drain failed at. A drain that was rejected or
    called off, or that the deployment outlived in a later attempt, leaves nothing.
    """
    drain = _Drain()
    for entry in seen.events:
        if entry.event is not None:
            drain.follow(entry.event)
    return drain.phases if seen.drained is not None or drain.is_of(seen.attempt) else {}


class _Drain:
    """The last drain, as far as the events that were followed tell."""

    def __init__(self) -> None:
        self.phases: dict[str, DrainPhase] = {}
        self._queries: set[str] = set()
        self._flush_batch_ids: dict[str, int] = {}
        self._command_id: str | None = None
        self._failed_in: int | None = None

    def is_of(self, attempt: int) -> bool:
        """Whether it still means something in this attempt: one that failed is over with its attempt."""
        return self._failed_in in (None, attempt)

    def follow(self, event: Event) -> None:
        if isinstance(event, QueryStarted):
            self._queries.add(event.query_name)
            if self._command_id is not None and self._failed_in is None:
                self.phases.setdefault(event.query_name, "accepted")
        elif isinstance(event, Accepted) and event.command.get("kind") == DrainNotification.kind:
            self._begin(event.command_id)
        elif isinstance(event, Draining):
            if event.command_id != self._command_id:
                self._begin(event.command_id)
            self._flush_batch_ids |= event.flush_batch_ids
            self.phases |= dict.fromkeys(event.flush_batch_ids, "flushing")
        elif self._is_called_off_by(event):
            self._command_id, self.phases = None, {}
        elif isinstance(event, DrainFailed):
            self._failed_in = event.attempt
            if event.query_name:
                self.phases[event.query_name] = "failed"
        elif isinstance(event, Drained | Stopped | Finished):
            self._end(event)

    def _is_called_off_by(self, event: Event) -> bool:
        """Whether the queries run on as if no drain had been asked for."""
        if isinstance(event, DrainFailed):
            return event.then == "runs_on"
        return isinstance(event, Rejected) and event.command_id == self._command_id

    def _begin(self, command_id: str) -> None:
        self._command_id, self._failed_in, self._flush_batch_ids = command_id, None, {}
        self.phases = dict.fromkeys(self._queries, "accepted")

    def _end(self, event: Drained | Stopped | Finished) -> None:
        """Where the deployment ended says which flushes are committed (Law 13)."""
        for name, position in event.queries.items():
            flush_batch_id = self._flush_batch_ids.get(name)
            is_flushed = flush_batch_id is not None and position.batch_id == flush_batch_id
            if is_flushed:
                self.phases[name] = "drained"
            elif isinstance(event, Drained):
                self.phases.pop(name, None)  # carried on unflushed, or nothing was there to flush
