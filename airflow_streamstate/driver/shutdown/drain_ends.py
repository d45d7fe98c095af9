"""The ends of a drain: drained, failed, given up or called off. Each writes its events once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_streamstate.control.command_status import of_kind
from airflow_streamstate.driver.attempt.answering import clean_up
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.auditing import audit_at_end
from airflow_streamstate.driver.attempt.cancelling import cancel_drains
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.attempt.sealing import seal_positions
from airflow_streamstate.driver.attempt.snapshotting import need_current, positions_in, retry_until_fenced
from airflow_streamstate.driver.shutdown.begun_flushes import begun_flushes, refuse_pending_flush
from airflow_streamstate.driver.shutdown.calling import call_functions
from airflow_streamstate.driver.shutdown.drain_snapshots import DrainSnapshots
from airflow_streamstate.driver.shutdown.flushing import Flush
from airflow_streamstate.driver.shutdown.limits import CallOff
from airflow_streamstate.driver.shutdown.open_windows import OpenWindows
from airflow_streamstate.driver.shutdown.self_drains import self_drain_reason
from airflow_streamstate.driver.shutdown.stopping import ends_of, fail_queries, finish_stopped
from airflow_streamstate.errors import DataError, StreamStateError
from airflow_streamstate.protocol.commands import DrainNotification
from airflow_streamstate.protocol.events import AfterDrain, Drained, DrainFailed, DrainFailure, Failed


class DrainEnds:
    """Writes the end of one drain."""

    def __init__(self, attempt: Attempt, order: Order, snapshots: DrainSnapshots) -> None:
        self._attempt = attempt
        self._order = order
        self._snapshots = snapshots

    def said(self) -> DrainFailed | None:
        """The event by which this attempt called the drain off; None where it did not."""
        for event in reversed(self._attempt.reporter.events):
            if isinstance(event, DrainFailed) and event.command_id == self._order.command_id:
                return event if event.cause != "flush" and event.attempt == self._attempt.number else None
        return None

    def drained(self, flushes: Sequence[Flush], windows: OpenWindows, left_seconds: float | None = None) -> None:
        """Every flush is committed; ``left_seconds`` is the time until the deadline of the flush, None without one."""
        attempt = self._attempt
        refuse_pending_flush(attempt)
        manifest = self._snapshots.take("drained", flushes, windows)
        failures = call_functions(attempt, "drain", manifest, within_seconds=left_seconds)
        if failures:
            self._own_part_failed(failures)
            return
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
            ends=ends_of(attempt),
            reason=self_drain_reason(self._order.command),
        )
        attempt.reporter.say(f"drained; snapshot {manifest.snapshot_id}")
        clean_up(attempt)
        seal_positions(attempt, manifest)
        attempt.latch.release("drained")

    def _own_part_failed(self, failures: Mapping[str, str]) -> None:
        errors = "; ".join(f"{name}: {why}" for name, why in failures.items())
        error = f"a function of the job failed at its drain: {errors}"
        self._write_failed("", error, CHOICES_OWN_PART, withdrawn=False)
        self._fail_all(error)

    def _asked_too(self) -> tuple[str, ...]:
        """Drains that were ordered meanwhile: the same event answers them."""
        attempt = self._attempt
        slots = retry_until_fenced(attempt, "the commands", attempt.journal.commands)
        return tuple(
            drain.command_id
            for drain, status in of_kind(attempt.commands(slots), DrainNotification)
            if status.slot is not None
            and not status.is_ended
            and drain.command_id != self._order.command_id
            and (drain.stream_id, drain.deployment_id) == (attempt.stream_id, attempt.deployment_id)
        )

    def called_off(self, call_off: CallOff, then: AfterDrain) -> None:
        """Write that the drain is called off before any flush; the caller does what follows."""
        if call_off.cause == "cancelled":
            attempt, command_id = self._attempt, self._order.command_id
            retry_until_fenced(attempt, "the commands", lambda: cancel_drains(attempt, but=command_id))
        choices = () if then == "runs_on" else CHOICES_WITHDRAWN
        if call_off.cause == "not_started":
            choices = CHOICES_NOT_STARTED
        self._write_failed("", call_off.why, choices, withdrawn=True, call_off=call_off, then=then)
        clean_up(self._attempt)

    def flush_called_off(self, failed: Sequence[Flush], call_off: CallOff) -> None:
        """Write that flushes were called off and the queries run on."""
        for flush in failed:
            self._write_failed(flush.query.name, call_off.why, (), withdrawn=True, call_off=call_off, then="runs_on")
        clean_up(self._attempt)

    def flush_failed(
        self,
        failed: Sequence[Flush],
        flushed: Sequence[Flush],
        windows: OpenWindows | None,
        call_off: CallOff | None = None,
    ) -> None:
        """Flushes failed, or were cut at their deadline; others may be committed."""
        withdrawn = all(flush.failure is not None and flush.failure.withdrawn for flush in failed)
        choices = CHOICES_UNDECIDED
        if withdrawn:
            choices = CHOICES_PARTLY if flushed else CHOICES_WITHDRAWN
        for flush in failed:
            if flush.failure is not None:
                error = flush.failure.error if call_off is None else call_off.why
                self._write_failed(
                    flush.query.name, error, choices, withdrawn=flush.failure.withdrawn, call_off=call_off
                )
        if withdrawn:
            self._finish_stopped(flushed, windows)
            return
        first = failed[0]
        error = first.failure.error if first.failure is not None else ""
        for flush in failed:
            if flush.failure is not None:
                flush.query.end(flush.failure.error, flush.failure.run)
        self._fail(f"the flush of query {first.query.name} failed: {error}", first.query.name)

    def kept_all(self, unread: Mapping[str, str], flushed: Sequence[Flush], windows: OpenWindows | None) -> None:
        """These queries must not be flushed, or their timers could not be read: they keep their state."""
        for name, why in unread.items():
            self._write_failed(name, why, CHOICES_PARTLY if flushed else CHOICES_WITHDRAWN, withdrawn=True)
        self._finish_stopped(flushed, windows)

    def stopped_part_way(self, call_off: CallOff, flushed: Sequence[Flush], windows: OpenWindows | None) -> None:
        """Stop between two stages: flushed queries stay flushed, the others keep their state."""
        self._write_failed("", call_off.why, CHOICES_PARTLY, withdrawn=True, call_off=call_off)
        self._finish_stopped(flushed, windows)

    def _finish_stopped(self, flushed: Sequence[Flush], windows: OpenWindows | None) -> None:
        finish_stopped(self._attempt, Order(), lambda: self._snapshots.take_stopped(flushed, windows))

    def given_up(self, failures: Mapping[str, str]) -> None:
        """A batch failed before the flush: the drain has failed, the script gets the failure."""
        try:
            choices = CHOICES_BEGUN if begun_flushes(self._attempt) else CHOICES_WITHDRAWN
        except DataError:
            choices = CHOICES_BEGUN  # also right for a log that cannot be read
        for name, error in failures.items():
            self._write_failed(name, error, choices, withdrawn=True)
        clean_up(self._attempt)
        fail_queries(self._attempt, dict(failures))

    def broken_off(self, error: StreamStateError) -> None:
        """A log or a snapshot is damaged or missing: nothing more is changed."""
        self._write_failed("", str(error), CHOICES_UNDECIDED, withdrawn=False)
        self._fail_all(str(error))

    def not_cut(self, names: Sequence[str]) -> None:
        """Queries do not end although their batches are cut: the driver process has to end."""
        self._fail_all(f"the batch in flight of {', '.join(names)} could not be cut; the driver is ended")

    def _fail_all(self, error: str) -> None:
        for query in self._attempt.queries.all():
            query.end(error)
        self._fail(error, "")

    def _fail(self, error: str, query_name: str) -> None:
        attempt = self._attempt
        need_current(attempt)
        attempt.reporter.write(Failed, error=attempt.reporter.shortened(error, 1_000), query_name=query_name)
        clean_up(attempt)
        attempt.latch.release("failed")

    def _write_failed(
        self,
        query_name: str,
        error: str,
        choices: tuple[str, ...],
        *,
        withdrawn: bool,
        call_off: CallOff | None = None,
        then: AfterDrain = "",
    ) -> None:
        attempt = self._attempt
        cause: DrainFailure = "flush" if call_off is None else call_off.cause
        attempt.reporter.write(
            DrainFailed,
            command_id=self._order.command_id,
            command_number=self._order.command_number,
            query_name=query_name,
            error=attempt.reporter.shortened(error, 1_000, in_a_line=True),
            withdrawn=withdrawn,
            choices=choices,
            cause=cause,
            then=then,
            also_answers=() if call_off is None else call_off.answers,
        )
        of = f" at query {query_name}" if query_name else ""
        attempt.reporter.say(f"the drain {'failed' if call_off is None else 'is called off'}{of}: {error}")


CHOICES_WITHDRAWN = (
    "resume the deployment: it continues with its state, as if no drain had been ordered",
    "deploy a version that fixes the cause: it starts with the state of the snapshot that was taken",
)
CHOICES_NOT_STARTED = (
    "fix what keeps the script from starting it, and drain again",
    "drain with --leave-query NAME: its state stays as it is, and the next deployment goes on with it",
)
CHOICES_PARTLY = (
    "resume the deployment: the flushed queries stay flushed, and the other queries are drained too",
    "deploy a version that fixes the cause: the flushed queries start at their offsets with fresh state, the others "
    "with the state of the snapshot that was taken",
)
CHOICES_BEGUN = (
    "resume the deployment: the flushed queries stay flushed, and the drain continues with the other queries",
)
CHOICES_OWN_PART = (
    "drain the deployment again: every flush is committed, and the functions that failed are called again",
)
CHOICES_UNDECIDED = (
    "resume the deployment: it runs the same flush batch again, exact where the sink is idempotent by batch id",
    "check whether the sink holds the flush batch before you start anything else from the snapshot pre-drain",
)
