"""Runs committed and planned batches again through the new version, with their rows and into no sink."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from airflow_streamstate.checkpoint.file_source import cut_files, files_taken, parse_file_source_offset
from airflow_streamstate.checkpoint.fork import (
    ReadBatch,
    bring_source_logs,
    fork_before,
    newest_read_batches,
    plan_again,
    plan_upon,
    wipe,
)
from airflow_streamstate.checkpoint.log import PARTITIONS, Checkpoint
from airflow_streamstate.checkpoint.repair import repair_before_start
from airflow_streamstate.connectors.source import NO_OFFSET, DividingConnector, MeasuringConnector
from airflow_streamstate.driver.attempt.attempt import Attempt, StartSnapshot
from airflow_streamstate.driver.attempt.ports import QueryProgress, StartableQuery
from airflow_streamstate.driver.attempt.query_sources import KnownSource
from airflow_streamstate.driver.attempt.reports import Reporter
from airflow_streamstate.driver.start.checkpoints import Built
from airflow_streamstate.driver.start.claim import need_spec
from airflow_streamstate.driver.start.state_rewrite import rewrite_of
from airflow_streamstate.errors import DataError, DeploymentNotFoundError, ObjectMissingError, StreamStateError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Event, Noted
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.redaction import cause_in
from airflow_streamstate.protocol.scratch import Rehearsal, ScratchRun

FORK_TRIES = 5
NOTHING_READ = "no batch has read rows yet: an empty batch alone was run"


class BatchFailedError(Exception):
    """A batch that the old version had committed fails in the new one; the text is one human-readable line."""


@dataclass
class RanAgain:
    """What ran; filled as it runs.

    Attributes:
        rows_out: None where Spark does not report it.
        has_failed: one failed with its rows.
    """

    batch_ids: list[int] = field(default_factory=list)
    rows_in: int = 0
    rows_out: int | None = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    has_failed: bool = False

    def add(self, batch_id: int, progress: QueryProgress | None) -> None:
        """Note a batch that ran to its end."""
        self.batch_ids.append(batch_id)
        if progress is not None:
            self.rows_in += progress.input_rows
            out = progress.output_rows
            self.rows_out = None if self.rows_out is None or out is None else self.rows_out + out


def run_batches_again(
    attempt: Attempt,
    name: str,
    startable: StartableQuery,
    run: ScratchRun,
    within_seconds: float,
    ran: RanAgain,
    *,
    is_drained: bool,
) -> None:
    """Run the batches that the rehearsal asks for, as far as their rows are there.

    Args:
        within_seconds: a batch that is not over by then is stopped, and noted.
        ran: what ran and what did not, also where it raises.
        is_drained: the version cannot read the state of before these batches: the newest one is read into the
            rehearsal's own fork.

    Raises:
        BatchFailedError: a batch fails with its rows.
        UnavailableError: the store does not answer.
    """
    folder = layout.checkpoint_folder(attempt.stream_id, run.deployment_id, name)
    trial = _Trial(attempt, name, startable, run, Checkpoint(attempt.checkpoints, folder), ran, is_drained)
    try:
        trial.run(attempt.clock.monotonic_seconds() + within_seconds)
    finally:
        trial.clear()


def has_other_state(attempt: Attempt, name: str, deployment_id: str) -> bool:
    """Whether a query cannot read the state before a deployment's batch: it is seeded, or that state is rewritten."""
    if attempt.spec.start.mode == "seed" or rewrite_of(attempt, name) is not None:
        return True
    try:
        spec = need_spec(attempt.control, deployment_id, attempt.clock)
        return spec.start.rewrite is not None and not _began_in(attempt, deployment_id)
    except DeploymentNotFoundError:
        return False


def _began_in(attempt: Attempt, deployment_id: str) -> bool:
    """Whether the state that an attempt starts from is that of this deployment, and not of one before it."""
    manifest = attempt.start.manifest()
    return manifest is not None and manifest.deployment_id == deployment_id


