"""The checkpoint of a query that starts, its own or a snapshot's (1a.6), and the plan that made it (Law 17)."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial

from airflow_streamstate.checkpoint.fork import fork
from airflow_streamstate.checkpoint.guards import guard_checkpoint
from airflow_streamstate.checkpoint.log import (
    NO_OFFSET,
    Checkpoint,
    OffsetEntry,
    format_offset_entry,
)
from airflow_streamstate.checkpoint.repair import DrainCommitted, DrainPending, Foreign, classify
from airflow_streamstate.checkpoint.seed import rewritten_entries
from airflow_streamstate.checkpoint.state_files import column_names
from airflow_streamstate.connectors.registry import moves_of_batch
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.attempt_snapshots import (
    checkpoint_names,
    last_known,
    need_checkpoint,
    own_identities,
    retry_until_fenced,
)
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.driver.attempt.query_sources import KnownSource
from airflow_streamstate.driver.attempt.reports import MAX_REASON_CHARACTERS
from airflow_streamstate.driver.start.offset_mapping import are_known, check_same_names, check_same_order, source_keys
from airflow_streamstate.driver.start.query_seed import (
    begins_elsewhere,
    check_same_sources,
    describe_sources,
    moved_source_logs,
    seed_query,
    stored_entry,
)
from airflow_streamstate.driver.start.recorded_plans import plan_of, what_changed
from airflow_streamstate.driver.start.start_checks import Readable, check_used_checkpoint, look_before_start
from airflow_streamstate.driver.start.state_rewrite import (
    clear_rewrite,
    migrated_operators,
    rewrite_if_asked,
    rewrite_of,
)
from airflow_streamstate.errors import (
    DataError,
    IncompatibleUpgradeError,
    InvalidRequestError,
    OutcomeUnknownError,
    StartRefusedError,
    StreamStateError,
    UnavailableError,
    UnsupportedCheckpointError,
)
from airflow_streamstate.older_python import zipped
from airflow_streamstate.plan.codes import Comparison, Difference, compared, difference, refusing, remedies_of
from airflow_streamstate.plan.comparison import compare_deployments, does_the_same
from airflow_streamstate.plan.model import PlannedSink, QueryPlan, RecordedPlan
from airflow_streamstate.plan.record import (
    kept_differences,
    moved_plan,
    plans_behind,
    recorded_plans,
    reordered_keys,
    settled,
)
from airflow_streamstate.protocol.events import BatchRepeated, QueryStart
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest, moved_query
from airflow_streamstate.protocol.positions import SourceMove
from airflow_streamstate.protocol.scratch import RewrittenTable
from airflow_streamstate.snapshot.data import check_complete, data_files
from airflow_streamstate.snapshot.deletion import SnapshotLease, leased

NEVER_COMMITTED = "it never committed a batch before, and starts where its options say"
START_IS_GONE = "the snapshot that this deployment started from is gone; this query uses its own checkpoint"
START_IS_DAMAGED = (
    "the manifest of the snapshot that this deployment started from is damaged; this query uses its own checkpoint"
)


def check_new_name(attempt: Attempt, name: str, startable: StartableQuery) -> None:
    """Refuse a query that starts with nothing where an earlier attempt ran the same one under another name.

    That is certain where this attempt has not started the other one, and both have the same plan and sink. Otherwise
    the script may still start it, as after another query's end: a note names what was not started so far.

    Raises:
        InvalidRequestError: the query was known by another name.
        UnavailableError: the store does not answer.
    """
    if name in attempt.spec.start.allow_new_queries:
        return
    left = {}
    for known in sorted(set(checkpoint_names(attempt)) - {name, *attempt.queries.names()}):
        with suppress(DataError, UnsupportedCheckpointError):  # reported when that query starts
            batch_id = attempt.checkpoint_of(known).position().batch_id
            if batch_id is not None:
                left[known] = batch_id
    if not left:
        return
    before = _same_query(attempt, name, startable, left)
    if before is not None:
        raise InvalidRequestError(
            f"query {name} does what query {before} did, and would start with nothing: state and positions go by names",
            query_name=name,
            known_query=before,
            batch_id=left[before],
            next_step=f"{keep_name(before)} Then deploy that script: it continues after batch {left[before]}. Or"
            f" give it another lasting name NEW, and deploy with --rename-query {before}=NEW.",
        )
    stood = "; ".join(f"query {known}, which is at batch {batch_id}" for known, batch_id in left.items())
    attempt.reporter.note(
        f"query {name} is new to this deployment and starts with nothing; not started so far in this attempt: {stood}",
        query=name,
    )


def keep_name(name: str) -> str:
    """What to do for a query to be found again."""
    return (
        f'Name it in the script, by .queryName("{name}"): a name or checkpointLocation that is another one in each run'
        " is not found again."
    )


def _same_query(attempt: Attempt, name: str, startable: StartableQuery, known: Collection[str]) -> str | None:
    """Which of these queries this one is, by its plan and sink; None if none of them, or its plan cannot be read."""
    recorded = recorded_plans(attempt.control, attempt.deployment_id)
    try:
        plan = plan_of(attempt, name, startable)
    except (UnavailableError, OutcomeUnknownError):
        raise
    except Exception:  # no start waits for its plan to be understood
        return None
    place = (plan.sink.kind, plan.sink.target)
    for other in known:
        old = recorded.get(other)
        if old is not None and (old.sink.kind, old.sink.target) == place and does_the_same(old, plan):
            return other
    return None


Undo = Callable[[str, StartableQuery, QuerySnapshot], str]
"""Undoes the sink of a query that goes back to an older snapshot; returns the query id to continue with."""


def has_positions(known: QuerySnapshot) -> bool:
    """Whether a query of a snapshot ever planned a batch."""
    return known.position.batch_id is not None or known.position.planned_batch_id is not None


def has_state(known: QuerySnapshot) -> bool:
    """Whether a drain of this query would have something to flush."""
    return has_positions(known) and not known.drained


@dataclass(frozen=True)
class Built:
    """How a query got its checkpoint.

    Attributes:
        snapshot_id: what it was built from; None where it was not.
        sources: what each source is, as far as known.
        remarks: human-readable.
    """

    how: QueryStart
    snapshot_id: str | None = None
    sources: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class Builder:
    """Builds the checkpoints of an attempt's queries.

    Args:
        undo: called right before a checkpoint is built, when nothing can refuse the start any more; None where no sink
            may be touched, as in a rehearsal.

    Attributes:
        rewritten: by query, its state that was rewritten.
    """

    def __init__(self, attempt: Attempt, undo: Undo | None = None) -> None:
        self._attempt = attempt
        self._undo = undo
        self.rewritten: dict[str, tuple[RewrittenTable, ...]] = {}

    def ensure(self, name: str, startable: StartableQuery) -> Built:
        """The checkpoint of a query that is about to run, built if it is not there.

        Raises:
            StartRefusedError: it would start with nothing, and ran without streamstate before.
            InvalidRequestError: the snapshot does not know the query, an earlier attempt ran it under another name, or
                state that the drain left would be dropped (Law 16).
            InputLostError: input after its offsets is lost, and the user did not accept that.
            IncompatibleUpgradeError: its sources are not those of the snapshot.
            DataError: the snapshot or the checkpoint is damaged, or of an unknown format.
        """
        built = self._build(name, startable)
        if built.how == "fresh":
            self._attempt.sources.mark(name, (), -1)  # the look at the sources has marked all others
        return built

    def _build(self, name: str, startable: StartableQuery) -> Built:
        checkpoint = self._attempt.checkpoint_of(name)
        self._attempt.sources.look_up(name, startable)
        if checkpoint.exists():
            guard_checkpoint(checkpoint)
            if self._attempt.spec.start.rewrite is not None:  # the attempt before may have died before it did this
                clear_rewrite(self._attempt, name)
            self._check_unread(name, startable, checkpoint)
            known = last_known(self._attempt, name)
            remarks = self._look_at_own(name, checkpoint, known)
            if self._attempt.start.is_lost():
                remarks = (*remarks, START_IS_DAMAGED if self._attempt.start.is_damaged else START_IS_GONE)
            return Built("continued", sources=known.sources if known is not None else (), remarks=remarks)
        need_checkpoint(self._attempt, name)
        source_keys(
            name, startable, 0, self._attempt.spark_version
        )  # refuses what this session's offset log cannot hold
        manifest = self._attempt.start.need()
        if manifest is None:
            check_new_name(self._attempt, name, startable)
            return Built("fresh", remarks=check_used_checkpoint(self._attempt, name, startable))
        known = self._known(manifest, name)
        if known is None:
            built = self._unknown(name, manifest)
            check_new_name(self._attempt, name, startable)
            unread = check_used_checkpoint(self._attempt, name, startable)
            return replace(built, remarks=(*built.remarks, *unread))
        if not has_positions(known) and (known.drained or not known.files):
            self._undone(name, startable, known)
            return Built("fresh", manifest.snapshot_id, remarks=(NEVER_COMMITTED,))
        with self._leased(manifest) as lease:
            here = lease.landed(self._attempt.places, manifest, [name])
            return self._build_from(name, startable, here, known)

    def _known(self, manifest: SnapshotManifest | None, name: str) -> QuerySnapshot | None:
        """A query of the snapshot, its sources where they are now; None if it is not in it."""
        known = None if manifest is None else manifest.queries.get(name)
        return None if known is None else moved_query(known, self._attempt.spec.start.move_sources)

    def _leased(self, manifest: SnapshotManifest) -> AbstractContextManager[SnapshotLease]:
        reader = f"the start of {self._attempt.deployment_id}"
        return leased(self._attempt.control, manifest.snapshot_id, reader, is_kept_anyhow=True)

    def _build_from(
        self, name: str, startable: StartableQuery, manifest: SnapshotManifest, known: QuerySnapshot
    ) -> Built:
        if known.drained or begins_elsewhere(self._attempt.spec.start, name):
            check_complete(self._attempt.checkpoints, manifest, [name])
            sources, remarks = seed_query(
                self._attempt, name, startable, manifest, known, lambda: self._undone(name, startable, known)
            )
            return Built("seeded", manifest.snapshot_id, sources, remarks)
        readable = self._restore(name, startable, manifest, known)
        if not has_positions(known):
            return Built("fresh", manifest.snapshot_id, remarks=(NEVER_COMMITTED,))
        return Built("restored", manifest.snapshot_id, known.sources, readable.remarks)

    def _restore(
        self, name: str, startable: StartableQuery, manifest: SnapshotManifest, known: QuerySnapshot
    ) -> Readable:
        check_complete(self._attempt.checkpoints, manifest, [name])
        checkpoint, book = self._attempt.checkpoint_of(name), self._attempt.sources.look_up(name, startable)
        planned, last = None, self._entry_of(name, manifest, known)
        _check_sources(name, startable, known, last, book)
        if known.position.planned_batch_id is not None:
            planned = self._check_planned(name, startable, manifest, known)
        readable = look_before_start(
            self._attempt,
            name,
            known.position.end_offsets,
            known.identities,
            max(known.position.batch_id or 0, known.position.planned_batch_id or 0),
            planned_lines=planned.source_lines if planned is not None else (),
        )
        files = data_files(manifest, name)
        instead = self._moved_on(files, known, readable)
        rewritten = rewrite_if_asked(self._attempt, name, startable, known, files, is_rehearsed=self._undo is None)
        if rewritten is not None:
            files, batch_id, ids = dict(rewritten.files), known.position.batch_id, rewritten.state_ids
            instead = rewritten_entries(self._attempt.checkpoints, files, rewritten.conf, batch_id, ids, instead)
            self.rewritten[name] = rewritten.tables
            readable = replace(readable, remarks=(*readable.remarks, *rewritten.remarks))
        instead |= moved_source_logs(self._attempt, name, startable, files, known.position.end_offsets)
        fork(self._attempt.checkpoints, files, checkpoint, {**instead, **self._metadata(name, startable, known)})
        guard_checkpoint(checkpoint)
        if rewritten is not None:
            clear_rewrite(self._attempt, name)
        return readable

    def _undone(self, name: str, startable: StartableQuery, known: QuerySnapshot) -> str:
        return known.query_id if self._undo is None else self._undo(name, startable, known)

    def _metadata(self, name: str, startable: StartableQuery, known: QuerySnapshot) -> dict[str, bytes]:
        """The metadata of the new checkpoint, where the undo gives the query another id."""
        query_id = self._undone(name, startable, known)
        return {} if query_id == known.query_id else {"metadata": json.dumps({"id": query_id}).encode()}

    def ensure_for_drain(self, name: str, startable: StartableQuery) -> None:
        """Build the checkpoint of a query that is flushed without having run, if there is state to flush.

        A planned batch runs first, and needs all that a restore needs (1a.6). Raises as ``ensure``.
        """
        checkpoint = self._attempt.checkpoint_of(name)
        need_checkpoint(self._attempt, name)
        if checkpoint.exists():
            return
        manifest = self._attempt.start.need()
        known = self._known(manifest, name)
        if manifest is None or known is None or not has_state(known):
            return
        if begins_elsewhere(self._attempt.spec.start, name):
            return  # the start drops its state, and it has read nothing since
        with self._leased(manifest) as lease:
            manifest = lease.landed(self._attempt.places, manifest, [name])
            if known.position.planned_batch_id is not None or rewrite_of(self._attempt, name) is not None:
                self._restore(name, startable, manifest, known)
                return
            check_complete(self._attempt.checkpoints, manifest, [name])
            files = data_files(manifest, name)
            instead = moved_source_logs(self._attempt, name, startable, files, known.position.end_offsets)
            instead |= self._metadata(name, startable, known)
            fork(self._attempt.checkpoints, files, checkpoint, instead)

    def _check_unread(self, name: str, startable: StartableQuery, checkpoint: Checkpoint) -> None:
        """Check a checkpoint that is at its snapshot's position: a drain may have built it without these checks."""
        manifest, position = self._attempt.start.manifest(), checkpoint.position()
        known = self._known(manifest, name)
        if manifest is None or known is None or known.drained or begins_elsewhere(self._attempt.spec.start, name):
            return
        if position.batch_id is None or (position.batch_id, position.planned) != (known.position.batch_id, None):
            return
        last = checkpoint.read_offset(position.batch_id)
        _check_sources(name, startable, known, last, self._attempt.sources.look_up(name, startable))

    def _unknown(self, name: str, manifest: SnapshotManifest) -> Built:
        if name in self._attempt.spec.start.allow_new_queries:
            return Built("fresh", remarks=("the snapshot does not know it; it starts with nothing, as was asked for",))
        if not any(has_positions(query) for query in manifest.queries.values()) and self._is_whole(manifest):
            return Built("fresh", remarks=("no query of the snapshot ever committed a batch",))
        left = sorted(manifest.queries.keys() - set(self._attempt.queries.names()))
        had = keep_name(left[0]) if len(left) == 1 else "Give it the name it had, by .queryName(…) in the script."
        raise InvalidRequestError(
            "the snapshot that this deployment starts from does not know this query",
            query_name=name,
            snapshot_id=manifest.snapshot_id,
            queries=sorted(manifest.queries),
            next_step=f"{had} To continue with that state under the new name pass --rename-query"
            f" {left[0] if len(left) == 1 else 'OLD'}={name}; to start it with nothing, --allow-new-query {name}.",
        )

    def _is_whole(self, manifest: SnapshotManifest) -> bool:
        """Whether the snapshot before it can be read, which holds the queries that its deployment never started."""
        control = self._attempt.control
        snapshot_id = control.spec(manifest.deployment_id).start.snapshot_id
        return snapshot_id is None or control.readable_manifest(snapshot_id) is not None

    def _look_at_own(self, name: str, checkpoint: Checkpoint, known: QuerySnapshot | None) -> tuple[str, ...]:
        if not self._attempt.sources.identities(name):
            return ()
        position = checkpoint.position()
        entry = checkpoint.read_offset(position.batch_id) if position.batch_id is not None else None
        identities = own_identities(self._attempt, name, known, position.batch_id)
        lines = entry.source_lines if entry is not None else ()
        newest = position.barrier_id - 1
        return look_before_start(self._attempt, name, lines, identities, newest, continues=True).remarks

    def _moved_on(self, files: Mapping[str, str], known: QuerySnapshot, readable: Readable) -> dict[str, bytes]:
        """The entries of the new checkpoint whose offsets pass over lost input that the user accepted."""
        position = known.position
        moved: dict[str, bytes] = {}
        if NO_OFFSET in readable.lines and position.batch_id:
            # Spark takes offsets that the last entry lacks from the one before.
            moved |= self._without_offsets(files, position.batch_id - 1, readable.lines)
        for batch_id, before, after in (
            (position.batch_id, position.end_offsets, readable.lines),
            (position.planned_batch_id, None, readable.planned_lines),
        ):
            entry = stored_entry(self._attempt.checkpoints, files, batch_id) if after else None
            if entry is not None and after not in (before, entry.source_lines):
                moved[f"offsets/{batch_id}"] = format_offset_entry(replace(entry, source_lines=after))
        return moved

    def _without_offsets(self, files: Mapping[str, str], batch_id: int, lines: Sequence[str]) -> dict[str, bytes]:
        """An entry without the offsets of the sources that have none in these lines."""
        entry = stored_entry(self._attempt.checkpoints, files, batch_id)
        if entry is None or len(entry.source_lines) != len(lines):
            return {}
        pairs = zipped(entry.source_lines, lines)
        without = tuple(NO_OFFSET if line == NO_OFFSET else before for before, line in pairs)
        if without == entry.source_lines:
            return {}
        return {f"offsets/{batch_id}": format_offset_entry(replace(entry, source_lines=without))}

    def _entry_of(self, name: str, manifest: SnapshotManifest, known: QuerySnapshot) -> OffsetEntry | None:
        """The entry that the restored query continues from; None where none was ever written."""
        position = known.position
        batch_id = position.planned_batch_id if position.batch_id is None else position.batch_id
        return stored_entry(self._attempt.checkpoints, data_files(manifest, name), batch_id)

    def _check_planned(
        self, name: str, startable: StartableQuery, manifest: SnapshotManifest, known: QuerySnapshot
    ) -> OffsetEntry:
        """1a.6: a planned batch runs first, over the same bounds, so over the same sources."""
        files, batch_id = data_files(manifest, name), known.position.planned_batch_id
        entry = stored_entry(self._attempt.checkpoints, files, batch_id)
        if entry is None:
            key = files.get(f"offsets/{batch_id}", "")
            raise DataError("the snapshot lacks the entry of its planned batch", query_name=name, key=key)
        count = startable.facts.sources_count
        if count is not None and count != len(entry.source_lines):
            raise IncompatibleUpgradeError(
                "a batch is planned over other sources than this version has, and must run first",
                query_name=name,
                planned_batch_id=batch_id,
                planned_sources=len(entry.source_lines),
                sources=count,
                next_step="Resume the old version until that batch is committed, then stop it and deploy again.",
            )
        if known.sources and not are_known(known, self._attempt.sources.look_up(name, startable)):
            sources = describe_sources(self._attempt, name, startable, entry.conf, len(entry.source_lines))
            check_same_sources(name, known, sources)
        return entry


