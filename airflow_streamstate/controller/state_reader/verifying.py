"""Whether a snapshot is whole: byte for byte, and by loading its state in Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_streamstate.controller.snapshots import Snapshots
from airflow_streamstate.controller.state_reader.choosing import ReadingRequest
from airflow_streamstate.controller.state_reader.readings import Readings


def verify_snapshot(
    snapshots: Snapshots,
    readings: Readings,
    request: ReadingRequest,
    *,
    deep: bool = False,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Read every byte of a snapshot; with ``deep``, Spark loads its state, too, where every byte is as captured.

    Returns:
        ``{snapshot_id, ok, problems[{kind, query, path, detail}], loaded}``; ``loaded`` is None where nothing was.

    Raises:
        StreamNotFoundError, SnapshotNotFoundError: it does not exist.
        DataError: its manifest is not understood.
        DeadlineExceededError, DeploymentFailedError: with ``deep``: as ``Readings.look``.
    """
    snapshot_id = request.snapshot_id or ""
    problems = snapshots.verify(request.stream_id, snapshot_id)
    loaded = readings.load(request, on_progress) if deep and not problems else None
    rows = [problem.to_json() for problem in (*problems, *(() if loaded is None else loaded.problems))]
    told = None if loaded is None else loaded.queries
    return {"snapshot_id": snapshot_id, "ok": not rows, "problems": rows, "loaded": told}
