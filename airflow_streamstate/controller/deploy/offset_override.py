"""A seed at other offsets than its predecessor's end: which input it skips and which it reads again.

The controller compares given offsets with the snapshot before it records anything; the driver asks the sources to map
a time to offsets. Skipped and repeated input needs the user's consent by query (Laws 5 and 14).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from airflow_streamstate.connectors.measuring import FILE, known_sources, moves_between
from airflow_streamstate.connectors.moving import consent_missing, describe
from airflow_streamstate.controller.decide import Refused, Start, decide_start
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.errors import IncompatibleUpgradeError, InvalidRequestError, StreamStateError
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.positions import SourceIdentity, SourceMove
from airflow_streamstate.snapshot.leases import leased


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
            notes.append(f"query {name} begins with the input since {at}: its sources are asked for it")
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
    with leased(control, manifest.snapshot_id, "a deploy that begins elsewhere", is_kept_anyhow=True) as lease:
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
            "a file source counts the files that it has listed, so no offset is ahead of where it stood",
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
            next_step=f"Where that is meant, deploy with {missing}.",
        )