def _check_sources(
    name: str,
    startable: StartableQuery,
    known: QuerySnapshot,
    last: OffsetEntry | None,
    book: Sequence[KnownSource],
) -> None:
    """Check that a query which keeps its state finds each source in its place."""
    if last is not None:
        check_same_names(name, known, last, book, startable)
    check_same_order(name, known, book, last.source_lines if last is not None else ())


# Records that a planned batch runs again, before it does (Law 1).
#
# The sink may hold the batch in part or whole. A sink that does not skip it has rows twice, and this event is the
# only record of which rows.


def tell_repeated(attempt: Attempt, query: LogicalQuery, batch_id: int | None, *, is_flush: bool = False) -> None:
    """Write ``BatchRepeated``, waiting for the store.

    Args:
        batch_id: the planned batch; None: nothing is written.
        is_flush: the batch is the flush of a drain that an earlier attempt started.

    Raises:
        FencedError: this attempt was replaced.
    """
    if batch_id is None:
        return
    kind, place = query.startable.facts.sink, query.startable.sink_place()
    moves: tuple[SourceMove, ...] = ()
    with suppress(StreamStateError):  # the event then lacks the number of rows
        moves = moves_of_batch(query.checkpoint, batch_id, attempt.sources.identities(query.name)) or ()
    attempt.reporter.write(
        BatchRepeated,
        query_name=query.name,
        batch_id=batch_id,
        sink=attempt.reporter.redacted(PlannedSink(kind, target=place).described),
        means=query.startable.repeat_means(),
        moves=() if is_flush else moves,
        is_flush=is_flush,
    )


