"""Adds the setting that Spark 4.2 forgets to pin in offset log 2, before a start.

Offset log 1 keeps ``spark.sql.shuffle.partitions`` in each entry, so that a query keeps the partitions of its state
whatever the session says. Spark 4.2 leaves it out of offset log 2 in the first run of a query (4.3 does not). Then a
start over a planned batch dies with ``None.get``, since Spark compares the setting of that entry and of the one before
it; and after a change of the setting Spark looks for state in partitions that do not exist. Both are right once the two
newest entries have the setting.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress

from airflow_streamstate.checkpoint.entries import format_offset_entry, parse_offset_entry
from airflow_streamstate.checkpoint.log import Checkpoint, replace_entry
from airflow_streamstate.checkpoint.state_files import operator_stores
from airflow_streamstate.errors import DataError
from airflow_streamstate.store.transfer import keys_below

PARTITIONS = "spark.sql.shuffle.partitions"


def pin_partitions(checkpoint: Checkpoint, partitions: Callable[[], str]) -> tuple[int, ...]:
    """Add the setting to the entries of the last committed and of a planned batch where it is missing; twice is once.

    The entries are replaced, not written over: links of their files keep their content.

    Args:
        checkpoint: of a query that does not run.
        partitions: the session's setting, for a query that has no state; "" for unknown.

    Returns:
        The batches whose entries were changed.

    Raises:
        DataError, UnsupportedCheckpointError: the log cannot be judged.
        VersionConflictError, OutcomeUnknownError: another process writes this log, or the outcome is unknown.
    """
    position = checkpoint.position()
    ids = [batch_id for batch_id in (position.batch_id, position.planned_id) if batch_id is not None]
    found = [(batch_id, checkpoint.store.get(checkpoint.offset_key(batch_id))) for batch_id in ids]
    entries = {
        batch_id: (stored, parse_offset_entry(stored.body, key=checkpoint.offset_key(batch_id)))
        for batch_id, stored in found
        if stored is not None
    }
    lacking = [
        batch_id for batch_id, (_, entry) in entries.items() if entry.version == "v2" and PARTITIONS not in entry.conf
    ]
    if not lacking:
        return ()
    said = [entry.conf[PARTITIONS] for _, entry in entries.values() if PARTITIONS in entry.conf]
    value = said[0] if said else _needed(checkpoint, partitions, position.batch_id)
    if not value:
        return ()
    for batch_id in lacking:
        stored, entry = entries[batch_id]
        body = format_offset_entry(dataclasses.replace(entry, conf={**entry.conf, PARTITIONS: value}))
        replace_entry(checkpoint.store, checkpoint.offset_key(batch_id), body, stored.version)
    return tuple(lacking)


def _needed(checkpoint: Checkpoint, partitions: Callable[[], str], batch_id: int | None) -> str:
    """The setting that the two entries lack; "" where they need none.

    The operators' metadata, written before any state, say how many partitions a query has. Without them, before the
    first commit, there may be partial state of a batch that was cut: that batch runs in as many partitions as the
    session asks for, but not in fewer than were written. Those beyond would later be taken for state, and they are
    state where the sink holds the batch, so that it is not run again.
    """
    prefix = checkpoint.key("state/")
    paths = {key[len(prefix) :] for key in keys_below(checkpoint.store, prefix)}
    told = _told(checkpoint, batch_id or 0, paths)
    if told:
        return str(told)
    written, asked = _written(paths), partitions()
    if batch_id is None and not (asked.isdecimal() and written > int(asked)):
        return ""
    return str(written) if written else asked


def _told(checkpoint: Checkpoint, batch_id: int, paths: set[str]) -> int:
    """How many partitions the operators' metadata tell of; 0 where there is none that can be read."""
    with suppress(DataError):  # a snapshot reports it
        operators = operator_stores(checkpoint, batch_id, paths)
        return max((operator.noted_partitions for operator in operators), default=0)
    return 0


def _written(paths: set[str]) -> int:
    """How many partitions hold state; 0 where none does."""
    parts = [path.split("/") for path in paths]
    numbers = {int(part[1]) for part in parts if len(part) > 2 and part[0].isdecimal() and part[1].isdecimal()}
    return max(numbers, default=-1) + 1
