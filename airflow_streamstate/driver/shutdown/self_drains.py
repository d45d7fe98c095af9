"""A deployment whose sources are all read to their end orders its own drain, like anybody else, by a command."""

from __future__ import annotations

import uuid

from airflow_streamstate.connectors.source import FinishingConnector
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.shutdown.gathering import are_all_started, never_started, unstarted
from airflow_streamstate.protocol.commands import BY_THE_DRIVER, Command, DrainNotification
from airflow_streamstate.protocol.terms.order import DEFAULT_DRAIN
from airflow_streamstate.protocol.version import NEWEST_PROTOCOL

LOOK_SECONDS = 1.0
_NAMESPACE = uuid.UUID("b2f6c7de-5f3c-5b0e-8c55-2f6fb0a7c1d4")


def self_drain_reason(command: Command | None) -> str:
    """Why a deployment ordered its own drain; "" for a drain that was ordered from outside."""
    return command.reason if command is not None and command.requested_by == BY_THE_DRIVER else ""


def _may_finish(attempt: Attempt, query: LogicalQuery) -> bool:
    """By the kinds of its sources, without reading anything."""
    sources = attempt.sources.sources(query.name)
    return bool(sources) and all(isinstance(source.connector, FinishingConnector) for source in sources)


def finished_parts(attempt: Attempt, query: LogicalQuery) -> int | None:
    """How many parts the sources of a query have, if its last committed batch has read each to its end; else None."""
    position = query.checkpoint.position()
    if not _may_finish(attempt, query) or position.batch_id is None or position.planned is not None:
        return None
    entry = query.checkpoint.read_offset(position.batch_id)
    sources = attempt.sources.sources(query.name)
    if entry is None or len(entry.source_lines) != len(sources):
        return None
    total = 0
    for source, line in zip(sources, entry.source_lines, strict=True):
        count = source.connector.finished_parts(line) if isinstance(source.connector, FinishingConnector) else None
        if count is None:
            return None
        total += count
    return total


class SelfDrain:
    """Looks whether every source of every query is finished, and then writes the notification, once a deployment."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._next_look_seconds = 0.0
        self._is_ordered = False

    def order_if_finished(self) -> None:
        """Order the drain if it is due.

        Raises:
            UnavailableError, OutcomeUnknownError: the store does not answer; call it again.
        """
        attempt, now_seconds = self._attempt, self._attempt.clock.monotonic_seconds()
        if self._is_ordered or attempt.spec.version.settings.keep_running or not attempt.latch.is_open:
            return
        if now_seconds < self._next_look_seconds:
            return
        self._next_look_seconds = now_seconds + LOOK_SECONDS
        queries = attempt.queries.all()
        if not queries or not all(_may_finish(attempt, query) for query in queries):
            return
        parts = [finished_parts(attempt, query) for query in queries]
        if any(count is None for count in parts) or not are_all_started(attempt):
            return
        if set(unstarted(attempt, Order())) - set(never_started(attempt)):
            return  # queries of this version that have not come to the end of their input
        self._order(sum(count or 0 for count in parts))

    def _order(self, parts: int) -> None:
        attempt = self._attempt
        self._is_ordered = True
        command_id = str(uuid.uuid5(_NAMESPACE, f"{attempt.stream_id}/{attempt.deployment_id}"))
        if attempt.command_status(command_id).is_ended:
            return  # of an earlier attempt, and refused
        reason = f"self-drained: all {parts} parts finished" if parts != 1 else "self-drained: its only part finished"
        command = DrainNotification(
            command_id,
            attempt.stream_id,
            attempt.deployment_id,
            attempt.clock.now(),
            None,
            BY_THE_DRIVER,
            reason,
            rehearse=DEFAULT_DRAIN.rehearse,
            leave_queries=tuple(never_started(attempt)),
        )
        try:
            attempt.journal.write_command(command, NEWEST_PROTOCOL)
        except Exception:
            self._is_ordered = False
            raise
        attempt.reporter.say(reason)