class _Trial:
    def __init__(
        self,
        attempt: Attempt,
        name: str,
        startable: StartableQuery,
        run: ScratchRun,
        old: Checkpoint,
        ran: RanAgain,
        is_drained: bool,
    ) -> None:
        self._attempt = attempt
        self._name = name
        self._startable = startable
        self._rehearsal = run.rehearsal
        self._deployment_id = run.deployment_id
        self._old = old
        self._ran = ran
        self._is_drained = is_drained
        self._sources = attempt.sources.look_up(name, startable)
        folder = layout.trial_folder(attempt.stream_id, attempt.deployment_id, name)
        self._fork = Checkpoint(attempt.checkpoints, folder)
        self._is_before = True
        self._moves = attempt.spec.start.move_sources

    def clear(self) -> None:
        """Remove the fork that was made for this."""
        if not self._is_before:
            return
        with suppress(StreamStateError):  # the end of the rehearsal removes it, too
            wipe(self._fork)

    def run(self, until_seconds: float) -> None:
        batches = self._forked()
        if not batches:
            self._ran.notes.append(NOTHING_READ)
            return
        why_not = self._why_not(batches)
        if why_not:
            self._ran.notes.append(f"{why_not}: an empty batch alone was run")
            return
        for batch in batches:
            left_rows = self._rehearsal.terms.rehearse_rows - self._ran.rows_in
            left_seconds = until_seconds - self._attempt.clock.monotonic_seconds()
            if left_rows <= 0 or left_seconds <= 0:
                bound = f"{self._rehearsal.terms.rehearse_rows:,} rows" if left_rows <= 0 else "its time"
                self._ran.notes.append(f"batch {batch.batch_id} was not run again: {bound} had passed")
                return
            gone = self._missing(batch)
            if gone:
                self._ran.notes.append(f"the source does not have the rows of batch {batch.batch_id} any more ({gone})")
                return
            lines, is_cut = self._cut(batch, left_rows)
            if not self._run(batch, lines, left_seconds) or is_cut:
                return

    def _forked(self) -> list[ReadBatch]:
        """The batches, with the fork before the first one; if that is impossible, with the rehearsal's own fork."""
        attempt = self._attempt
        wipe(self._fork)  # of a trial that died
        is_drained = self._is_drained
        for number in range(FORK_TRIES):
            batches = newest_read_batches(self._old, 1 if is_drained else self._rehearsal.batches)
            if not batches or is_drained:
                break
            try:
                fork_before(self._old, batches[0], self._fork, attempt.clock.new_uuid(), self._moves)
                return batches
            except ObjectMissingError:
                wipe(self._fork)  # a running query has moved on, or Spark has cleaned up
                if number == FORK_TRIES - 1:
                    break
        if batches:
            self._is_before = False
            self._fork, batches = attempt.checkpoint_of(self._name), batches[-1:]
            with suppress(ObjectMissingError):  # compacted in the meantime: ``_missing`` or Spark reports it
                bring_source_logs(self._old, self._fork, self._moves)
            if not is_drained:
                self._ran.notes.append(
                    f"the state of before batch {batches[0].batch_id} is not there any more: its rows were read into"
                    " the newest state"
                )
        return batches

    def _why_not(self, batches: Sequence[ReadBatch]) -> str:
        """Why these batches cannot run in the new version; "" where they can."""
        first = batches[0]
        ids = f"batch {first.batch_id}" if len(batches) == 1 else f"batches {first.batch_id} to {batches[-1].batch_id}"
        if self._startable.facts.sources_count != len(first.entry.source_lines):
            return f"the new version reads other sources than {ids}"
        if not self._is_before and not first.before:
            return f"{ids} is the first of all, and starts at no offset"
        for number, line in enumerate(first.before[: len(self._sources)]):
            known = self._attempt.sources.preflight(self._name, number, line, {})
            if known is not None and known.lost:
                return f"the source does not have the rows of {ids} any more"
        return ""

    def _missing(self, batch: ReadBatch) -> str:
        """A file of the batch that is not there any more; "" if all are there."""
        for number, line in enumerate(batch.entry.source_lines[: len(self._sources)]):
            folder = self._fork.key(f"sources/{self._sources[number].source.folder}")
            read = files_read(batch, number, line, self._fork, folder)
            if (
                not read
                and parse_file_source_offset(line) is not None
                and line not in batch.before[number : number + 1]
            ):
                return "its log does not record which files that were"
            missing = self._startable.missing_file(read)
            if missing:
                return missing
        return ""

    def _cut(self, batch: ReadBatch, most_rows: int) -> tuple[tuple[str, ...], bool]:
        """The end of the batch with about ``most_rows`` rows, and whether that is not all of it."""
        rows = self._rows_of(batch)
        lines = batch.entry.source_lines
        if rows is None or rows <= most_rows:
            return lines, False
        share = most_rows / rows
        left_out = self._files_left_out(batch, share)
        cut = tuple(self._part_of(number, batch, line, share) for number, line in enumerate(lines))
        is_cut = bool(left_out) or cut != lines
        how = f": about {most_rows:,} of them were read" if is_cut else ", and it cannot be read in part: all were read"
        files = f", {left_out:,} of its files were left out" if left_out else ""
        self._ran.notes.append(f"batch {batch.batch_id} has {rows:,} rows{how}{files}")
        return cut, is_cut

    def _files_left_out(self, batch: ReadBatch, share: float) -> int:
        """How many files were taken out of the logs of its file sources; a log that two sources share is cut once."""
        bounds: dict[str, tuple[int, int]] = {}
        for number, line in enumerate(batch.entry.source_lines[: len(self._sources)]):
            last = parse_file_source_offset(line)
            after = parse_file_source_offset(batch.before[number]) if number < len(batch.before) else None
            if last is not None:
                bounds[self._sources[number].source.folder] = last, -1 if after is None else after
        left_out = 0
        for folder, (last, after) in bounds.items():
            kept, there = cut_files(self._fork.store, self._fork.key(f"sources/{folder}"), last, after, share)
            left_out += there - kept
        return left_out

    def _part_of(self, number: int, batch: ReadBatch, line: str, share: float) -> str:
        before = batch.before[number] if number < len(batch.before) else NO_OFFSET
        known = self._sources[number] if number < len(self._sources) else None
        if known is None or not isinstance(known.connector, DividingConnector):
            return line
        try:
            return known.connector.part_way(before, line, share)
        except Exception as error:
            self._attempt.reporter.say(f"query {self._name}: an offset cannot be divided: {type(error).__name__}")
            return line

    def _rows_of(self, batch: ReadBatch) -> int | None:
        """How many rows the batch read, by its offsets, or as its driver reported; None where both are unknown."""
        counts = [self._rows_between(number, batch) for number in range(len(batch.entry.source_lines))]
        known = [count for count in counts if count is not None]
        if known and len(known) == len(counts):
            return sum(known)
        beat = self._attempt.control.heartbeat(self._deployment_id)
        query = None if beat is None else beat.queries.get(self._name)
        return query.read_rows if query is not None and query.read_batch_id == batch.batch_id else None

    def _rows_between(self, number: int, batch: ReadBatch) -> int | None:
        known: KnownSource | None = self._sources[number] if number < len(self._sources) else None
        if known is None or not isinstance(known.connector, MeasuringConnector) or number >= len(batch.before):
            return None
        try:
            lag = known.connector.between(batch.before[number], batch.entry.source_lines[number])
        except Exception:
            return None
        return lag.behind if lag is not None and lag.unit == "rows" else None

    def _run(self, batch: ReadBatch, lines: Sequence[str], within_seconds: float) -> bool:
        """Run one batch; whether the next one may follow."""
        attempt, ran = self._attempt, self._ran
        plan = plan_again if self._is_before else plan_upon
        batch_id = plan(self._fork, batch, lines)
        begun = attempt.clock.monotonic_seconds()
        try:
            progress = self._startable.run_trial_batch(attempt.uri_of(self._fork), within_seconds)
        except StreamStateError:
            raise
        except Exception as error:
            gone = attempt.sources.explain(str(error))
            if gone:
                ran.notes.append(f"the source does not have the rows of batch {batch.batch_id} any more ({gone})")
                return False
            raise BatchFailedError(
                f"batch {batch.batch_id} of {self._deployment_id}, run again with its rows, fails:"
                f" {cause_in(str(error)) or type(error).__name__}"
            ) from error
        ran.seconds += attempt.clock.monotonic_seconds() - begun
        if not self._is_committed(batch_id):
            ran.notes.append(f"batch {batch.batch_id} was not over within {within_seconds:.0f} s, and was stopped")
            return False
        ran.add(batch.batch_id, progress)
        return True

    def _is_committed(self, batch_id: int) -> bool:
        try:
            return self._fork.is_committed(batch_id)
        except DataError:
            return False


