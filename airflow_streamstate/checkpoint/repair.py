"""The state of a log before a start, and its repair (1a.7, Law 12)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Literal, Union

from airflow_streamstate.checkpoint.barrier import withdraw
from airflow_streamstate.checkpoint.guards import ENCODING
from airflow_streamstate.checkpoint.log import (
    FLUSH_WATERMARK_MS,
    PARTITIONS,
    BarrierEntry,
    BarrierMark,
    Checkpoint,
    Position,
    format_offset_entry,
    parse_offset_entry,
    replace_entry,
)
from airflow_streamstate.checkpoint.state_files import accept_nulls, operator_stores
from airflow_streamstate.errors import ConflictError, DataError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.store.transfer import keys_below

# Adds the setting that Spark 4.2 forgets to pin in offset log 2, before a start.
#
# Offset log 1 keeps ``spark.sql.shuffle.partitions`` in each entry, so that a query keeps the partitions of its state
# whatever the session's setting is. Spark 4.2 leaves it out of offset log 2 in the first run of a query (4.3 does not).
# Then a start over a planned batch dies with ``None.get``, since Spark compares the setting of that entry and of the
# one before it; and after a change of the setting Spark looks for state in partitions that do not exist. Both are right
# once the two newest entries have the setting.


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

    The operators' metadata, written before any state, show how many partitions a query has. Without them, before the
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
    """How many partitions the operators' metadata show; 0 if none of it can be read."""
    with suppress(DataError):  # a snapshot reports it
        operators = operator_stores(checkpoint, batch_id, paths)
        return max((operator.noted_partitions for operator in operators), default=0)
    return 0


def _written(paths: set[str]) -> int:
    """How many partitions hold state; 0 where none does."""
    parts = [path.split("/") for path in paths]
    numbers = {int(part[1]) for part in parts if len(part) > 2 and part[0].isdecimal() and part[1].isdecimal()}
    return max(numbers, default=-1) + 1


@dataclass(frozen=True)
class Clean:
    """Nothing is planned and no entry of ours is in the log; ``batch_id`` None: no batch was ever committed."""

    batch_id: int | None


@dataclass(frozen=True)
class PlannedBatch:
    """Spark planned a batch and did not commit it: every start runs it first, over the same bounds (1a.6)."""

    batch_id: int | None
    planned_id: int


@dataclass(frozen=True)
class BarrierOverCommitted:
    """A stop or fence over a committed batch, or over no batch at all: removed, and the query continues."""

    batch_id: int | None
    barrier_ids: tuple[int, ...]


@dataclass(frozen=True)
class BarrierOverUncommitted:
    """A barrier over a batch that never committed: a start like this silently skips that batch."""

    batch_id: int | None
    planned_id: int
    barrier_ids: tuple[int, ...]


@dataclass(frozen=True)
class DrainPending:
    """A drain entry over a committed batch, not flushed to its end; ``barrier_ids`` are above it, in its way."""

    batch_id: int
    drain_id: int
    mark: BarrierMark
    barrier_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class DrainCommitted:
    """The flush is committed, as ``batch_id``: this checkpoint is never started again (Law 11)."""

    batch_id: int
    drain_id: int
    mark: BarrierMark


Beneath = Union[Clean, PlannedBatch, BarrierOverCommitted, BarrierOverUncommitted, DrainPending]


@dataclass(frozen=True)
class Foreign:
    """Entries that name another deployment, as in a copied checkpoint: removed, reported, never obeyed (1a.1)."""

    foreign: tuple[BarrierEntry, ...]
    beneath: Beneath


Finding = Union[Beneath, DrainCommitted, Foreign]

Run = Literal["normal", "once", "nothing"]
_TEMPORARY = re.compile(r"\.+[0-9]+\.[0-9a-f-]+(\.TID[0-9]+)?\.tmp(\.crc)?")


@dataclass(frozen=True)
class RepairReport:
    """What was found, what was removed, and how to start now.

    Attributes:
        found: the state before the repair.
        removed_ids: our entries that were removed.
        foreign: marks of removed entries that name another deployment.
        run: ``normal``: start as the script asks; ``once``: start with ``Trigger.Once``; ``nothing``: do not start.
        batch_id: the batch that ``once`` will run; the last committed one otherwise.
        swept_keys: removed temporary files of a failed claim of batch 0, over which Spark would not start.
        pinned_ids: entries of offset log 2 to which the number of partitions was added, which Spark had left out.
    """

    found: Finding
    removed_ids: tuple[int, ...]
    foreign: tuple[BarrierMark, ...]
    run: Run
    batch_id: int | None
    swept_keys: tuple[str, ...] = ()
    pinned_ids: tuple[int, ...] = ()


def classify(checkpoint: Checkpoint, deployment_id: str) -> Finding:
    """The state of the log, as this deployment sees it. Reads only.

    Raises:
        DataError: the log is damaged, contradicts itself, or was resumed after its drain.
        UnsupportedCheckpointError: a format that is not known here.
    """
    position = checkpoint.position()
    drained = _drain_done(checkpoint, position)
    if drained is not None:
        return drained
    own = tuple(barrier for barrier in position.barriers if _belongs_to(barrier, deployment_id))
    foreign = tuple(barrier for barrier in position.barriers if not _belongs_to(barrier, deployment_id))
    beneath = _classify_own(position, own)
    return Foreign(foreign, beneath) if foreign else beneath


