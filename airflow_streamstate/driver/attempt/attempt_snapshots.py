"""The snapshots that an attempt takes, and their seals."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeVar

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.checkpoint.state_files import has_begun_planned
from airflow_streamstate.control.journal import had_checkpoint, missing_checkpoint, newest_spark, spark_that_wrote
from airflow_streamstate.control.stream import identities_taken_over, identities_when_planned
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.ports import QueryProgress
from airflow_streamstate.driver.attempt.reports import UNTIL_TAKEN
from airflow_streamstate.errors import (
    DataError,
    DeadlineExceededError,
    InvalidRequestError,
    OutcomeUnknownError,
    StoreRefusedError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import QueryStarted
from airflow_streamstate.protocol.ids import SnapshotKind
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.positions import QueryPosition, SourceIdentity
from airflow_streamstate.snapshot.capture import QueryToCapture, capture
from airflow_streamstate.snapshot.deletion import leased
from airflow_streamstate.snapshot.location import kept_by_own_snapshots
from airflow_streamstate.snapshot.verify import needs_seal, seal

# A checkpoint that was there and is gone: the driver neither starts nor captures its query (Law 5).


def need_checkpoint(attempt: Attempt, query_name: str) -> None:
    """Raise DataError for a missing checkpoint on which, by an event, the query was started."""
    checkpoint = attempt.checkpoint_of(query_name)
    if checkpoint.exists():
        return
    if had_checkpoint(attempt.reporter.events, query_name):
        raise missing_checkpoint(query_name, checkpoint.prefix)


Result = TypeVar("Result")


def retry_until_fenced(attempt: Attempt, doing: str, act: Callable[[], Result]) -> Result:
    """Call ``act`` until it succeeds, while the store is out of reach, or refuses access that it gave before.

    Raises:
        FencedError: this attempt was replaced.
        DeadlineExceededError: the store has refused access for ``lost_after_seconds`` (Law 6).
        StoreRefusedError: it refuses access, and no query was started yet, so it may never have given access.
    """
    refused_since: float | None = None

    def unless_fenced() -> Result:
        attempt.fence.check()
        return act()

    def note(error: StreamStateError) -> None:
        nonlocal refused_since
        if not isinstance(error, StoreRefusedError):
            refused_since = None
            attempt.reporter.outage(doing, error)
        elif attempt.queries.last_start_at_seconds is None:
            raise error
        else:
            refused_since = _bear_refusal(attempt, doing, error, refused_since)

    done = UNTIL_TAKEN.call(
        attempt.clock, unless_fenced, (UnavailableError, OutcomeUnknownError, StoreRefusedError), note
    )
    attempt.reporter.answered(doing)
    return done


def _bear_refusal(attempt: Attempt, doing: str, error: StoreRefusedError, since: float | None) -> float:
    """Return since when the store has refused; a note reports it once."""
    now, most = attempt.clock.monotonic_seconds(), attempt.spec.version.settings.lost_after_seconds
    if since is None:
        text = f"a store refuses access that it gave before; the driver retries for {most:g} s"
        attempt.reporter.note(text, doing=doing, reason=str(error))
        return now
    attempt.reporter.outage(doing, error)
    if now - since >= most:
        raise DeadlineExceededError(
            "a store that gave access before has refused it for too long",
            doing=doing,
            refused_seconds=round(now - since),
            reason=str(error),
            next_step=f"Give access again; then `streamstate resume {attempt.stream_id}` continues with the state.",
        ) from error
    return since


def need_current(attempt: Attempt) -> None:
    """Check that this attempt was not replaced before a step that would harm its successor; waits for the store. Raises
    FencedError (Law 4)."""
    retry_until_fenced(attempt, "the register", attempt.fence.check_current)


def _query_names(attempt: Attempt, held: Collection[str]) -> list[str]:
    """Every query of the deployment: started in this attempt or an earlier one, or in its start snapshot.

    Raises:
        SnapshotNotFoundError, DataError: that is gone or damaged, and no query has its own checkpoint.
    """
    built = checkpoint_names(attempt)
    if not held and not any(attempt.checkpoint_of(name).exists() for name in built):
        attempt.start.need()
    return sorted({*attempt.queries.names(), *built, *held})


def holders(attempt: Attempt) -> dict[str, SnapshotManifest]:
    """The snapshot that holds each query as it was before this deployment: the start snapshot; if that is lost, the
    deployment's own snapshots, for the queries that it never started."""
    manifest = attempt.start.manifest()
    if manifest is not None:
        return dict.fromkeys(manifest.queries, manifest)
    if not attempt.start.is_lost():
        return {}
    events = attempt.reporter.events
    own = {event.query_name for event in events if isinstance(event, QueryStarted)}
    own |= {name for name in checkpoint_names(attempt) if attempt.checkpoint_of(name).exists()}
    return kept_by_own_snapshots(attempt.control, attempt.places, attempt.deployment_id, events, own)


