"""Checks that this driver's Spark can read a query's checkpoint, before the checkpoint is touched (Law 10)."""

from __future__ import annotations

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.checkpoint.spark_versions import offset_log_of, refuse_move, state_store_of
from airflow_streamstate.checkpoint.state_files import has_begun_planned
from airflow_streamstate.control.writers import spark_that_wrote
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.snapshotting import retry_until_fenced
from airflow_streamstate.driver.start.seeding import stored_entry
from airflow_streamstate.snapshot.data import data_files


def check_spark(attempt: Attempt, name: str, checkpoint: Checkpoint) -> None:
    """Refuse a query whose checkpoint, or snapshot, a newer Spark wrote in a way that this Spark cannot read.

    Raises:
        IncompatibleUpgradeError: it is so.
    """

    def look() -> tuple[str, str, str, str]:
        return _written_by(attempt, name, checkpoint)

    found = look() if attempt.latch.is_open else retry_until_fenced(attempt, "the checkpoint", look)
    written_by, committed_by, provider, offset_log = found
    runs_on = attempt.spark_version
    refuse_move(written_by, runs_on, provider, offset_log, committed_by=committed_by, query_name=name)


def _written_by(attempt: Attempt, name: str, checkpoint: Checkpoint) -> tuple[str, str, str, str]:
    """The Spark versions that wrote and that committed, the state store, the version of the offset log."""
    manifest = attempt.start.manifest()
    known = manifest.queries.get(name) if manifest is not None else None
    start = None if known is None or known.drained else manifest
    if checkpoint.exists():
        position = checkpoint.position()
        batch_id = position.batch_id
        entry = position.planned if batch_id is None else checkpoint.read_offset(batch_id)
        begun = (name,) if has_begun_planned(checkpoint, position) else ()
        written_by, committed_by = (
            spark_that_wrote(
                attempt.reporter.events, {name: batch_id}, start, names, is_start_lost=attempt.start.is_lost()
            )
            for names in (begun, ())
        )
        return written_by, committed_by, state_store_of(entry, has_state=checkpoint.has_state()), offset_log_of(entry)
    if start is None or known is None:
        return "", "", "", ""
    batch_id = known.position.planned_batch_id if known.position.batch_id is None else known.position.batch_id
    files = data_files(start, name)
    entry = stored_entry(attempt.places.of(start), files, batch_id)
    has_state = any(path.startswith("state/") for path in files)
    written_by = start.spark_version
    return written_by, written_by, state_store_of(entry, has_state=has_state), offset_log_of(entry)