def _classify_own(position: Position, own: tuple[BarrierEntry, ...]) -> Beneath:
    ids = tuple(barrier.batch_id for barrier in own)
    if position.planned_id is not None:
        if not own:
            return PlannedBatch(position.batch_id, position.planned_id)
        return BarrierOverUncommitted(position.batch_id, position.planned_id, ids)
    if not own:
        return Clean(position.batch_id)
    mark = own[0].entry.mark
    lowest_is_next = own[0].batch_id == position.barrier_id
    if position.batch_id is not None and mark is not None and mark.kind == "drain" and lowest_is_next:
        return DrainPending(position.batch_id, own[0].batch_id, mark, ids[1:])
    return BarrierOverCommitted(position.batch_id, ids)


def _drain_done(checkpoint: Checkpoint, position: Position) -> DrainCommitted | None:
    if position.batch_id is None:
        return None
    last = checkpoint.read_offset(position.batch_id)
    if last is not None and last.mark is not None and last.mark.kind == "drain":
        return DrainCommitted(position.batch_id, position.batch_id, last.mark)
    if checkpoint.watermark_ms() < FLUSH_WATERMARK_MS:
        return None
    # A watermark at the end of time: the data may be that broken, or a drained checkpoint was resumed.
    for batch_id in reversed(checkpoint.offset_ids()):
        entry = checkpoint.read_offset(batch_id) if batch_id < position.batch_id else None
        if entry is not None and entry.mark is not None and entry.mark.kind == "drain":
            raise DataError(
                "this checkpoint was resumed after its drain, so that every row since was late",
                checkpoint=checkpoint.prefix,
                drained_at_batch=batch_id,
                last_committed=position.batch_id,
                next_step="Deploy from the snapshot that its drain made.",
            )
    return None


def repair_before_start(
    checkpoint: Checkpoint,
    deployment_id: str,
    *,
    stop_pending: bool = False,
    partitions: Callable[[], str] = lambda: "",
) -> RepairReport:
    """Make the log safe to start from, and return how to start (1a.7). Repeating it after a crash is safe.

    Args:
        checkpoint: of a query that is not running.
        deployment_id: the deployment that is about to start it.
        stop_pending: a stop or drain waits: a planned batch runs alone first, then the barrier is put again.
        partitions: as ``missing_pin.pin_partitions``.

    Raises:
        ConflictError: another deployment drained this checkpoint.
        DataError, UnsupportedCheckpointError: as ``classify``.
    """
    found = classify(checkpoint, deployment_id)
    if isinstance(found, DrainCommitted):
        if found.mark.deployment_id != deployment_id:
            raise ConflictError(
                "this checkpoint was drained by another deployment and cannot be started",
                checkpoint=checkpoint.prefix,
                drained_by=found.mark.deployment_id,
                next_step="Deploy from the snapshot that its drain made.",
            )
        return RepairReport(found, (), (), "nothing", found.batch_id)
    foreign = found.foreign if isinstance(found, Foreign) else ()
    beneath = found.beneath if isinstance(found, Foreign) else found
    in_the_way = () if isinstance(beneath, (Clean, PlannedBatch)) else beneath.barrier_ids
    removed = sorted({*in_the_way, *(barrier.batch_id for barrier in foreign)})
    # From the top down: a crash in between leaves no gap, which Spark would take for a damaged log.
    for removed_id in reversed(removed):
        withdraw(checkpoint, removed_id)
    marks = tuple(barrier.entry.mark for barrier in foreign if barrier.entry.mark is not None)
    run, batch_id = _how_to_start(beneath, stop_pending=stop_pending)
    swept = () if batch_id is not None else tuple(_sweep(checkpoint))
    accept_empty_batch(checkpoint)
    return RepairReport(
        found, tuple(removed), marks, run, batch_id, swept, pinned_ids=pin_partitions(checkpoint, partitions)
    )


def _sweep(checkpoint: Checkpoint) -> Iterator[str]:
    """Remove the temporary files of a failed claim of the first batch.

    With an empty log Spark 4.1+ starts only if ``offsets``, ``commits`` and ``state`` hold no file at all. Other files
    stay, so that Spark refuses: a log was lost, and nothing starts empty (Law 5).
    """
    if checkpoint.offset_ids() or checkpoint.commit_ids():
        return
    for folder in ("offsets/", "commits/"):
        for info in list(checkpoint.store.list_objects(checkpoint.key(folder))):
            if _TEMPORARY.fullmatch(info.key.rpartition("/")[2]):
                checkpoint.store.delete(info.key)
                yield info.key


def _how_to_start(beneath: Beneath, *, stop_pending: bool) -> tuple[Run, int | None]:
    if isinstance(beneath, DrainPending):
        return "once", beneath.drain_id
    if isinstance(beneath, (PlannedBatch, BarrierOverUncommitted)) and stop_pending:
        return "once", beneath.planned_id
    return "normal", beneath.batch_id


def accept_empty_batch(checkpoint: Checkpoint) -> None:
    """Let a query of Spark 3.5 run an empty batch: a stop entry, a drain, a rehearsal.

    Its joins may record a column that a filter makes not null, and an empty batch, in which Spark leaves the filter
    out, is refused by that schema. Newer Sparks write no such schemas, or take them.

    Args:
        checkpoint: of a query that does not run.

    Raises:
        DataError: a schema, or the last entry, is damaged.
    """
    batch_id = checkpoint.position().batch_id
    entry = None if batch_id is None else checkpoint.read_offset(batch_id)
    if entry is not None and ENCODING not in entry.conf:
        accept_nulls(checkpoint)


def _belongs_to(barrier: BarrierEntry, deployment_id: str) -> bool:
    mark = barrier.entry.mark
    return mark is not None and mark.deployment_id == deployment_id