# Holds the plan of a start against the plan that made the state which it would continue (Law 17).
#
# It comes before anything of the query is built, repaired or recorded, so a refused start leaves all as it was, and
# its plan is never taken for one that made the state.

MOST_SHOWN = 3
"""A refusal names this many differences, each cut to ``_MOST_CHARACTERS``; ``plan`` shows all of them."""
_MOST_CHARACTERS = 240
NOT_KNOWN = "its plan could not be compared with the one that made its state, which no record has"


@dataclass(frozen=True)
class ReadPlan:
    """The plan of a start, read once.

    Attributes:
        plan: None where it cannot be read.
        problem: why, in a line; else "".
        remarks: human-readable.
        is_accepted: it would be refused, and the user has accepted that.
    """

    plan: QueryPlan | None
    problem: str = ""
    remarks: tuple[str, ...] = ()
    is_accepted: bool = False


class Continuing:
    """Holds the starts of an attempt against what they continue."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._held: dict[str, tuple[QueryPlan, QueryPlan]] = {}

    def hold(self, name: str, startable: StartableQuery) -> ReadPlan:
        """The plan of a query that is about to start, or to be flushed; its checkpoint may not be built yet.

        Raises:
            StartRefusedError: it does not fit the state that the query would continue.
            FencedError: this attempt was replaced.
            and as ``retry_until_fenced``.
        """
        return retry_until_fenced(self._attempt, "the plans", lambda: self._hold(name, startable))

    def _hold(self, name: str, startable: StartableQuery) -> ReadPlan:
        read = self._read(name, startable)
        batch_id = _continued_batch(self._attempt, name)
        if batch_id is None:
            return read
        behind = plans_behind(self._attempt.control, self._attempt.deployment_id, name, batch_id)
        if not behind:
            return self._unrecorded(name, read)
        found = [(maker, self._compare(name, read, maker)) for maker in behind]
        for maker, comparison in found:
            if not self._refused(maker, comparison):
                return self._fitting(name, read, maker, comparison)
        raise self._refusal(name, *found[0])

    def _unrecorded(self, name: str, read: ReadPlan) -> ReadPlan:
        """State of which no plan is recorded, as after an adoption, is compared as far as its schemas show it.

        Raises:
            StartRefusedError: it keeps other values, and the user did not accept that; or it has its keys in another
                order.
        """
        attempt = self._attempt
        found: tuple[Difference, ...] = ()
        columns_of = partial(_kept_columns, attempt, name)
        reordered = None if read.plan is None else next(reordered_keys(read.plan, columns_of), None)
        if reordered is not None:
            raise StartRefusedError(
                f"the state of query {name} has the columns of dropDuplicates in another order: {reordered.reason}",
                query_name=name,
                verdict=reordered.verdict,
                spark_version=attempt.spark_version,
                next_step="Start the script and the Spark that made it:"
                f" `streamstate deploy {attempt.stream_id} --app SCRIPT --spark PATH`.",
            )
        if read.plan is not None and rewrite_of(attempt, name) is None:
            found = tuple(kept_differences(read.plan, columns_of))
        if found and not (attempt.accepts_hazards or attempt.spec.start.accept_hazards):
            raise StartRefusedError(
                f"the state of query {name} was made by another plan than this start has, and no record has that plan",
                query_name=name,
                verdict="hazardous",
                differences=[_short(each.reason) for each in found[:MOST_SHOWN]],
                next_step="Start the script that made the state; or `streamstate resume"
                f" {attempt.stream_id} --accept-hazards` continues as it is.",
            )
        accepted = tuple(f"an accepted hazard: {each.reason}" for each in found)
        return ReadPlan(read.plan, read.problem, (*accepted, NOT_KNOWN), is_accepted=bool(found))

    def _read(self, name: str, startable: StartableQuery) -> ReadPlan:
        try:
            return ReadPlan(plan_of(self._attempt, name, startable))
        except (UnavailableError, OutcomeUnknownError):
            raise
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            return ReadPlan(None, self._attempt.reporter.shortened(words, MAX_REASON_CHARACTERS, in_a_line=True))

    def _compare(self, name: str, read: ReadPlan, maker: RecordedPlan) -> Comparison:
        if read.plan is None:
            return compared([difference("not-comparable", "", f"the plan of {name} cannot be read: {read.problem}")])
        is_own = maker.deployment_id == self._attempt.deployment_id
        before = maker.plan if is_own else moved_plan(maker.plan, self._attempt.spec.start.move_sources)
        both = {**self._held, name: (before, read.plan)}
        old: Mapping[str, QueryPlan] = {each: plans[0] for each, plans in both.items()}
        found = compare_deployments(old, {each: plans[1] for each, plans in both.items()}).queries[name]
        if is_own:  # what was rewritten is of this plan
            # Its script is pinned: a release that writes plans down otherwise refuses no resume, and records it again.
            return compared(each for each in found.differences if each.code != "not-comparable")
        rewrite = rewrite_of(self._attempt, name)
        return settled(found, read.plan, rewrite, migrated_operators(self._attempt, name, read.plan))

    def _refused(self, maker: RecordedPlan, comparison: Comparison) -> tuple[Difference, ...]:
        """The differences that refuse the start.

        Hazards are accepted for this attempt, or for a deployment that starts with another deployment's state.
        """
        begins = maker.deployment_id != self._attempt.deployment_id
        accepts = self._attempt.accepts_hazards or (begins and self._attempt.spec.start.accept_hazards)
        return refusing(comparison, accepts_hazards=accepts)

    def _fitting(self, name: str, read: ReadPlan, maker: RecordedPlan, comparison: Comparison) -> ReadPlan:
        if read.plan is None:
            return read
        self._held[name] = (moved_plan(maker.plan, self._attempt.spec.start.move_sources), read.plan)
        hazards = refusing(comparison, accepts_hazards=False)
        accepted = tuple(f"an accepted hazard: {each.reason}" for each in hazards)
        return ReadPlan(read.plan, remarks=accepted, is_accepted=bool(hazards))

    def _refusal(self, name: str, maker: RecordedPlan, comparison: Comparison) -> StartRefusedError:
        refused = self._refused(maker, comparison)
        changed = what_changed(self._attempt, name)
        return StartRefusedError(
            f"the state of query {name} was made by another plan than this start has",
            query_name=name,
            verdict=comparison.verdict,
            differences=[_short(each.reason) for each in refused[:MOST_SHOWN]],
            made_by=maker.deployment_id,
            made_by_attempt=maker.attempt,
            next_step=_next_step(self._attempt, refused, maker, changed),
        )


def _continued_batch(attempt: Attempt, name: str) -> int | None:
    """The committed batch whose state a start of this query would continue.

    None: a fresh start, a seed, a query that has ended, or one that never committed a batch.
    """
    checkpoint = attempt.checkpoint_of(name)
    if checkpoint.exists():
        try:
            found = classify(checkpoint, attempt.deployment_id)
        except DataError:
            return None  # the start reports the damage
        beneath = found.beneath if isinstance(found, Foreign) else found
        return None if isinstance(beneath, (DrainPending, DrainCommitted)) else beneath.batch_id
    manifest = attempt.start.manifest()
    known = None if manifest is None else manifest.queries.get(name)
    if known is None or known.drained or begins_elsewhere(attempt.spec.start, name):
        return None
    return known.position.batch_id


def _kept_columns(attempt: Attempt, name: str, operator_id: int) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The columns of the keys and values of an operator's state that a start would continue; None where unknown."""
    body = _continued_file(attempt, name, f"state/{operator_id}/0/_metadata/schema")
    return None if body is None else column_names(body)


