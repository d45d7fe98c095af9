"""Drain (1a.5): a stop, then each query flushes in one batch that reads nothing, then the deployment is over.

Every part asks the log and the events what is done already, so that the next attempt goes on wherever this one was
killed: before the barrier, between pre-drain snapshot and exchange, within the flush, before the snapshot, before the
event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_streamstate.control.answers import answered_ids
from airflow_streamstate.errors import DataError, FencedError, OutcomeUnknownError, StreamStateError, UnavailableError
from airflow_streamstate.plan.recorded import recorded_plans
from airflow_streamstate.protocol.commands import DrainNotification
from airflow_streamstate.protocol.events import Drained, DrainFailed, Draining, Failed
from airflow_streamstate.protocol.ids import SnapshotKind
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.runtime.attempt.answering import accept, clean_up
from airflow_streamstate.runtime.attempt.attempt import Attempt
from airflow_streamstate.runtime.attempt.auditing import audit_at_end
from airflow_streamstate.runtime.attempt.latch import Order
from airflow_streamstate.runtime.attempt.logical_query import POLL_SECONDS, LogicalQuery
from airflow_streamstate.runtime.attempt.sealing import seal_positions
from airflow_streamstate.runtime.attempt.snapshotting import (
    need_current,
    persist,
    positions_in,
    queries_to_capture,
    take_snapshot,
)
from airflow_streamstate.runtime.ending.begun_flushes import begun_flushes, refuse_pending_flush
from airflow_streamstate.runtime.ending.catching_up import catch_up, stages_of
from airflow_streamstate.runtime.ending.flush_reach import FlushReach
from airflow_streamstate.runtime.ending.flushing import Flush
from airflow_streamstate.runtime.ending.foreseeing import foresee
from airflow_streamstate.runtime.ending.gathering import (
    QueryFailedError,
    are_all_started,
    bring_to_barrier,
    has_committed,
    stands_at_barrier,
)
from airflow_streamstate.runtime.ending.open_windows import OpenWindows
from airflow_streamstate.runtime.ending.stopping import (
    close_latch,
    end_at_barriers,
    fail_queries,
    finish_stopped,
    running_queries,
    wait_until_ended,
)
from airflow_streamstate.snapshot.capture import QueryToCapture


def cannot_drain_reason(attempt: Attempt) -> str | None:
    """Why a drain is known not to work; None where nothing is known."""
    for query in list(attempt.queries.values()):
        reason = query.startable.cannot_flush_reason()
        if reason is not None:
            return f"query {query.name} cannot be flushed: {reason}"
    return None


def drain_deployment(attempt: Attempt, order: Order, *, tried: frozenset[str] = frozenset()) -> None:
    """Obey a drain, from the closing of the latch (or from where it was cut short) to the release of the waits.

    Args:
        attempt: this attempt.
        order: the drain.
        tried: the queries whose flush was tried while they ran; that of others is tried at their barriers.

    Raises:
        FencedError: this attempt was replaced.
    """
    if attempt.latch.is_open:
        close_latch(attempt, "drain", order)
    if attempt.latch.state == "drain" and attempt.latch.order == order:
        _Drain(attempt, order, tried).run()


class _Drain:
    def __init__(self, attempt: Attempt, order: Order, tried: frozenset[str]) -> None:
        self._attempt = attempt
        self._order = order
        self._tried = tried

    def run(self) -> None:
        try:
            self._run()
        except (FencedError, UnavailableError, OutcomeUnknownError):
            raise  # replaced, or tried again from where the log says it is
        except QueryFailedError as failed:
            self._give_up(failed.failures)
        except StreamStateError as error:
            self._break_off(error)

    def _run(self) -> None:
        attempt = self._attempt
        accept(attempt, self._order)
        for query in list(attempt.queries.values()):
            if query.runs_once and query.run is not None:
                wait_until_ended(attempt, query.run)  # a flush is never stopped
        at_barrier = running_queries(attempt)
        failures = end_at_barriers(attempt, at_barrier, self._order.command_id)
        if failures:
            raise QueryFailedError(failures)
        if not are_all_started(attempt):
            return
        with attempt.latch.held():
            if attempt.latch.state != "drain":
                return  # called off by a start()
            attempt.flush_has_begun = True
            queries = [query for query in list(attempt.queries.values()) if query.checkpoint.exists()]
        for query in queries:
            if query not in at_barrier or not stands_at_barrier(attempt, query):
                bring_to_barrier(attempt, query, self._order.command_id)
        self._flush(queries)

    # the flush

    def _flush(self, queries: list[LogicalQuery]) -> None:
        attempt = self._attempt
        plans = persist(attempt, "the plans", lambda: recorded_plans(attempt.control, attempt.deployment_id))
        reach = FlushReach(attempt, self._order, plans)
        untried = [each for each in queries if each.name not in self._tried and has_committed(attempt, each)]
        if untried and not self._said() and not begun_flushes(attempt):  # what was begun only goes forward
            foreseen = foresee(attempt, self._order, untried)
            if foreseen.problems:
                self._keep_all(foreseen.problems, [], None)
                return
        stages = stages_of(queries, plans) or [[]]
        windows = OpenWindows(attempt, self._keep_before(queries), stages[0])  # those behind read on before they flush
        done: list[Flush] = []
        for number, stage in enumerate(stages):
            if number > 0:
                catch_up(attempt, stage, self._order.command_id, self._announced())
            standing = [query for query in stage if has_committed(attempt, query)]
            flushes = [Flush(attempt, query, self._order.command_id, reach) for query in standing]
            self._announce({flush.query.name: persist(attempt, "the log", flush.prepare) for flush in flushes})
            unread = {flush.query.name: why for flush in flushes if (why := flush.look_ahead()) is not None}
            if unread:
                self._keep_all(unread, done, windows)
                return
            failed = self._run_flushes(flushes)
            if failed:
                self._report_failed(failed, [*done, *(flush for flush in flushes if flush.failure is None)], windows)
                return
            done += flushes
        self._report_drained(done, windows)

    def _run_flushes(self, flushes: list[Flush]) -> list[Flush]:
        """Side by side; those that failed."""
        attempt = self._attempt
        for flush in flushes:
            flush.start()
        while not all(flush.has_ended() for flush in flushes):
            if attempt.is_fenced:
                raise attempt.fenced_error()
            attempt.clock.sleep(POLL_SECONDS)
        for flush in flushes:
            flush.conclude()
        return [flush for flush in flushes if flush.failure is not None]

    def _said(self) -> list[Draining]:
        command_id = self._order.command_id
        return [
            event
            for event in self._attempt.reporter.events
            if isinstance(event, Draining) and event.command_id == command_id
        ]

    def _announced(self) -> dict[str, int]:
        """The batch that flushes, by query, as far as it was announced."""
        announced: dict[str, int] = {}
        for event in self._said():
            announced |= event.flush_batch_ids
        return announced

    def _keep_before(self, queries: list[LogicalQuery]) -> str | None:
        """The snapshot pre-drain, once per drain, before anything is flushed: its id."""
        if said := self._said():
            return said[-1].snapshot_id
        if not any(has_committed(self._attempt, query) for query in queries):
            return None
        return self._snapshot("pre-drain").snapshot_id

    def _announce(self, batch_ids: dict[str, int]) -> None:
        """Say which queries are flushed now, and in which batches; once."""
        announced, said = self._announced(), self._said()
        if said and all(announced.get(name) == batch_id for name, batch_id in batch_ids.items()):
            return
        made = self._made_before("pre-drain")
        self._attempt.reporter.write(
            Draining,
            command_id=self._order.command_id,
            snapshot_id=said[-1].snapshot_id if said else None if made is None else made.snapshot_id,
            flush_batch_ids=batch_ids,
        )

    def _snapshot(
        self, kind: SnapshotKind, flushes: Sequence[Flush] = (), windows: OpenWindows | None = None
    ) -> SnapshotManifest:
        """The snapshot of this kind for this drain; an earlier attempt may have made it."""
        attempt = self._attempt

        def take() -> SnapshotManifest:
            attempt.check_current()
            made = self._made_before(kind)
            if made is not None:
                return made
            queries = self._to_capture(flushes, windows)
            return take_snapshot(attempt, attempt.snapshot_id(kind), kind, self._order.command_id, queries)

        return persist(attempt, f"snapshot {kind}", take)

    def _take_stopped(self, flushed: Sequence[Flush], windows: OpenWindows | None) -> SnapshotManifest:
        """The snapshot of an end where some queries are flushed, and counted, and the others stand where they stood."""
        attempt = self._attempt

        def take() -> SnapshotManifest:
            attempt.check_current()
            queries = self._to_capture(flushed, windows)
            return take_snapshot(attempt, attempt.snapshot_id("stopped"), "stopped", "", queries)

        return persist(attempt, "snapshot stopped", take)

    def _to_capture(self, flushed: Sequence[Flush], windows: OpenWindows | None) -> dict[str, QueryToCapture]:
        queries = queries_to_capture(self._attempt)
        for flush in flushed:
            name = flush.query.name
            rows, left = flush.state_left()
            bounds = windows.of(name) if windows is not None else None
            queries[name] = replace(
                queries[name],
                drained=True,
                state_rows_left=rows,
                state_left=left,
                rows_written_early=flush.rows_written(),
                open_windows_from_at=bounds[0] if bounds else None,
                open_windows_until_at=bounds[1] if bounds else None,
            )
        return queries

    def _made_before(self, kind: SnapshotKind) -> SnapshotManifest | None:
        attempt = self._attempt
        for number in range(attempt.number, 0, -1):
            manifest = attempt.control.manifest(attempt.snapshot_id(kind, number))
            if manifest is not None and manifest.command_id == self._order.command_id:
                return manifest
        return None

    # the ends

    def _report_drained(self, flushes: list[Flush], windows: OpenWindows) -> None:
        attempt = self._attempt
        refuse_pending_flush(attempt)
        manifest = self._snapshot("drained", flushes, windows)
        also_answers = self._asked_too()
        audit_at_end(attempt)
        need_current(attempt)
        attempt.reporter.write(
            Drained,
            command_id=self._order.command_id,
            command_number=self._order.command_number,
            snapshot_id=manifest.snapshot_id,
            queries=positions_in(manifest),
            also_answers=also_answers,
        )
        attempt.reporter.say(f"drained; snapshot {manifest.snapshot_id}")
        clean_up(attempt)
        seal_positions(attempt, manifest)
        attempt.latch.release("drained")

    def _asked_too(self) -> tuple[str, ...]:
        """Notifications that came while this one was obeyed: the same event answers them."""
        attempt = self._attempt
        answered = {*answered_ids(attempt.reporter.events), self._order.command_id}
        found = []
        for slot in persist(attempt, "the commands", attempt.journal.commands):
            command = slot.command
            if not isinstance(command, DrainNotification) or command.command_id in answered:
                continue
            if (command.stream_id, command.deployment_id) == (attempt.stream_id, attempt.deployment_id):
                found.append(command.command_id)
        return tuple(found)

    def _report_failed(self, failed: list[Flush], flushed: list[Flush], windows: OpenWindows) -> None:
        attempt = self._attempt
        withdrawn = all(flush.failure is not None and flush.failure.withdrawn for flush in failed)
        choices = _CHOICES_UNDECIDED
        if withdrawn:
            choices = _CHOICES_PARTLY if flushed else _CHOICES_WITHDRAWN
        for flush in failed:
            if flush.failure is not None:
                self._write_failed(flush.query.name, flush.failure.error, choices, withdrawn=flush.failure.withdrawn)
        if withdrawn:
            finish_stopped(attempt, Order(), lambda: self._take_stopped(flushed, windows))
            return
        first = failed[0]
        error = first.failure.error if first.failure is not None else ""
        for flush in failed:
            if flush.failure is not None:
                flush.query.end(flush.failure.error, flush.failure.run)
        self._fail(f"the flush of query {first.query.name} failed: {error}", first.query.name)

    def _keep_all(self, unread: Mapping[str, str], flushed: list[Flush], windows: OpenWindows | None) -> None:
        """These must not be flushed, or nobody can say how: they keep their state."""
        for name, why in unread.items():
            self._write_failed(name, why, _CHOICES_PARTLY if flushed else _CHOICES_WITHDRAWN, withdrawn=True)
        finish_stopped(self._attempt, Order(), lambda: self._take_stopped(flushed, windows))

    def _give_up(self, failures: dict[str, str]) -> None:
        """A batch failed before the flush: the notification has had its end, the failure goes to the script."""
        try:
            choices = _CHOICES_BEGUN if begun_flushes(self._attempt) else _CHOICES_WITHDRAWN
        except DataError:
            choices = _CHOICES_BEGUN  # true of a log that cannot be judged, too
        for name, error in failures.items():
            self._write_failed(name, error, choices, withdrawn=True)
        clean_up(self._attempt)
        fail_queries(self._attempt, failures)

    def _break_off(self, error: StreamStateError) -> None:
        """A log or a snapshot is not what it must be: nothing more is touched."""
        attempt = self._attempt
        self._write_failed("", str(error), _CHOICES_UNDECIDED, withdrawn=False)
        for query in list(attempt.queries.values()):
            query.end(str(error))
        self._fail(str(error), "")

    def _fail(self, error: str, query_name: str) -> None:
        attempt = self._attempt
        need_current(attempt)
        attempt.reporter.write(Failed, error=attempt.reporter.shortened(error, 1_000), query_name=query_name)
        clean_up(attempt)
        attempt.latch.release("failed")

    def _write_failed(self, query_name: str, error: str, choices: tuple[str, ...], *, withdrawn: bool) -> None:
        attempt = self._attempt
        attempt.reporter.write(
            DrainFailed,
            command_id=self._order.command_id,
            command_number=self._order.command_number,
            query_name=query_name,
            error=attempt.reporter.shortened(error, 4_000),
            withdrawn=withdrawn,
            choices=choices,
        )
        attempt.reporter.say(f"the drain failed at query {query_name}: {error}")


_CHOICES_WITHDRAWN = (
    "resume the deployment: it goes on with its state, as if no drain had been asked for",
    "deploy a version that mends the cause: it starts with the state of the snapshot that was taken",
)
_CHOICES_PARTLY = (
    "resume the deployment: what is flushed stays flushed, and the other queries are drained too",
    "deploy a version that mends the cause: the flushed queries start at their offsets with fresh state, the others "
    "with the state of the snapshot that was taken",
)
_CHOICES_BEGUN = ("resume the deployment: what is flushed stays flushed, and the drain goes on with the other queries",)
_CHOICES_UNDECIDED = (
    "resume the deployment: it runs the same flush batch again, exact where the sink is idempotent by batch id",
    "look whether the sink holds the flush batch before anything else is started from the snapshot pre-drain",
)
