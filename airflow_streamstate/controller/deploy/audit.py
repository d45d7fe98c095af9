"""Damage that no controller can prevent: the next deploy and ``verify`` report it (Law 12, 1a.8)."""

from __future__ import annotations

from airflow_streamstate.checkpoint.log import batches_passed_over, listed_batches
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.deploy.takeover import built_checkpoints
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.snapshot.outrun import OUTRUN, batches_after
from airflow_streamstate.snapshot.verify import Problem


def audit_notes(home: Home, control: StreamControl, seen: Observation) -> tuple[str, ...]:
    """Notes on a deployment that is about to be replaced: batches that its logs pass over, and batches that its
    predecessor ran after the snapshot at its end."""
    notes = []
    try:
        for name, checkpoint in sorted(built_checkpoints(home, seen).items()):
            if passed_over := batches_passed_over(checkpoint.commit_ids()):
                listed = listed_batches(passed_over)
                notes.append(f"query {name} of {seen.deployment_id} passed over batch {listed}: rows may be lost")
        start = seen.spec.start
        # After a rollback, batches behind the older snapshot are expected: their output is undone.
        for problem in outrun_problems(home, control, start.snapshot_id if start.undoes is None else None):
            notes.append(f"query {problem.query}: {problem.detail}")
    except StreamStateError as error:
        notes.append(f"the logs before this deployment could not be audited: {error.message}")
    return tuple(notes)


def outrun_problems(home: Home, control: StreamControl, snapshot_id: str | None) -> list[Problem]:
    """Batches that the snapshot's own deployment ran after another one had started from it; none without a snapshot."""
    manifest = None if snapshot_id is None else control.manifest(snapshot_id)
    if manifest is None:
        return []
    return [
        Problem(
            "outrun",
            name,
            f"commits/{later[-1]}",
            f"{OUTRUN}: batch {listed_batches(later)} of {manifest.deployment_id}",
        )
        for name, later in sorted(batches_after(home.checkpoints, manifest).items())
    ]


def is_start_of_another(control: StreamControl, snapshot_id: str) -> bool:
    """Whether the current deployment started from this snapshot without undoing the batches after it."""
    stored = control.register()
    if stored is None or stored.value.deployment_id is None:
        return False
    start = control.spec(stored.value.deployment_id).start
    return start.undoes is None and start.snapshot_id == snapshot_id