def checkpoint_names(attempt: Attempt, deployment_id: str | None = None) -> list[str]:
    """The queries that have a checkpoint folder in this deployment, or in another one of the stream."""
    owner = attempt.deployment_id if deployment_id is None else deployment_id
    folders = attempt.checkpoints.list_folders(layout.checkpoints_folder(attempt.stream_id, owner))
    names = []
    for folder in folders:
        with suppress(InvalidRequestError):  # a foreign folder (Law 7)
            names.append(layout.query_name_of(folder))
    return names


def queries_to_capture(attempt: Attempt) -> dict[str, QueryToCapture]:
    """Every checkpoint of the deployment, for a snapshot, whether started in this attempt or not (1a.11)."""
    held = holders(attempt)
    return {name: _to_capture(attempt, name, held.get(name)) for name in _query_names(attempt, held)}


def _to_capture(attempt: Attempt, name: str, holder: SnapshotManifest | None) -> QueryToCapture:
    need_checkpoint(attempt, name)
    logical = attempt.queries.get(name)
    known = last_known(attempt, name)
    progress = logical.last_progress() if logical is not None else None
    facts = logical.startable.facts if logical is not None else None
    sources = facts.in_line_order(progress.source_descriptions) if progress is not None and facts is not None else ()
    watermarks = facts.watermarks if facts is not None else ()
    return QueryToCapture(
        checkpoint=attempt.checkpoint_of(name),
        carried=holder.queries[name] if holder is not None else None,
        carried_snapshot_id=holder.snapshot_id if holder is not None else None,
        sources=sources or (known.sources if known is not None else ()),
        watermarks=watermarks or (known.watermarks if known is not None else ()),
        identities_at=partial(_identities_at, attempt, name, known),
        state_rows=_state_rows(progress, known),
        rows_dropped=logical.rows_dropped() if logical is not None else None,
        before=known,
    )


def _identities_at(
    attempt: Attempt, name: str, known: QuerySnapshot | None, batch_id: int | None
) -> tuple[SourceIdentity, ...]:
    """The sources at the offsets of a position: asks them for their marks now, after the position was read."""
    book, logical = attempt.sources, attempt.queries.get(name)
    if logical is None or batch_id is None or not book.identities(name):
        return _last_identities(attempt, name, known, batch_id) or book.identities(name)
    if logical.plans_batch_by_batch:
        book.sight(name, batch_id, lambda: max(batch_id, logical.newest_batch_id()) + 1)
    return book.identities_at(name, batch_id, partial(_lines_at, logical.checkpoint))


def own_identities(
    attempt: Attempt, name: str, known: QuerySnapshot | None, batch_id: int | None
) -> tuple[SourceIdentity, ...]:
    """The source identities for the offsets of a query's own checkpoint, up to its last committed batch: as this
    attempt saw them, else as recorded in ``known``."""
    logical = attempt.queries.get(name)
    if logical is not None and batch_id is not None:
        seen = attempt.sources.identities_at(name, batch_id, partial(_lines_at, logical.checkpoint))
        if any(identity.marks for identity in seen):
            return seen
    return _last_identities(attempt, name, known, batch_id)


def _lines_at(checkpoint: Checkpoint, batch_id: int) -> tuple[str, ...]:
    """The offsets at the end of a batch, source by source; () where the log no longer has them."""
    entry = checkpoint.read_offset(batch_id) if batch_id >= 0 else None
    return entry.source_lines if entry is not None else ()


def _state_rows(progress: QueryProgress | None, known: QuerySnapshot | None) -> dict[int, int]:
    """Rows in the state after the batches for which they were counted."""
    found = {}
    before = known.position if known is not None and not known.drained else None
    if before is not None and before.batch_id is not None and before.state_rows_left is not None:
        found[before.batch_id] = before.state_rows_left
    if progress is not None:
        found[progress.batch_id] = sum(operator.rows for operator in progress.state)
    return found


def last_known(attempt: Attempt, name: str) -> QuerySnapshot | None:
    """The query in the newest readable snapshot of this deployment, else in its start snapshot (Law 7)."""
    for event in reversed(attempt.reporter.events):
        snapshot_id = getattr(event, "snapshot_id", None)
        manifest = attempt.control.readable_manifest(snapshot_id) if snapshot_id else None
        if manifest is not None and name in manifest.queries:
            return manifest.queries[name]
    start = attempt.start.manifest()
    return start.queries.get(name) if start is not None else None


def _last_identities(
    attempt: Attempt, name: str, known: QuerySnapshot | None, batch_id: int | None
) -> tuple[SourceIdentity, ...]:
    said = identities_when_planned(attempt.reporter.events, name, batch_id, attempt.control.readable_manifest)
    return said or identities_taken_over(known, name, attempt.spec.start)


