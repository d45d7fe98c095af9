"""Seeds a query from a drained snapshot: fresh state of the new plan at the old offsets (1a.10)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from airflow_streamstate.checkpoint.entries import NO_OFFSET, SOURCES_NAMED, OffsetEntry, parse_offset_entry
from airflow_streamstate.checkpoint.fork import wipe
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.checkpoint.seed import (
    PINNED_CONF_KEYS,
    SeedPlan,
    finish_seed,
    prepare_seed,
    renumbered_logs,
    source_files_of,
)
from airflow_streamstate.connectors.moving import describe
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.driver.start.moved_files import moved_source_logs
from airflow_streamstate.driver.start.named_sources import (
    has_names,
    log_folders,
    map_offsets_by_name,
    source_keys,
    told_apart,
)
from airflow_streamstate.driver.start.offset_mapping import MappedOffsets, are_known, map_offsets
from airflow_streamstate.driver.start.offset_override import (
    WATERMARK_ANEW,
    as_given,
    find_beginning,
    tell,
)
from airflow_streamstate.driver.start.sources import look_before_start
from airflow_streamstate.errors import DataError, IncompatibleUpgradeError, InvalidRequestError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.snapshot.data import data_files
from airflow_streamstate.store.base import Store

_JAVA_OBJECT = re.compile(r"([\w.$]+)@[0-9a-f]{1,8}")


def seed_query(
    attempt: Attempt,
    name: str,
    startable: StartableQuery,
    manifest: SnapshotManifest,
    known: QuerySnapshot,
    query_id: Callable[[], str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Build the checkpoint of a query that was drained; returns its sources, and remarks for people.

    ``query_id`` returns the id to continue with; it is called last, when nothing can refuse the seed any more.

    Raises:
        InvalidRequestError: the drain left state, and the user did not ask to discard it (Law 16).
        IncompatibleUpgradeError: the sources are not those of the snapshot.
        InputLostError: input after its offsets is lost, and the user did not accept that.
    """
    remarks = _check_state_left(attempt, name, known)
    watermark_ms, remark = _watermark_to_keep(startable, known)
    book = attempt.sources.look_up(name, startable)
    files = data_files(manifest, name)
    last = stored_entry(attempt.checkpoints, files, known.position.batch_id)
    if last is None:
        raise DataError(
            "the snapshot lacks the entry of its last committed batch",
            query_name=name,
            key=files.get(f"offsets/{known.position.batch_id}", ""),
        )
    stood, known = known, as_given(attempt, name, known)
    folders: dict[str, str] | None = None
    if are_known(known, book):
        apart, told = told_apart(known, last.source_names, book)
        mapped = map_offsets(name, apart, told, accepts=name in attempt.spec.start.accept_lost_input)
        folders = log_folders(mapped.folders, known, last.source_names, book)
    elif last.source_names or has_names(book):
        mapped = map_offsets_by_name(name, known, last.source_names, book)
        folders = {one: one for one in last.source_names}
    else:
        mapped = MappedOffsets(known.position.end_offsets, known.identities)
    lines, identities = mapped.lines, mapped.identities
    beginning = find_beginning(attempt, name, manifest, stood, last, lines, identities)
    if beginning.reads_again:
        watermark_ms, remark = 0, (WATERMARK_ANEW,)
    readable = look_before_start(attempt, name, beginning.lines, identities, known.position.batch_id or 0)
    keys = source_keys(name, startable, len(readable.lines), attempt.spark_version)
    batch_id = max(known.position.batch_id or 0, attempt.least_seed_batch_id)
    plan = SeedPlan(known.query_id, batch_id, readable.lines, watermark_ms, keys)
    sources = _run_empty_batch(attempt, name, startable, last.conf, plan)
    logs = source_files_of(files)
    if folders is not None:
        logs = renumbered_logs(logs, folders)
    else:
        check_same_sources(name, known, sources)
    moved = moved_source_logs(attempt, name, startable, {f"sources/{path}": key for path, key in logs.items()}, lines)
    plan = replace(plan, query_id=query_id())
    tell(attempt, name, plan.batch_id, beginning)
    finish_seed(_building(attempt, name), plan, logs, attempt.checkpoint_of(name), beginning.books, moved)
    said = tuple(f"begins elsewhere, {words}" for words in describe(beginning.moves))
    return sources or known.sources, (*remarks, *remark, *said, *mapped.remarks, *readable.remarks)


