"""Runs a replay: recorded batches of each query once more, on a fork of their state, into Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from traceback import format_exception

from airflow_streamstate.checkpoint.fork import ReadBatch, batch_at, fork_before, plan_again, wipe
from airflow_streamstate.checkpoint.guards import STATE_FORMAT, guard_state_format
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.driver.rehearsal.committed_batches import FORK_TRIES, RehearsedAttempt, files_read
from airflow_streamstate.driver.rehearsal.rehearsal_run import MAX_TRACEBACK_CHARACTERS, Rehearsing, Words
from airflow_streamstate.driver.rehearsal.script_failures import debug_failure, is_debugging, values_at, without_values
from airflow_streamstate.driver.start.recorded_plans import plan_of
from airflow_streamstate.errors import (
    DeadlineExceededError,
    IncompatibleUpgradeError,
    InputLostError,
    InvalidRequestError,
    ObjectMissingError,
    StreamStateError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.ids import encode_query_name
from airflow_streamstate.protocol.redaction import cause_in, without_query_report
from airflow_streamstate.protocol.scratch import (
    Rehearsal,
    RehearsedQuery,
    ReplayedBatch,
    RowComparison,
    ScratchOutcome,
    ScratchRun,
    StateComparison,
)

NOT_ASKED = "no batch of it was asked for"
FOREACH_BATCH = "foreachBatch"
NO_FOREACH_BATCH = "it has no foreachBatch to call: its sink is {}, which is not written"
STATE_FOLDER = "_state"
"""Alongside the folders of the batches; Spark's readers pass such names over."""
NOT_COMPARED = "its state {} was not compared: {}"
NO_OLD_STATE = "its state was not compared: the recorded version did not end, or left none that can be read"
SAMPLES = 5
"""At most this many rows that only one version has are shown, of each side of each batch."""
TO_ANSWER_SECONDS = 2.0
"""Before the deadline a batch is stopped, so that the batches before it are reported."""


