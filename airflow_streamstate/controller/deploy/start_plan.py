"""How a deployment starts: a snapshot, other offsets, moved sources, renamed queries, another Spark (Laws 10, 14)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from airflow_streamstate.checkpoint.file_source import plain_moves
from airflow_streamstate.checkpoint.guards import offset_log_of, refuse_move, state_store_of
from airflow_streamstate.checkpoint.log import Checkpoint, Position
from airflow_streamstate.connectors.moves import consent_missing, describe
from airflow_streamstate.connectors.registry import FILE, known_sources, moves_between
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.decide import Refused, Start, decide_start
from airflow_streamstate.controller.deploy.takeover import StillOurs, built_checkpoints, fence, take_over, written_by
from airflow_streamstate.controller.drivers.driver_launch import Drivers
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.request.requests import DeployRequest, Return
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    IncompatibleUpgradeError,
    InvalidRequestError,
    SnapshotNotFoundError,
    StreamStateError,
)
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest, is_within, place_of
from airflow_streamstate.protocol.positions import SourceIdentity, SourceMove
from airflow_streamstate.protocol.records import DeploymentSpec, StartPlan
from airflow_streamstate.snapshot.deletion import leased


class UsedError(ConflictError):
    """A deployment that should be treated as never started has run batches (Law 14)."""


def used_queries(beginning: SnapshotManifest, end: SnapshotManifest) -> dict[str, tuple[int, int]]:
    """The first and last batch of each query between two snapshots, committed or planned; unchanged queries are left
    out."""
    found = {}
    for name, query in end.queries.items():
        before = beginning.queries.get(name)
        began = (None, None) if before is None else _standing(before)
        ended = _standing(query)
        last = query.position.batch_id if ended[1] is None else ended[1]
        if ended != began and last is not None:
            found[name] = (0 if began[0] is None else began[0] + 1, last)
    return found


def committed_batches(beginning: SnapshotManifest, end: SnapshotManifest) -> dict[str, tuple[int, int]]:
    """The first and last batch that each query committed between two snapshots."""
    found = {}
    for name, (first, _) in used_queries(beginning, end).items():
        last = end.queries[name].position.batch_id
        if last is not None and first <= last:
            found[name] = (first, last)
    return found


def begun_batches(beginning: SnapshotManifest, end: SnapshotManifest) -> dict[str, int]:
    """The planned and uncommitted batch of each query; a successor runs it again over the same bounds."""
    planned = {name: end.queries[name].position.planned_batch_id for name in used_queries(beginning, end)}
    return {name: batch_id for name, batch_id in planned.items() if batch_id is not None}


def _standing(query: QuerySnapshot) -> tuple[int | None, int | None]:
    return query.position.batch_id, query.position.planned_batch_id


def refuse_used(predecessor: Observation, beginning: SnapshotManifest, end: SnapshotManifest) -> None:
    """Check that a deployment has neither committed nor planned a batch.

    Raises:
        UsedError: it has; from its beginning other batches would run under ids that the sink may hold.
    """
    if used := used_queries(beginning, end):
        raise UsedError(
            "this deployment has run batches, so from its beginning others would run under ids that the sink may hold",
            deployment_id=predecessor.deployment_id,
            batches={name: list(batches) for name, batches in used.items()},
            snapshot_id=beginning.snapshot_id,
            next_step="Continue from its end, or undo what it wrote.",
        )


def leave_behind(
    home: Home, control: StreamControl, seen: Observation, snapshot_id: str, request_id: str, still_ours: StillOurs
) -> None:
    """Fence a deployment that is proven ended, and keep its end as far as it is readable: no start continues from it.

    Args:
        snapshot_id: the id of the snapshot at its end.
        still_ours: as in ``takeover.fence``.

    Raises:
        ConflictError: its drain was interrupted after its flush had started, or another writer moved the stream.
    """
    with suppress(DataError, SnapshotNotFoundError):
        take_over(home, control, seen, snapshot_id, request_id, may_discard=True, still_ours=still_ours)
    with suppress(DataError):
        fence(built_checkpoints(home, seen), seen, request_id, home.clock, still_ours)


def marked(plan: StartPlan, returns: Return, predecessor_id: str) -> StartPlan:
    """The plan of a start that goes back, with what its driver has to undo first."""
    if not returns.undoes:
        return plan
    return replace(
        plan,
        undoes=predecessor_id,
        undo_command=returns.undo_command,
        accept_duplicates=returns.accept_duplicates,
    )


# Sources of files that have moved since the snapshot (``--move-source``): which moves a start makes.


def moving(start: Start, asked: Mapping[str, str], manifest: SnapshotManifest | None) -> Start:
    """The start with the moves that are still due; a file or a DAG keeps naming them.

    Args:
        asked: folder before -> folder now.
        manifest: the snapshot that it starts from; None for a start with nothing.

    Raises:
        InvalidRequestError: no source of the snapshot reads from the folder, or some read from the new one already.
    """
    if not asked or manifest is None or start.plan.snapshot_id is None:
        return start
    if start.plan.offsets or start.plan.begins_at is not None:
        raise InvalidRequestError(
            "a start at other offsets cannot move a source as well",
            folders=sorted(asked),
            next_step="Move it by one deployment, and start elsewhere by the next one.",
        )
    places = {name: _places(query) for name, query in manifest.queries.items()}
    moves = {}
    for old, new in plain_moves(asked).items():
        at_old, at_new = (
            {name: [place for place in found if is_within(place, folder)] for name, found in places.items()}
            for folder in (old, new)
        )
        for name in places:
            if at_old[name] and at_new[name]:
                raise InvalidRequestError(
                    "a query reads from the old folder, and from the new one as well",
                    query_name=name,
                    old=at_old[name],
                    new=at_new[name],
                    next_step="Move the files to a folder that the query does not read yet, or name a longer OLD.",
                )
        if not any(at_old.values()) and not any(at_new.values()):
            raise InvalidRequestError(
                "no file source of the snapshot reads from this folder",
                folder=old,
                snapshot_id=manifest.snapshot_id,
                sources=sorted({place for found in places.values() for place in found}),
                next_step="Name the folder of one of these, or one above it, as OLD in --move-source OLD=NEW.",
            )
        if any(at_old.values()):
            moves[old] = new
    return start if not moves else replace(start, plan=replace(start.plan, move_sources=moves))


def _places(query: QuerySnapshot) -> list[str]:
    return [place for place in map(place_of, query.identities) if place is not None]


# A seed at other offsets than its predecessor's end: which input it skips and which it reads again.
#
# The controller compares given offsets with the snapshot before it records anything; the driver asks the sources to
# map a time to offsets. Skipped and repeated input needs the user's consent by query (Laws 5 and 14).


def decide_elsewhere(
    home: Home,
    request: DeployRequest,
    predecessor_id: str | None,
    manifest: SnapshotManifest | None,
    carried: Collection[str],
) -> Start | Refused:
    """How a deployment starts at the offsets of the request; without any, as ``decide.decide_start``."""
    if not request.terms.begins_elsewhere or predecessor_id is None or manifest is None or not manifest.queries:
        return decide_start(request, predecessor_id, manifest, carried)
    plain = replace(request, terms=replace(request.terms, start=None, offsets={}, begins_at=None))
    decision = decide_start(plain, predecessor_id, manifest, carried)
    if isinstance(decision, Refused):
        return decision
    try:
        notes = _checked(home, request, manifest)
    except StreamStateError as error:
        return Refused(error)
    plan = replace(
        decision.plan,
        mode="seed",
        offsets={name: tuple(lines) for name, lines in request.terms.offsets.items()},
        begins_at=request.terms.begins_at,
        accept_repeated_input=request.terms.accept_repeated_input,
    )
    return Start(plan, (*decision.notes, *notes))


def _checked(home: Home, request: DeployRequest, manifest: SnapshotManifest) -> tuple[str, ...]:
    names = sorted(request.terms.offsets or [name for name, known in manifest.queries.items() if _has_begun(known)])
    notes = []
    for name in names:
        known = manifest.queries.get(name)
        if known is None or not _has_begun(known):
            raise InvalidRequestError(
                "the snapshot has no position of this query to move",
                query_name=name,
                snapshot_id=manifest.snapshot_id,
                queries=sorted(manifest.queries),
                next_step="Name a query of the snapshot that has committed a batch.",
            )
        _check_snapshot(name, known, manifest, allow_state_loss=request.terms.allow_state_loss)
        if request.terms.begins_at is not None:
            at = format_time(request.terms.begins_at)
            notes.append(f"query {name} starts with the input since {at}: its sources are asked for it")
        else:
            moves = _moves(home, name, known, manifest, request.terms.offsets[name])
            _need_consent(name, moves, request)
            notes += [f"query {name}, source {words}" for words in describe(moves)]
    return tuple(notes)


def _has_begun(known: QuerySnapshot) -> bool:
    return known.position.batch_id is not None


def _check_snapshot(name: str, known: QuerySnapshot, manifest: SnapshotManifest, *, allow_state_loss: bool) -> None:
    planned = known.position.planned_batch_id
    facts = {"query_name": name, "snapshot_id": manifest.snapshot_id}
    if planned is not None:
        raise IncompatibleUpgradeError(
            "a batch is planned and not committed, and the sink may hold it: which input it has is unknown",
            **facts,
            planned_batch_id=planned,
            next_step="Resume the deployment until that batch is committed, or skip it; then stop and deploy.",
        )
    if known.position.batch_id == 0:
        raise IncompatibleUpgradeError(
            "a seed needs two committed batches, and this query has one",
            **facts,
            next_step="Let it commit another batch.",
        )
    if not known.drained and not allow_state_loss and any(entry.path.startswith("state/") for entry in known.files):
        raise IncompatibleUpgradeError(
            "this query has state, which a seed would drop: it belongs to the offsets that it was built from",
            **facts,
            state_rows=known.position.state_rows_left,
            next_step="Drain the stream first, so that the open windows are written; or drop the state with"
            " --allow-state-loss.",
        )


def _moves(
    home: Home, name: str, known: QuerySnapshot, manifest: SnapshotManifest, given: Sequence[str]
) -> tuple[SourceMove, ...]:
    stood_at = known.position.end_offsets
    if len(given) != len(stood_at):
        raise InvalidRequestError(
            "the number of offsets is not the number of the query's sources in the snapshot",
            query_name=name,
            offsets=len(given),
            sources=len(stood_at),
            next_step="`streamstate snapshot list --json` shows the offsets of each query, in their order.",
        )
    for identity, first, second in zip(_padded(known), stood_at, given, strict=True):
        _check_offset(name, identity, first, second)
    control = home.control(manifest.stream_id)
    with leased(control, manifest.snapshot_id, "a deploy that starts elsewhere", is_kept_anyhow=True) as lease:
        here = lease.landed(home.places, manifest, [name])
        data = lease.logs_of(home.checkpoints, here, name)
        entry = data.read_offset(known.position.batch_id or 0)
        return moves_between(data, known.identities, entry.source_names if entry is not None else (), stood_at, given)


def _padded(known: QuerySnapshot) -> list[SourceIdentity]:
    missing = len(known.position.end_offsets) - len(known.identities)
    return [*known.identities, *[SourceIdentity("", "")] * max(0, missing)]


def _check_offset(name: str, identity: SourceIdentity, stood_at: str, given: str) -> None:
    connector = next((each for each in known_sources().connectors if each.name == identity.adapter), None)
    if connector is None:
        return
    facts = {"query_name": name, "source": identity.what, "offset": given[:200]}
    try:
        order = connector.compare(given, stood_at)
    except Exception:  # a user's connector may raise anything
        raise InvalidRequestError(
            "this is not an offset of the source", **facts, stood_at=stood_at, next_step="Write it as Spark does."
        ) from None
    if connector.name == FILE and order == "ahead":
        raise InvalidRequestError(
            "a file source counts the files that it has listed, so no offset is ahead of where it was",
            **facts,
            stood_at=stood_at,
            next_step="To skip files give a time (--at): it is compared with their modification times.",
        )


def _need_consent(name: str, moves: Sequence[SourceMove], request: DeployRequest) -> None:
    if missing := consent_missing(name, moves, request.terms.accept_lost_input, request.terms.accept_repeated_input):
        raise IncompatibleUpgradeError(
            "a start there skips input or reads input again, and that was not accepted",
            query_name=name,
            moves=list(describe(moves)),
            next_step=f"If that is meant, deploy with {missing}.",
        )


# Queries that the script and the stream name differently: the stream keeps the name that a query started with.
#
# A rename stays in effect in every later deployment, until another one replaces it: the script keeps the new name.


def renaming(
    start: Start, before: StartPlan | None, asked: Mapping[str, str], manifest: SnapshotManifest | None
) -> Start:
    """The start with the names that its script gives the queries of its snapshot.

    Args:
        before: how the deployment before started; None for a stream's first.
        asked: what the request renames.
        manifest: the snapshot that it starts from; None for a start with nothing.

    Raises:
        InvalidRequestError: the snapshot has no such query, or has another one of the new name.
    """
    if manifest is None or start.plan.snapshot_id is None:
        return start
    known = {} if before is None else before.rename_queries
    names = {old: new for old, new in known.items() if old in manifest.queries}
    for given, new in sorted(asked.items()):
        old = _known(given, names, manifest)
        if old is None and _known(new, names, manifest) is not None:
            continue  # a file or a DAG keeps naming it
        if old is None:
            raise InvalidRequestError(
                "the snapshot has no query of this name to rename",
                query_name=given,
                snapshot_id=manifest.snapshot_id,
                queries=sorted(manifest.queries),
                next_step="Name one of these as OLD in --rename-query OLD=NEW.",
            )
        names.pop(old, None)
        other = _known(new, names, manifest)
        if other not in (None, old):
            raise InvalidRequestError(
                "another query of the snapshot has the new name already",
                query_name=given,
                new_name=new,
                snapshot_id=manifest.snapshot_id,
                next_step="Take a name that no query of the stream has.",
            )
        if new != old:
            names[old] = new
    return start if not names else replace(start, plan=replace(start.plan, rename_queries=names))


def _known(name: str, names: Mapping[str, str], manifest: SnapshotManifest) -> str | None:
    """The query of the snapshot that a script calls by this name, or None."""
    for old, new in names.items():
        if new == name:
            return old
    return name if name in manifest.queries else None


# A deploy on a Spark that cannot read the predecessor's checkpoints is refused before anything is touched (Law 10).


def refuse_spark(home: Home, control: StreamControl, drivers: Drivers, spec: DeploymentSpec, seen: Observation) -> None:
    """Check that the Spark of a deployment can continue with the checkpoints of its predecessor ``seen``.

    Comes before all other refusals: a running stream should not be stopped for a deploy that is refused afterwards.
    A drained predecessor passes: any Spark reads its positions.

    Raises:
        IncompatibleUpgradeError: it cannot.
        InvalidRequestError: the deployment could not be launched.
    """
    if seen.drained is not None:
        return
    runs_on = drivers.spark_version(spec)
    if not runs_on:
        return  # unknown here: the driver checks it
    try:
        checkpoints = built_checkpoints(home, seen)
        positions = {name: checkpoint.position() for name, checkpoint in checkpoints.items()}
        before = written_by(control, seen, checkpoints, positions)
        committed_by = written_by(control, seen, checkpoints, positions, with_planned=False)
        formats = {_formats(checkpoints[name], position) for name, position in positions.items()} or {("", "")}
    except DataError:
        return  # a later step reports a damaged checkpoint
    for provider, offset_log in sorted(formats):
        refuse_move(
            before,
            runs_on,
            provider,
            offset_log,
            committed_by=committed_by,
            stream_id=seen.stream_id,
            deployment_id=seen.deployment_id,
        )


def _formats(checkpoint: Checkpoint, position: Position) -> tuple[str, str]:
    """The state store provider and the version of the offset log."""
    entry = position.planned if position.batch_id is None else checkpoint.read_offset(position.batch_id)
    return state_store_of(entry, has_state=checkpoint.has_state()), offset_log_of(entry)