def describe_sources(
    attempt: Attempt, name: str, startable: StartableQuery, conf: Mapping[str, str], sources_count: int
) -> tuple[str, ...]:
    """Spark's descriptions of the sources of a plan, from an empty batch in a scratch checkpoint, into no sink."""
    keys = source_keys(name, startable, sources_count, attempt.spark_version)
    plan = SeedPlan(attempt.clock.new_uuid(), 1, (NO_OFFSET,) * sources_count, source_keys=keys)
    sources = _run_empty_batch(attempt, name, startable, conf, plan)
    wipe(_building(attempt, name))
    return sources


def check_same_sources(name: str, known: QuerySnapshot, sources: tuple[str, ...]) -> None:
    """Check that the sources are those of the snapshot, in their order.

    Raises:
        IncompatibleUpgradeError: they are not.
    """
    if not sources or not known.sources or _lasting(sources) == _lasting(known.sources):
        return
    raise IncompatibleUpgradeError(
        "this version reads other sources than the snapshot has offsets of, or in another order",
        query_name=name,
        sources=list(sources),
        snapshot_sources=list(known.sources),
        next_step="Keep the sources and their order as they were, or deploy with --start fresh.",
    )


def _lasting(descriptions: Sequence[str]) -> list[str]:
    """The descriptions without the numbers of objects: Spark calls a source in Python by its class and such a number,
    which differs at each start."""
    return [found[1] if (found := _JAVA_OBJECT.fullmatch(text)) else text for text in descriptions]


def _run_empty_batch(
    attempt: Attempt,
    name: str,
    startable: StartableQuery,
    pinned_before: Mapping[str, str],
    plan: SeedPlan,
) -> tuple[str, ...]:
    count = startable.facts.sources_count
    if count is not None and count != len(plan.source_lines):
        raise IncompatibleUpgradeError(
            "this version has another number of sources than the snapshot has offsets of",
            query_name=name,
            sources=count,
            snapshot_sources=len(plan.source_lines),
            next_step="Keep the sources as they were, or deploy with --start fresh.",
        )
    building = _building(attempt, name)
    # Settings that the new session does not have stay as the old checkpoint pinned them.
    pinned = {name: pinned_before[name] for name in PINNED_CONF_KEYS if name in pinned_before}
    if SOURCES_NAMED in pinned:
        pinned[SOURCES_NAMED] = "false"  # a Spark without named sources does not have the setting
    conf = {**pinned, **startable.session_conf(PINNED_CONF_KEYS)}
    now_ms = int(attempt.clock.now().timestamp() * 1000)
    prepare_seed(building, plan, conf=conf, batch_timestamp_ms=now_ms)
    attempt.reporter.say(f"query {name}: building fresh state at the offsets of batch {plan.batch_id}")
    progress = startable.run_seed_batch(attempt.uri_of(building))
    return startable.facts.in_line_order(progress.source_descriptions) if progress is not None else ()


def _building(attempt: Attempt, name: str) -> Checkpoint:
    folder = layout.building_folder(attempt.stream_id, attempt.deployment_id, name)
    return Checkpoint(attempt.checkpoints, folder)


def stored_entry(store: Store, files: Mapping[str, str], batch_id: int | None) -> OffsetEntry | None:
    """The entry of a batch among the files of a snapshot's query; None where it is not there."""
    key = files.get(f"offsets/{batch_id}", "")
    stored = store.get(key) if key else None
    return None if stored is None else parse_offset_entry(stored.body, key=key)


def _check_state_left(attempt: Attempt, name: str, known: QuerySnapshot) -> tuple[str, ...]:
    rows = known.position.state_rows_left
    if rows == 0 or not (known.drained or any(entry.path.startswith("state/") for entry in known.files)):
        return ()
    if attempt.spec.start.allow_state_loss:
        what = "state" if rows is None else f"{rows} rows of state"
        left = "that the drain left" if known.drained else "of the snapshot"
        return (f"{what} {left} is discarded, as asked for",)
    raise InvalidRequestError(
        "the drain left state that it could not flush, and seeding this query would drop it"
        if rows is not None
        else "the state that the drain left was not counted, and seeding this query would drop it",
        query_name=name,
        state_rows_left=rows,
        operators=[f"{left.operator}: {left.rows} rows, {left.reason}" for left in known.position.state_left],
        next_step="Deploy with --allow-state-loss to drop it; `streamstate rollback` with --snapshot goes back to the"
        " one from before the drain, which has it.",
    )


def _watermark_to_keep(startable: StartableQuery, known: QuerySnapshot) -> tuple[int, tuple[str, ...]]:
    """The watermark from before the flush, where column and delay are unchanged (1a.10); else 0 and a remark."""
    if not known.watermark_ms:
        return 0, ()
    if startable.facts.watermarks == known.watermarks:
        return known.watermark_ms, ()
    return 0, ("its watermark is defined in another way than before, so it begins anew: late rows may count again",)