def take_snapshot(
    attempt: Attempt,
    snapshot_id: str,
    kind: SnapshotKind,
    command_id: str,
    queries: Mapping[str, QueryToCapture],
    request_id: str = "",
    *,
    when_linked: Callable[[], None] = lambda: None,
    go_on: Callable[[], None] = lambda: None,
) -> SnapshotManifest:
    """Capture these queries; one try. ``when_linked`` and ``go_on`` as in ``capture``."""
    return capture(
        attempt.control,
        attempt.checkpoints,
        snapshot_id=snapshot_id,
        snapshot_kind=kind,
        deployment_id=attempt.deployment_id,
        attempt=attempt.number,
        fencing_token=attempt.spec.fencing_token,
        taken_by="agent",
        queries=queries,
        command_id=command_id,
        request_id=request_id,
        spark_version=_written_by(attempt, queries) if kind == "stopped" else attempt.spark_version,
        places=attempt.places,
        kept_at=attempt.spec.version.snapshots,
        when_linked=when_linked,
        go_on=go_on,
    )


def _written_by(attempt: Attempt, queries: Mapping[str, QueryToCapture]) -> str:
    positions: dict[str, int | None] = dict.fromkeys(queries)
    begun = []
    for name, query in queries.items():
        if query.checkpoint is not None:
            position = query.checkpoint.position()
            positions[name] = position.batch_id
            if has_begun_planned(query.checkpoint, position):
                begun.append(name)
    start, is_lost = attempt.start.manifest(), attempt.start.is_lost()
    held = holders(attempt) if is_lost else {}
    carried = [held[name].spark_version for name in queries if name in held]
    wrote = spark_that_wrote(attempt.reporter.events, positions, start, begun, is_start_lost=is_lost)
    return newest_spark((wrote, *carried)) or attempt.spark_version


def take_final_snapshot(attempt: Attempt, kind: SnapshotKind, command_id: str) -> SnapshotManifest:
    """Take the snapshot at the end of this attempt, with every checkpoint of the deployment; retries until it is
    complete.

    Raises:
        FencedError: this attempt was replaced; nothing was written (Law 4).
        DataError: a checkpoint or the start snapshot is damaged.
    """

    def take() -> SnapshotManifest:
        attempt.fence.check_current()
        return take_snapshot(attempt, attempt.snapshot_id(kind), kind, command_id, queries_to_capture(attempt))

    return retry_until_fenced(attempt, f"snapshot {kind}", take)


def has_queries(attempt: Attempt) -> bool:
    """Whether this deployment has any query."""
    return bool(retry_until_fenced(attempt, "the list of checkpoints", lambda: _query_names(attempt, holders(attempt))))


def positions_in(manifest: SnapshotManifest) -> dict[str, QueryPosition]:
    return {name: query.position for name, query in manifest.queries.items()}


# Seals: the sha256 of a snapshot's files, computed in the background.
#
# A snapshot with state at the end of an attempt is sealed by the stream's next driver, because a successor waits for
# this one to go. A ``drained`` snapshot holds positions only, and is sealed at once.

SEAL_OLDER_AFTER_SECONDS = 30.0
"""By then a driver has started its queries."""
AT_ONCE_BYTES = 1 << 22


def seal_positions(attempt: Attempt, manifest: SnapshotManifest) -> None:
    """Seal a small snapshot, such as one of positions only; a larger one is left to the next driver."""
    if manifest.size_bytes <= AT_ONCE_BYTES:
        _seal(attempt, manifest.snapshot_id, lambda: None)


def seal_in_background(attempt: Attempt, snapshot_id: str) -> None:
    """Seal a snapshot at low priority; the sealing is abandoned once the deployment is being ended."""
    attempt.in_background(lambda: seal_now(attempt, snapshot_id))


def seal_now(attempt: Attempt, snapshot_id: str) -> None:
    """The same, in the calling thread."""
    _seal(attempt, snapshot_id, lambda: _give_way(attempt))


def seal_older(attempt: Attempt) -> None:
    """Seal the unsealed snapshots of this deployment and of its predecessor."""
    owners = [attempt.deployment_id, attempt.spec.start.predecessor_id]
    try:
        snapshot_ids = attempt.control.snapshot_ids()
    except StreamStateError as error:
        attempt.reporter.outage("the list of snapshots", error)
        return
    for snapshot_id in snapshot_ids:
        if any(owner is not None and snapshot_id.startswith(f"{owner}-") for owner in owners):
            _seal(attempt, snapshot_id, lambda: _give_way(attempt))


def _seal(attempt: Attempt, snapshot_id: str, before_each: Callable[[], None]) -> None:
    """Report a problem and never raise it: a missing seal must not fail the job."""
    try:
        manifest = attempt.control.manifest(snapshot_id)
        if manifest is not None and needs_seal(manifest) and attempt.control.seal(snapshot_id) is None:
            with leased(attempt.control, snapshot_id, f"the seal by {attempt.deployment_id}") as lease:

                def before() -> None:
                    before_each()
                    lease.renew()

                seal(attempt.control, attempt.places.of(manifest), snapshot_id, before_each=before)
    except DataError as error:
        attempt.reporter.note("a snapshot is not whole, so it is not sealed", snapshot_id=snapshot_id, why=str(error))
    except StreamStateError as error:
        attempt.reporter.say(f"snapshot {snapshot_id} is not sealed: {error}")


def _give_way(attempt: Attempt) -> None:
    if attempt.fence.is_fenced or not attempt.latch.is_open:
        raise UnavailableError("the deployment is being ended, and that comes first")
