"""Going back to the snapshot that a deployment started from: its conditions, and its start plan (Law 14)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.deploy.takeover import StillOurs, built_checkpoints, fence, take_over
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.request.requests import Return
from airflow_streamstate.errors import ConflictError, DataError, SnapshotNotFoundError
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.records import StartPlan


class UsedError(ConflictError):
    """A deployment that should be treated as never begun has run batches (Law 14)."""


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
            next_step="Go on from its end, or undo what it wrote.",
        )


def leave_behind(
    home: Home, control: StreamControl, seen: Observation, snapshot_id: str, request_id: str, still_ours: StillOurs
) -> None:
    """Fence a deployment that is proven ended, and keep its end as far as it is readable: no start goes on from it.

    Args:
        snapshot_id: the id of the snapshot at its end.
        still_ours: as in ``takeover.fence``.

    Raises:
        ConflictError: its drain was interrupted after its flush had begun, or another writer moved the stream.
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