def files_read(batch: ReadBatch, number: int, line: str, fork: Checkpoint, folder: str) -> list[str]:
    """The files that the batch read of one source; no files if it is not a file source.

    Spark silently passes over files that are gone when a batch starts.
    """
    last = parse_file_source_offset(line)
    after = parse_file_source_offset(batch.before[number]) if number < len(batch.before) else None
    if last is None:
        return []
    try:
        return [taken.path for taken in files_taken(fork.store, folder, last, -1 if after is None else after)]
    except DataError:
        return []  # its log is of a different kind, or Spark reports that it is damaged


# Runs the batch that a failed query had planned, first and over its own bounds, as every start would (1a.6).
#
# It runs on the rehearsal's own fork and into no sink. A ``foreachBatch`` is code of the user that may write
# anywhere, so it is not called.

FOREACH_BATCH = "foreachBatch"


def run_planned_batch(
    attempt: Attempt,
    name: str,
    startable: StartableQuery,
    built: Built,
    rehearsal: Rehearsal,
    within_seconds: float,
    ran: RanAgain,
) -> None:
    """Run the planned batch of the built checkpoint, if it has one.

    Args:
        within_seconds: it is stopped if it is not over by then, and noted.
        ran: what ran and what did not.

    Raises:
        BatchFailedError: it fails; the fork is then at the position before it.
    """
    checkpoint = attempt.checkpoint_of(name)
    if built.how == "seeded" or not checkpoint.exists():
        return
    make_ready(attempt, checkpoint, startable)
    batch_id = checkpoint.position().planned_id
    if batch_id is None:
        return
    which = f"batch {batch_id}, which is planned and runs first at a start,"
    if not rehearsal.batches:
        ran.notes.append(f"{which} was not run: no batch with rows was asked for")
        return
    attempt.reporter.say(f"query {name}: the planned batch {batch_id} runs first")
    begun = attempt.clock.monotonic_seconds()
    try:
        progress = startable.run_trial_batch(attempt.uri_of(checkpoint), within_seconds)
    except StreamStateError:
        raise
    except Exception as error:
        gone = attempt.sources.explain(str(error))
        words = f"the source does not have its rows any more ({gone})" if gone else cause_in(str(error))
        raise BatchFailedError(f"{which} fails: {words or type(error).__name__}") from error
    ran.seconds += attempt.clock.monotonic_seconds() - begun
    if not checkpoint.is_committed(batch_id):
        ran.notes.append(f"{which} was not over within {within_seconds:.0f} s, and was stopped")
        return
    ran.add(batch_id, progress)
    if startable.facts.sink == FOREACH_BATCH:
        ran.notes.append(
            f"{which} was run without its foreachBatch, which may write anywhere: whether that function fails is not"
            " known; `streamstate replay --call-foreach-batch` calls it"
        )