class Replaying(Rehearsing):
    """A rehearsal whose queries replay batches; other arguments as ``Rehearsing``."""

    def __init__(
        self,
        attempt: RehearsedAttempt,
        run: ScratchRun,
        words: Words,
        end_script: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(attempt, run, words, end_script, Rehearsal())
        self._terms = run.replay
        self._late = ""

    @property
    def debugger(self) -> str:
        """The socket of a debugger; "" without one."""
        return self._terms.debugger

    def debug(self, error: BaseException) -> None:
        """Open the debugger, if there is one, where an error was raised in this process."""
        if self.debugger:
            debug_failure(self.debugger, error)

    def _overdue(self) -> int | None:
        if not is_debugging():
            return super()._overdue()
        if self._quiet_since_seconds is not None:  # a person keeps the script from its end
            self._quiet_since_seconds = self.attempt.clock.monotonic_seconds()
        return None

    def _tried(self, name: str, startable: StartableQuery) -> RehearsedQuery:
        attempt, begun = self.attempt, self.attempt.clock.monotonic_seconds()
        batch_ids = self._terms.batches.get(name)
        if batch_ids is None:
            return RehearsedQuery("not_run", notes=(NOT_ASKED,))
        fork = Checkpoint(attempt.checkpoints, layout.trial_folder(attempt.stream_id, self._scratch.run_id, name))
        ran: list[ReplayedBatch] = []
        found = RehearsedQuery("accepted")
        try:
            refusal = self._refused.pop(id(startable), None)
            if refusal is not None:
                raise refusal
            batches = self._forked(name, batch_ids, fork)
            self._check(name, startable, batches, fork)
            for batch in batches:
                ran.append(self._run(name, startable, batch, fork))
                self._queries[name] = _told(found, ran, batch_ids)  # should the deadline pass in what follows
                if ran[-1].folder:
                    ran[-1] = replace(ran[-1], comparison=self._compared(name, startable, Path(ran[-1].folder)))
                if ran[-1].error:
                    found = replace(found, outcome="failed", error=f"batch {batch.batch_id} fails: {ran[-1].error}")
                    break
            if self._terms.keeps_state and found.outcome == "accepted":
                self._queries[name] = _told(found, ran, batch_ids)
                found = self._with_state(found, name, startable, batches[-1].batch_id, fork)
        except Exception as problem:
            outcome, error = self._judged(problem)
            found = replace(found, outcome=outcome, error=self._line(error))
            if isinstance(problem, DeadlineExceededError):
                found, self._late = replace(found, outcome="failed"), found.error
        with suppress(StreamStateError):  # the end of the rehearsal removes it, too
            wipe(fork)
        attempt.sources.close(name)
        found = _told(found, ran, batch_ids)
        if self._terms.calls_foreach_batch and startable.facts.sink != FOREACH_BATCH:
            found = replace(found, notes=(*found.notes, NO_FOREACH_BATCH.format(startable.facts.sink)))
        return replace(found, seconds=round(attempt.clock.monotonic_seconds() - begun, 3))

    def _give(self, outcome: ScratchOutcome, error: str, traceback: str = "", *, seed_error: str = "") -> None:
        if self._late and outcome == "done":
            outcome, error = "deadline", self._late
        super()._give(outcome, error, traceback, seed_error=seed_error)

    def _forked(self, name: str, batch_ids: Sequence[int], fork: Checkpoint) -> list[ReadBatch]:
        """The batches, with the fork standing before the first."""
        attempt, deployment_id = self.attempt, self._scratch.deployment_id
        old = Checkpoint(attempt.checkpoints, layout.checkpoint_folder(attempt.stream_id, deployment_id, name))
        for _ in range(FORK_TRIES):
            wipe(fork)
            batches = [batch for batch in (batch_at(old, batch_id) for batch_id in batch_ids) if batch is not None]
            if len(batches) < len(batch_ids):
                break
            with suppress(ObjectMissingError):  # a running query has moved on
                moves = attempt.spec.start.move_sources
                fork_before(old, batches[0], fork, attempt.clock.new_uuid(), moves)
                return batches
        raise InvalidRequestError(
            "the log or the state of before these batches was cleaned up in the meantime",
            query_name=name,
            batch_id=batch_ids[0],
            next_step="Replay again: the batches that can be replayed are named then.",
        )

    def _check(self, name: str, startable: StartableQuery, batches: Sequence[ReadBatch], fork: Checkpoint) -> None:
        first = batches[0]
        attempt, count = self.attempt, len(first.entry.source_lines)
        if startable.facts.sources_count != count:
            raise IncompatibleUpgradeError(
                "this version reads another number of sources than the batch did",
                batch_id=first.batch_id,
                sources=startable.facts.sources_count,
                sources_of_batch=count,
                next_step="Replay the batch with a version that reads the same sources.",
            )
        guard_state_format(fork, startable.session_conf((STATE_FORMAT,)).get(STATE_FORMAT, "1"))
        sources = attempt.sources.look_up(name, startable)
        for number, line in enumerate(first.before[: len(sources)]):
            known = attempt.sources.preflight(name, number, line, {})
            if known is not None and known.lost:
                raise _rows_gone(first.batch_id, "; ".join(map(str, known.lost)))
        for batch in batches:
            for number, line in enumerate(batch.entry.source_lines):
                folder = fork.key(f"sources/{sources[number].source.folder if number < len(sources) else number}")
                missing = startable.missing_file(files_read(batch, number, line, fork, folder))
                if missing:
                    raise _rows_gone(batch.batch_id, missing)

    def _run(self, name: str, startable: StartableQuery, batch: ReadBatch, fork: Checkpoint) -> ReplayedBatch:
        attempt = self.attempt
        begun = attempt.clock.monotonic_seconds()
        left_seconds = max(self._left_seconds() - TO_ANSWER_SECONDS, 0.0)
        folder = Path(self._terms.out) / encode_query_name(name) / f"batch={batch.batch_id}"
        self._doing = f"batch {batch.batch_id} of query {name}"
        attempt.reporter.say(f"query {name}: batch {batch.batch_id} is replayed")
        plan_again(fork, batch, batch.entry.source_lines)
        folder.parent.mkdir(parents=True, exist_ok=True)
        found = ReplayedBatch(batch.batch_id)
        own: list[str] = []

        def look(error: Exception) -> None:  # at a foreachBatch, which runs in this process
            if not without_values(str(error))[1]:  # a worker has reported its values, and has had its debugger
                own.append(values_at(error.__traceback__))
                self.debug(error)

        try:
            written = startable.write_trial_batch(
                attempt.uri_of(fork),
                str(folder),
                left_seconds,
                calls_foreach_batch=self._terms.calls_foreach_batch and startable.facts.sink == FOREACH_BATCH,
                on_failure=look,
            )
        except StreamStateError:
            raise
        except Exception as error:
            gone = attempt.sources.explain(str(error))
            if gone:
                raise _rows_gone(batch.batch_id, gone) from error
            said, values = without_values(without_query_report(str(error)))
            if own:
                said = without_query_report("".join(format_exception(type(error), error, error.__traceback__)))
            shortened = attempt.reporter.shortened
            found = replace(
                found,
                error=self._line(_cause(error)),
                traceback=shortened(said, MAX_TRACEBACK_CHARACTERS, from_end=False),
                failed_at=self._line(values or "".join(own)),
            )
            written = None
        seconds = round(attempt.clock.monotonic_seconds() - begun, 3)
        if written is None:
            return replace(found, seconds=seconds)
        if written.rows is None or not fork.is_committed(batch.batch_id):
            raise DeadlineExceededError(
                "the batch was not over in time, and was stopped",
                batch_id=batch.batch_id,
                next_step="Give a later --deadline.",
            )
        return replace(
            found,
            rows_in=None if written.progress is None else written.progress.input_rows,
            rows_out=written.rows,
            seconds=seconds,
            folder=str(folder),
            files=written.files,
        )

    def _compared(self, name: str, startable: StartableQuery, folder: Path) -> RowComparison | None:
        """The rows of a batch, compared with those of the other replay; None if that one lacks the batch."""
        old = Path(self._terms.compared_with) / folder.parent.name / folder.name
        if not self._terms.compared_with or not old.is_dir():
            return None
        try:
            return self._rows(startable, old, folder, self._keys(name, startable))
        except Exception as error:
            self._note(f"query {name}: the rows of {folder.name} could not be compared: {_cause(error)}")
            return None

    def _with_state(
        self, found: RehearsedQuery, name: str, startable: StartableQuery, batch_id: int, fork: Checkpoint
    ) -> RehearsedQuery:
        """The outcome with the state after the last batch, compared with that of the other replay."""
        if not next(iter(fork.store.list_objects(fork.key("state/"))), None):
            return found
        attempt, compared_with = self.attempt, self._terms.compared_with
        folder = Path(self._terms.out) / encode_query_name(name) / STATE_FOLDER
        old = Path(compared_with) / encode_query_name(name) / STATE_FOLDER
        self._doing = f"the state of query {name} after batch {batch_id}"
        attempt.reporter.say(f"query {name}: its state after batch {batch_id} is read")
        compared: list[StateComparison] = []
        notes: list[str] = []
        try:
            commit = fork.read_commit(batch_id)
            state_format = 2 if commit is not None and commit.has_state_ids else 1
            written = startable.write_state(attempt.uri_of(fork), batch_id, state_format, str(folder))
            unread = {problem.partition(": ")[0] for problem in written.problems}
            notes += [f"its state could not be read: {problem}" for problem in written.problems]
            if compared_with and not old.is_dir():
                notes.append(NO_OLD_STATE)
            elif compared_with:
                paths = {str(path.relative_to(old)) for path in old.glob("[!.]*/[!.]*") if path.is_dir()}
                for path in sorted({*paths, *written.tables} - unread):
                    if path not in paths:
                        notes.append(NOT_COMPARED.format(path, "the recorded version has none of that name"))
                    elif path not in written.tables:
                        notes.append(NOT_COMPARED.format(path, "the new version has none of that name"))
                    else:
                        rows = self._rows_of_state(startable, old / path, folder / path, written.tables[path])
                        if isinstance(rows, str):
                            notes.append(NOT_COMPARED.format(path, rows))
                        else:
                            compared.append(StateComparison(path, rows))
        except Exception as error:
            notes.append(f"its state was not compared: {_cause(error)}")
        return replace(found, state=tuple(compared), notes=(*found.notes, *map(self._line, notes)))

    def _rows_of_state(
        self, startable: StartableQuery, old: Path, new: Path, keys: Sequence[str]
    ) -> RowComparison | str:
        """The rows of a table, compared; or why they could not be."""
        try:
            return self._rows(startable, old, new, keys)
        except Exception as error:
            return _cause(error)

    def _rows(self, startable: StartableQuery, old: Path, new: Path, keys: Sequence[str]) -> RowComparison:
        found = startable.compare_rows(str(old), str(new), keys, SAMPLES)
        samples = (found.samples_old, found.samples_new, found.samples_changed)
        old_ones, new_ones, changed = (tuple(map(self._line, rows)) for rows in samples)
        return replace(found, samples_old=old_ones, samples_new=new_ones, samples_changed=changed)

    def _keys(self, name: str, startable: StartableQuery) -> tuple[str, ...]:
        """The columns by which changed rows are recognised; () where none is known."""
        try:
            return plan_of(self.attempt, name, startable).key_columns
        except Exception as error:
            self._note(f"query {name}: no row is reported as changed, as its plan cannot be read: {error}")
            return ()


def _cause(error: Exception) -> str:
    return cause_in(str(error)) or type(error).__name__


def _told(found: RehearsedQuery, ran: Sequence[ReplayedBatch], batch_ids: Sequence[int]) -> RehearsedQuery:
    """The outcome with the batches that have run, and a note of those that have not."""
    done = {batch.batch_id for batch in ran}
    left = ", ".join(f"batch {batch_id}" for batch_id in batch_ids if batch_id not in done)
    notes = (*found.notes, f"not run: {left}") if left else found.notes
    return replace(found, notes=notes, replayed=tuple(ran))


def _rows_gone(batch_id: int, words: str) -> InputLostError:
    return InputLostError(
        "the source does not have the rows of this batch any more",
        batch_id=batch_id,
        lost=words,
        next_step="Put the rows back where the source reads them, or replay a newer batch.",
    )