def _continued_file(attempt: Attempt, name: str, path: str) -> bytes | None:
    """A file of the checkpoint, or of the snapshot, that a start would continue."""
    checkpoint = attempt.checkpoint_of(name)
    key: str | None = checkpoint.key(path)
    if not checkpoint.exists():
        manifest = attempt.start.manifest()
        files = {} if manifest is None or name not in manifest.queries else data_files(manifest, name)
        key = files.get(path)
    stored = None if key is None else attempt.checkpoints.get(key)
    return None if stored is None else stored.body


def _short(reason: str) -> str:
    return reason if len(reason) <= _MOST_CHARACTERS else f"{reason[:_MOST_CHARACTERS]}…"


def _next_step(attempt: Attempt, refused: Sequence[Difference], maker: RecordedPlan, changed: Sequence[str]) -> str:
    stream_id, read = attempt.stream_id, " ".join(f"{_short(each)}." for each in changed[:MOST_SHOWN])
    accept = ""
    if all(each.verdict == "hazardous" for each in refused):
        accept = f" Or `streamstate resume {stream_id} --accept-hazards` continues as it is."
    if maker.deployment_id == attempt.deployment_id:
        what = read or "Something else that the script reads has changed, such as a file or a variable."
        return (
            f"Script, modules and settings are as in attempt {maker.attempt}. {what} Put it back; then"
            f" `streamstate resume {stream_id}` continues exactly. To change it, drain first:"
            f" `streamstate drain {stream_id}`, then change it, and deploy.{accept}"
        )
    remedies = remedies_of(refused)
    return (
        f"{read} `streamstate rollback {stream_id}` brings back the version before, which continues exactly where it"
        f" stopped. For this version: {remedies}{accept}"
    ).strip()