def make_ready(attempt: Attempt, checkpoint: Checkpoint, startable: StartableQuery) -> None:
    """Repair the log of a built checkpoint as a start does (1a.7)."""
    if checkpoint.position().batch_id is None and checkpoint.position().planned is None:
        return
    repair_before_start(
        checkpoint,
        attempt.deployment_id,
        partitions=lambda: startable.session_conf((PARTITIONS,)).get(PARTITIONS, ""),
    )


# An attempt under the keys of a rehearsal, by which a rehearsal uses the same code as a real start.

AnyEvent = TypeVar("AnyEvent", bound=Event)
SEEDS_FOLDER = "seeds"
"""Below the rehearsal, alongside ``checkpoints``."""


class NotingReporter(Reporter):
    """Writes no event; keeps the texts of ``Noted``, each once, in ``notes``."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.notes: list[str] = []

    def write(self, kind: type[AnyEvent], **fields: object) -> AnyEvent:
        return self._event(kind, fields)

    def try_write(self, kind: type[Event], **fields: object) -> bool:  # noqa: ARG002 - as the reporter's
        return False

    def write_soon(self, kind: type[Event], **fields: object) -> None:
        event = self._event(kind, fields)
        if isinstance(event, Noted) and event.text not in self.notes:
            self.notes.append(event.text)


class RehearsedAttempt(Attempt):
    """Arguments as ``Attempt``; the deployment of its spec is the rehearsal."""

    ends_loops = True  # its queries end at once, and a loop around them must end before the next pass
    _reporter_class = NotingReporter

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._made_of = arguments, named

    @property
    def notes(self) -> list[str]:
        """Human-readable notes."""
        return cast("NotingReporter", self.reporter).notes

    def after_a_drain(self) -> AttemptAfterDrain:
        """The same attempt, as if its start snapshot had been drained."""
        arguments, named = self._made_of
        attempt = AttemptAfterDrain(*arguments, **named)
        attempt.note_spark(self.spark_version)
        return attempt


class _DrainedStart(StartSnapshot):
    """The start snapshot as a drain would have left it."""

    def manifest(self) -> SnapshotManifest | None:
        manifest = super().manifest()
        if manifest is None:
            return None
        queries = {name: _drained(query) for name, query in manifest.queries.items()}
        return replace(manifest, snapshot_kind="drained", queries=queries)


class AttemptAfterDrain(RehearsedAttempt):
    """As if each query of the snapshot had been flushed, with no state left; it has checkpoints of its own."""

    least_seed_batch_id = 1

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.spec = replace(self.spec, start=replace(self.spec.start, mode="seed"))
        self.start = _DrainedStart(self.control, self.spec.start.snapshot_id, self.reporter)

    def checkpoint_of(self, query_name: str) -> Checkpoint:
        usual = super().checkpoint_of(query_name)
        folder = layout.deployment_folder(self.stream_id, self.deployment_id)
        return Checkpoint(usual.store, f"{folder}/{SEEDS_FOLDER}/{usual.prefix.rstrip('/').rpartition('/')[2]}")


def _drained(query: QuerySnapshot) -> QuerySnapshot:
    """The query after a drain: its planned batch is committed, its state is flushed."""
    if query.position.batch_id is None:
        return query
    position = replace(query.position, planned_batch_id=None, state_rows_left=0, state_left=())
    return replace(query, drained=True, position=position)
