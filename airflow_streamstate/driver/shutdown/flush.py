"""The flush of one query: the drain entry runs as one batch, on a fork in a rehearsal; its snapshots (1a.5)."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from typing import TypeVar

from airflow_streamstate.checkpoint.barrier import exchange_for_drain, withdraw
from airflow_streamstate.checkpoint.fork import fork, plan_flush, wipe
from airflow_streamstate.checkpoint.log import Checkpoint, Position
from airflow_streamstate.checkpoint.repair import (
    DrainCommitted,
    DrainPending,
    Foreign,
    accept_empty_batch,
    classify,
    pin_partitions,
)
from airflow_streamstate.checkpoint.state_files import delete_version, files_of
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.attempt_snapshots import (
    checkpoint_names,
    need_current,
    queries_to_capture,
    retry_until_fenced,
    take_snapshot,
)
from airflow_streamstate.driver.attempt.latch import Order
from airflow_streamstate.driver.attempt.logical_query import POLL_SECONDS, LogicalQuery
from airflow_streamstate.driver.attempt.ports import NotWatchedError, OperatorRows, QueryRun
from airflow_streamstate.driver.start.checkpoints import tell_repeated
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    FencedError,
    ObjectMissingError,
    OutcomeUnknownError,
    StreamStateError,
    UnavailableError,
    UnsupportedCheckpointError,
)
from airflow_streamstate.plan.model import QueryPlan, StateOperator
from airflow_streamstate.plan.record import recorded_plans
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import DrainNotification
from airflow_streamstate.protocol.ids import SnapshotKind, snapshot_id_for, snapshot_number_of
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.positions import StateLeft
from airflow_streamstate.protocol.terms.order import DrainMode
from airflow_streamstate.snapshot.capture import QueryToCapture
from airflow_streamstate.snapshot.deletion import leased

# The reach of a flush: every end of event time, and processing-time timers where the batch time is moved to them.
#
# ``current_timestamp()`` writes the batch time into the user's output, so it moves no further than the last timer.

NO_WATERMARK = "the query has no watermark that could pass it"
NOT_REACHED = "no watermark reaches it: it has no event time, or no timeout"
NOT_ASKED = "its timers are of processing time, which a drain of mode event_time leaves"
NOT_FIRED = "its due timers of processing time fired: these rows were set again, have a time to live, or are kept"
LIVES_ON = "its variables have a time to live, which a flush does not wait for"


class FlushReach:
    """The reach of the flushes of one drain.

    Args:
        order: the drain; ``default`` is its mode where its content is lost.
        plans: the known plans of the queries.
    """

    def __init__(self, attempt: Attempt, order: Order, plans: Mapping[str, QueryPlan]) -> None:
        self._attempt = attempt
        self.mode: DrainMode = order.command.mode if isinstance(order.command, DrainNotification) else "default"
        self._plans = plans

    def batch_time_ms(self, query: LogicalQuery, checkpoint: Checkpoint) -> int | None:
        """The batch time of the flush, in milliseconds since 1970; None for that of the batch before.

        Args:
            checkpoint: the query's own, or a fork, which nothing writes at this time.

        Raises:
            whatever Spark raises where the state cannot be read.
        """
        if self.mode != "default" or not query.startable.facts.stateful:
            return None
        plan = self._plans.get(query.name)
        if plan is not None and not any(map(_is_timed, plan.operators)):
            return None
        timed_out_ids = () if plan is None else tuple(each.operator_id for each in plan.operators if _times_out(each))
        due_ms = query.startable.last_timer_ms(self._attempt.uri_of(checkpoint), timed_out_ids)
        position = checkpoint.position()
        last = None if position.batch_id is None else checkpoint.read_offset(position.batch_id)
        if due_ms is None or last is None or due_ms < last.batch_timestamp_ms:
            return None
        return due_ms + 1  # Spark fires what is due before the batch time

    def why_left(self, query: LogicalQuery, operator_id: int) -> str:
        """The human-readable reason why an operator has rows after the flush."""
        plan = self._plans.get(query.name)
        operators = [] if plan is None else [each for each in plan.operators if each.operator_id == operator_id]
        is_timed = any(map(_is_timed, operators))
        if is_timed and self.mode != "default":
            return NOT_ASKED
        # Spark supports a time to live only in processing-time mode, with or without timers.
        if any(variable.has_ttl for each in operators for variable in each.variables or ()):
            return LIVES_ON
        if is_timed:
            return NOT_FIRED
        return NOT_REACHED if query.startable.facts.watermarks else NO_WATERMARK


def _times_out(operator: StateOperator) -> bool:
    return operator.timeout == "ProcessingTimeTimeout"


def _is_timed(operator: StateOperator) -> bool:
    return operator.time_mode == "ProcessingTime" or _times_out(operator)


Result = TypeVar("Result")


@dataclass(frozen=True)
class FlushFailure:
    """Why a flush is not committed.

    Attributes:
        withdrawn: the sink provably lacks the batch, and the entry is removed: the query is back where it was.
        run: the run that failed; None where Spark refused to start.
    """

    error: str
    withdrawn: bool
    run: QueryRun | None


class Flush:
    """The flush of one query that is at its barrier."""

    def __init__(self, attempt: Attempt, query: LogicalQuery, command_id: str, reach: FlushReach) -> None:
        self._attempt = attempt
        self.query = query
        self._command_id = command_id
        self._reach = reach
        self._batch_time_ms: int | None = None
        self._run: QueryRun | None = None
        self._refusal: str | None = None
        self._is_first_try = False
        self.batch_id = -1
        self.failure: FlushFailure | None = None

    def prepare(self) -> int:
        """The id of the flush batch; reads only. Raises what the checkpoint raises."""
        checkpoint = self.query.checkpoint
        found = classify(checkpoint, self._attempt.deployment_id)
        self.batch_id = found.batch_id if isinstance(found, DrainCommitted) else checkpoint.position().barrier_id
        return self.batch_id

    def look_ahead(self) -> str | None:
        """Determine the batch time of the flush; reads only. Returns why the state could not be read, else None.

        A flush that an earlier attempt has started keeps the batch time of its entry.
        """
        checkpoint = self.query.checkpoint
        entry = self._retry("the offset log", lambda: checkpoint.read_offset(self.batch_id))
        self._is_first_try = entry is None or entry.mark is None or entry.mark.kind != "drain"
        if not self._is_first_try or entry is None:
            return None
        try:
            due_ms = self._reach.batch_time_ms(self.query, checkpoint)
        except FencedError:
            raise
        except Exception as error:
            self._attempt.reporter.say(traceback.format_exc())
            return f"its timers of processing time could not be read: {type(error).__name__}: {error}"
        if due_ms is not None:
            self._batch_time_ms = due_ms
            moment = datetime.fromtimestamp(due_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")
            self._attempt.reporter.say(
                f"query {self.query.name}: its flush runs at {moment}, when its last timer is due"
            )
        return None

    def start(self) -> None:
        """Exchange the entry and start the flush, unless it is committed; returns while it runs."""
        checkpoint = self.query.checkpoint
        if self._retry("the commit log", lambda: checkpoint.is_committed(self.batch_id)):
            return
        need_current(self._attempt)
        # The drain entry is a copy of the entry before it, and Spark needs this setting in both.
        partitions = self.query.session_partitions
        self._retry("the offset log", lambda: pin_partitions(checkpoint, partitions))
        self._retry("the schemas of the state", lambda: accept_empty_batch(checkpoint))
        mark = self._attempt.mark("drain", self._command_id)
        time_ms = self._batch_time_ms
        self._retry(
            "the exchange for the drain", lambda: exchange_for_drain(checkpoint, mark, batch_timestamp_ms=time_ms)
        )
        if not self._is_first_try:
            tell_repeated(self._attempt, self.query, self.batch_id, is_flush=True)
        self._attempt.reporter.say(f"query {self.query.name}: batch {self.batch_id} flushes")
        try:
            self._run = self.query.startable.start_once(self._attempt.uri_of(checkpoint))
        except FencedError:
            raise
        except Exception as error:
            self._is_first_try = self._is_first_try and not isinstance(error, NotWatchedError)
            self._refusal = f"{type(error).__name__}: {error}"
            self._attempt.reporter.say(traceback.format_exc())
        else:
            self.query.add_run(self._run, once=True)

    def has_ended(self) -> bool:
        try:
            return self._run is None or self._run.has_ended()
        except UnavailableError:
            return False

    def conclude(self, *, may_withdraw: bool = True) -> None:
        """Judge the ended flush by the log (Law 13). ``may_withdraw``: remove its entry where the sink provably lacks
        the batch and nothing of it runs."""
        checkpoint = self.query.checkpoint
        if self._retry("the commit log", lambda: checkpoint.is_committed(self.batch_id)):
            if self._run is not None:
                self.query.last_end = replace(self.query.last_end, flushed_at=self._attempt.clock.now())
            return
        run = self._run
        error = self._refusal or (run.failure() if run is not None else None) or "the flush ended without a commit"
        withdrawn = may_withdraw and self._is_over() and self._sink_lacks_batch()
        if withdrawn:
            # State first: after a crash in between, the entry makes the next attempt flush again.
            version = self.batch_id + 1
            self._retry("the state of the flush", lambda: delete_version(checkpoint, version))
            self._retry("taking back the drain", lambda: withdraw(checkpoint, self.batch_id))
        self.failure = FlushFailure(error, withdrawn, run)

    def _retry(self, doing: str, act: Callable[[], Result]) -> Result:
        return retry_until_fenced(self._attempt, doing, act)

    def _is_over(self) -> bool:
        """Whether nothing of it writes any more: its thread has ended, and within the grace its tasks."""
        clock, run = self._attempt.clock, self._run
        until = clock.monotonic_seconds() + self._attempt.spec.version.settings.exit_grace_seconds
        while not self.has_ended() or (run is not None and self._retry("Spark", run.has_running_tasks)):
            if clock.monotonic_seconds() >= until:
                return False
            clock.sleep(POLL_SECONDS)
        return True

    def _sink_lacks_batch(self) -> bool:
        if self._run is None and self._is_first_try:
            return True  # Spark refused to start, so the sink never got this batch
        try:
            # A sink that is keyed by the query id cannot answer without it.
            query_id = self._retry("the checkpoint", self.query.checkpoint.query_id)
            held = self.query.startable.held_batches(query_id, self.batch_id)
            return query_id is not None and held.lacks(self.batch_id)
        except Exception:
            self._attempt.reporter.say(f"the sink of {self.query.name} could not be asked: {traceback.format_exc()}")
            return False

    def state_left(self) -> tuple[int | None, tuple[StateLeft, ...]]:
        """Rows left in the state, None where they could not be counted, and the operators that hold them."""
        operators = self._operators()
        if operators is None:
            return None, ()
        left = tuple(
            StateLeft(one.name, one.operator_id, one.rows, self._reach.why_left(self.query, one.operator_id))
            for one in operators
            if one.rows
        )
        return sum(one.rows for one in left), left

    def rows_written(self) -> int | None:
        """Rows that the flush gave to the sink; None where Spark does not report it."""
        progress = self._run.last_progress() if self._run is not None else None
        return progress.output_rows if progress is not None and progress.batch_id == self.batch_id else None

    def _operators(self) -> tuple[OperatorRows, ...] | None:
        try:
            progress = self._run.last_progress() if self._run is not None else None
            if progress is not None and progress.batch_id == self.batch_id:
                return progress.state
            if not self.query.startable.facts.stateful:
                return ()
            return self.query.startable.count_state_rows(self._attempt.uri_of(self.query.checkpoint))
        except StreamStateError as error:
            why = str(error)
        except Exception:
            why = traceback.format_exc()
        self._attempt.reporter.note("the rows left in the state could not be counted", query=self.query.name, why=why)
        return None


# The windows that a drain closes early, read from the ``pre-drain`` snapshot while the flush runs.

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
        except UnsupportedCheckpointError as error:
            attempt.reporter.say(f"the open windows of {query.name} are not known: {error}")
        except Exception:
            attempt.reporter.say(f"the open windows of {query.name} are not known: {traceback.format_exc()}")
        self._found[query.name] = bounds


# Flushes that this attempt or an earlier one has started, found in the logs.
#
# The sink may hold such a batch already, so the query is neither kept with its state nor seeded uncounted (Law 14).


def begun_flushes(attempt: Attempt) -> dict[str, DrainPending | DrainCommitted]:
    """The started flush of each query of this deployment that has one.

    Waits for the store; raises DataError for a damaged log.
    """
    return retry_until_fenced(attempt, "the logs", lambda: _begun(attempt))


def _begun(attempt: Attempt) -> dict[str, DrainPending | DrainCommitted]:
    found = {}
    for name in checkpoint_names(attempt):
        checkpoint = attempt.checkpoint_of(name)
        if not checkpoint.exists():
            continue
        finding = classify(checkpoint, attempt.deployment_id)
        beneath = finding.beneath if isinstance(finding, Foreign) else finding
        if isinstance(beneath, (DrainPending, DrainCommitted)) and beneath.mark.deployment_id == attempt.deployment_id:
            found[name] = beneath
    return found


def refuse_carrying_on(attempt: Attempt, missing: list[str]) -> None:
    """Raise ConflictError if a query that the script does not start has a started flush."""
    begun = begun_flushes(attempt)
    for name in missing:
        if name in begun:
            raise ConflictError(
                "the flush of this query was started in an earlier attempt, and the script has not started the query",
                query_name=name,
                flush_batch_id=begun[name].drain_id,
                next_step="Resume the deployment with a script that starts it: the driver then completes its flush.",
            )


def refuse_pending_flush(attempt: Attempt) -> None:
    """Raise ConflictError if a flush has started and is not committed: that query has no position to keep (Law 14)."""
    for name, found in begun_flushes(attempt).items():
        if isinstance(found, DrainPending):
            raise ConflictError(
                "the flush of this query was started and is not committed, so the sink may hold its batch already",
                query_name=name,
                flush_batch_id=found.drain_id,
                next_step=f"`streamstate drain {attempt.stream_id}` completes that batch.",
            )


# The snapshots of one drain: before the flush, after it, and at an end where only some queries are flushed.


class DrainSnapshots:
    """Takes the snapshots of one drain; each is taken once over all attempts."""

    def __init__(self, attempt: Attempt, order: Order) -> None:
        self._attempt = attempt
        self._order = order

    def take(
        self,
        kind: SnapshotKind,
        flushed: Sequence[Flush] = (),
        windows: OpenWindows | None = None,
        *,
        check: Callable[[], None] = lambda: None,
    ) -> SnapshotManifest:
        """The snapshot of this kind for this drain; an earlier attempt may have taken it.

        ``check`` runs before each try and during the copy to its place; it raises to abandon the snapshot.
        """
        attempt = self._attempt

        def take() -> SnapshotManifest:
            attempt.fence.check_current()
            made = self._made_before(kind)
            if made is not None:
                return made
            check()
            queries = self._to_capture(flushed, windows)
            return take_snapshot(attempt, self._free_id(kind), kind, self._order.command_id, queries, go_on=check)

        return retry_until_fenced(attempt, f"snapshot {kind}", take)

    def made_before_flush(self) -> SnapshotManifest | None:
        """The ``pre-drain`` snapshot, if it was taken."""
        return self._made_before("pre-drain")

    def take_stopped(self, flushed: Sequence[Flush], windows: OpenWindows | None) -> SnapshotManifest:
        """The snapshot of an end where some queries are flushed and the others keep their state."""
        attempt = self._attempt

        def take() -> SnapshotManifest:
            attempt.fence.check_current()
            queries = self._to_capture(flushed, windows)
            return take_snapshot(attempt, attempt.snapshot_id("stopped"), "stopped", "", queries)

        return retry_until_fenced(attempt, "snapshot stopped", take)

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
        for manifest in self._of_kind(kind).values():
            if manifest is not None and manifest.command_id == self._order.command_id:
                return manifest
        return None

    def _free_id(self, kind: SnapshotKind) -> str:
        """An id behind all existing ones: several drains of an attempt may be called off, and ids of pruned snapshots
        are not reused."""
        taken = [snapshot_number_of(snapshot_id) for snapshot_id in self._of_kind(kind)]
        number = max((self._attempt.number, *(one + 1 for one in taken if one is not None)))
        return snapshot_id_for(self._attempt.deployment_id, kind, number)

    def _of_kind(self, kind: SnapshotKind) -> dict[str, SnapshotManifest | None]:
        """The complete snapshots of this kind, by id; None where the manifest cannot be read."""
        control = self._attempt.control
        found: dict[str, SnapshotManifest | None] = {}
        for snapshot_id in control.snapshot_ids():
            if snapshot_id.startswith(f"{self._attempt.deployment_id}-{kind}-"):
                try:
                    manifest = control.manifest(snapshot_id)
                except DataError:
                    found[snapshot_id] = None
                else:
                    if manifest is not None:
                        found[snapshot_id] = manifest
        return found


# The rehearsal of a drain: each flush runs on a fork of the state into no sink, while the queries run on.
#
# The fork links to the query's files, has its own id, and is removed again. The effects of user functions that
# run when a timer fires are real.

FORK_TRIES = 5
TRIAL_SECONDS = 1_800.0
"""A trial that takes longer ends the drain (Law 6)."""
MAX_WORDS_CHARACTERS = 600


@dataclass(frozen=True)
class Foreseen:
    """The result of the trials.

    Attributes:
        tried: the queries whose flush was tried, or that have no state to flush.
        problems: why a query must not be flushed, by query.
    """

    tried: frozenset[str] = frozenset()
    problems: Mapping[str, str] = field(default_factory=dict)


def foresee(attempt: Attempt, order: Order, queries: Sequence[LogicalQuery]) -> Foreseen:
    """Try the flush of each query that has state, if the drain asks for a rehearsal.

    The queries run, or are at their barriers. Raises UnavailableError or OutcomeUnknownError where the store does not
    answer.
    """
    command = order.command
    if not isinstance(command, DrainNotification) or not command.rehearse:
        return Foreseen(frozenset(query.name for query in queries))
    plans = retry_until_fenced(attempt, "the plans", lambda: recorded_plans(attempt.control, attempt.deployment_id))
    reach = FlushReach(attempt, order, plans)
    tried, problems = set[str](), {}
    for query in queries:
        if query.startable.facts.stateful:
            attempt.reporter.say(f"query {query.name}: its flush is tried on a fork of its state")
            problem = _tried(attempt, query, reach, command)
            if problem is None:
                continue
            if problem:
                problems[query.name] = problem
                attempt.reporter.say(f"query {query.name}: {problem}")
        tried.add(query.name)
    return Foreseen(frozenset(tried), problems)


def _tried(attempt: Attempt, query: LogicalQuery, reach: FlushReach, command: DrainNotification) -> str | None:
    """Why its flush must not be done; "" where it may, or the drain's deadline came first; None without a commit."""
    by_at = command.batches_by_at
    left_seconds = TRIAL_SECONDS if by_at is None else (by_at - attempt.clock.now()).total_seconds()
    if left_seconds <= 0:
        return ""
    folder = layout.trial_folder(attempt.stream_id, attempt.deployment_id, query.name)
    trial = Checkpoint(attempt.checkpoints, folder)
    try:
        wipe(trial)  # of a trial that died
        if not _forked(attempt, query.checkpoint, trial):
            return None
        flush_batch_id = plan_flush(trial, reach.batch_time_ms(query, trial))
    except (FencedError, UnavailableError, OutcomeUnknownError):
        raise
    except Exception as error:
        return f"its flush could not be tried: {_words(attempt, error)}"
    try:
        progress = query.startable.run_trial_batch(attempt.uri_of(trial), min(left_seconds, TRIAL_SECONDS))
        if not trial.is_committed(flush_batch_id):
            if left_seconds < TRIAL_SECONDS:
                return ""
            return f"its flush could not be tried within {TRIAL_SECONDS:g} s"
        rows = progress.state if progress is not None else query.startable.count_state_rows(attempt.uri_of(trial))
    except (FencedError, UnavailableError, OutcomeUnknownError):
        raise
    except Exception as error:
        return f"its flush fails: {_words(attempt, error)}"
    finally:
        with suppress(StreamStateError):  # the next trial wipes it, too
            wipe(trial)
    left = [each for each in rows if each.rows]
    if command.allow_state_loss or not left:
        return ""
    rows_left = "; ".join(
        f"{each.rows} rows of {each.name}: {reach.why_left(query, each.operator_id)}" for each in left
    )
    return f"a flush would leave state that a seed drops: {rows_left} (--allow-state-loss)"


def _words(attempt: Attempt, error: Exception) -> str:
    return attempt.reporter.shortened(f"{type(error).__name__}: {error}", MAX_WORDS_CHARACTERS, in_a_line=True)


def _forked(attempt: Attempt, checkpoint: Checkpoint, trial: Checkpoint) -> bool:
    """Link the files of the last committed batch; False if there is no committed batch."""
    for number in range(FORK_TRIES):
        batch_id = checkpoint.position().batch_id
        if batch_id is None:
            return False
        try:
            keys = files_of(checkpoint, Position(batch_id))
            files = {key.removeprefix(f"{checkpoint.prefix}/"): key for key in keys}
            # Spark ends a running query when another one starts with the same id.
            metadata = json.dumps({"id": attempt.clock.new_uuid()}).encode()
            fork(attempt.checkpoints, files, trial, {"metadata": metadata})
        except ObjectMissingError:
            if number == FORK_TRIES - 1:
                raise
            wipe(trial)  # the query has moved on
        else:
            return True
    return False
