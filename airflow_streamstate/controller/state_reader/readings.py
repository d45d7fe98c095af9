"""Reads the state of a snapshot: counts, rows by key, exports and differences, by a short-lived driver on a fork.

The stream may run meanwhile; a reading touches nothing of it. It is recorded first (Law 1), with the deadline of its
driver, so that a later reading removes what a killed shell left behind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow_streamstate.checkpoint.entries import (
    format_commit_entry,
    format_offset_entry,
    parse_commit_entry,
    parse_offset_entry,
)
from airflow_streamstate.checkpoint.fork import checkpoint_uri, fork, wipe
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.checkpoint.missing_pin import PARTITIONS
from airflow_streamstate.control.retention import CLOCKS_DIFFER_SECONDS
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.scratch_driver import END_SECONDS, POLL_SECONDS, ScratchDriver, is_late
from airflow_streamstate.controller.snapshots import Snapshots
from airflow_streamstate.controller.state_reader.choosing import (
    ReadingRequest,
    check_pair,
    export_uri,
    is_stateful,
    newest_with_state,
    queries_with_state,
    shared_queries,
)
from airflow_streamstate.controller.wait.waiting import poll
from airflow_streamstate.controller.wait.watching import log_tail_of
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    DeadlineExceededError,
    DeploymentFailedError,
    InvalidRequestError,
    SnapshotIncompleteError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.launch.interface import LaunchHandle
from airflow_streamstate.plan.model import QueryPlan
from airflow_streamstate.plan.recorded import recorded_plans
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.ids import reading_id_for
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.readings import StateReading
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.protocol.terms.version import Artifact
from airflow_streamstate.snapshot.data import check_complete, data_files
from airflow_streamstate.snapshot.leases import leased
from airflow_streamstate.snapshot.placing import known_places
from airflow_streamstate.snapshot.state_order import PROGRESS, RESULT, StateExport, StateOrder, StatePlace, Verb
from airflow_streamstate.snapshot.state_sizes import bytes_by_partition, operators_in, skew_of
from airflow_streamstate.snapshot.verify import Problem
from airflow_streamstate.store.base import Store

Report = Callable[[str], None]
NO_METADATA = "Spark kept no metadata of this operator, so its readers do not know it"
_TABLE_KEYS = ("table", "name", "kind", "has_ttl", "rows", "columns")
_TIMES = {"ProcessingTimeTimeout": "processing_time", "EventTimeTimeout": "event_time"}
_RECORD = "reading.json"
_ERRORS: Mapping[str, type[StreamStateError]] = {
    cls.__name__: cls for cls in (InvalidRequestError, ConflictError, DataError, UnavailableError)
}
# Spark reads the change feed from the files of each batch: ``<v>.delta`` of the HDFS-backed store, ``<v>.changelog`` of
# RocksDB with changelog checkpointing. A snapshot holds those since its newest full version; batch N leaves N + 1.
_VERSION = re.compile(r"(state/[0-9]+/[0-9]+(?:/[^/]+)?)/([1-9][0-9]*)(?:_[0-9a-f-]+)?\.(zip|changelog|delta|snapshot)")
_CHANGES = ("changelog", "delta")
_NO_COMMIT = "the snapshot does not hold the commit of the feed's first batch, which names the files of its state"


def snapshot_facts(manifest: SnapshotManifest, now: datetime) -> dict[str, Any]:
    """The snapshot and its age."""
    return {
        "snapshot_id": manifest.snapshot_id,
        "kind": manifest.snapshot_kind,
        "deployment_id": manifest.deployment_id,
        "taken_at": format_time(manifest.taken_at),
        "age_seconds": round(max(0.0, (now - manifest.taken_at).total_seconds()), 3),
        "spark_version": manifest.spark_version,
    }


def query_report(query: QuerySnapshot, read: Mapping[str, Any] | None, plan: QueryPlan | None) -> dict[str, Any]:
    """One query: operators with partitions, rows, bytes, skew, tables and timers, and what could not be read.

    Args:
        query: in the manifest, which tells bytes and positions.
        read: what the driver counted; None where there was nothing to read.
        plan: as recorded; None where unknown.
    """
    position = query.position
    tables = _by_operator(read["tables"] if read is not None else [])
    problems = list(read["problems"]) if read is not None else []
    sizes = bytes_by_partition(query.files)
    failed = {_operator_of(problem): _name_of(problem) for problem in problems}
    problems += [
        {"table": str(number), "reason": NO_METADATA}
        for number in sorted(operators_in(query.files) - set(tables) - set(failed) if read is not None else ())
    ]
    return {
        "batch_id": position.batch_id,
        "watermark_at": None if position.watermark_at is None else format_time(position.watermark_at),
        "operators": [
            _operator(number, failed.get(number, ""), tables.get(number, []), sizes.get(number, {}), plan)
            for number in sorted({*tables, *sizes, *failed})
        ],
        "problems": problems,
    }


@dataclass(frozen=True)
class LoadedState:
    """The state of a snapshot as Spark loaded it, and what it could not load.

    ``queries``: by name their ``operators``: ``operator_id``, ``name`` and ``rows``, null where Spark has no reader.
    """

    queries: Mapping[str, Any]
    problems: tuple[Problem, ...]


def loaded_state(reports: Mapping[str, Mapping[str, Any]]) -> LoadedState:
    """The loading alone, of these ``query_report`` by name. An operator that Spark has no reader for is no problem."""
    queries, problems = {}, []
    for name, report in reports.items():
        problems += [
            Problem("unreadable", name, f"state/{problem['table']}", f"Spark cannot load it: {problem['reason']}")
            for problem in report["problems"]
            if problem["reason"] != NO_METADATA
        ]
        operators = [{key: one[key] for key in ("operator_id", "name", "rows")} for one in report["operators"]]
        queries[name] = {"operators": operators}
    return LoadedState(queries, tuple(problems))


def _operator(
    number: int, name: str, tables: Sequence[Mapping[str, Any]], sizes: Mapping[int, int], plan: QueryPlan | None
) -> dict[str, Any]:
    rows = _summed([table["rows_by_partition"] for table in tables if table["kind"] != "timers"])
    skew = skew_of(rows)
    timers = [
        {**table["timers"], "time": _time_of(table["timers"]["time"], number, plan), "table": table["name"]}
        for table in tables
        if table["timers"] is not None
    ]
    return {
        "operator_id": number,
        "name": _name_of(tables[0]) if tables else name,
        "partitions": max((len(table["rows_by_partition"]) for table in tables), default=len(sizes)),
        "rows": sum(rows) if tables else None,
        "bytes": sum(sizes.values()),
        "rows_by_partition": rows,
        "bytes_by_partition": [sizes.get(partition, 0) for partition in range(max([len(rows) - 1, *sizes]) + 1)],
        "skew": None if skew is None else skew.to_json(),
        "tables": [{key: table[key] for key in _TABLE_KEYS} for table in tables],
        "timers": timers,
    }


def _time_of(time: str, number: int, plan: QueryPlan | None) -> str:
    """The kind of time of a timeout: Spark's state does not tell it, the plan does."""
    operators = [] if plan is None else [each for each in plan.operators if each.operator_id == number]
    return next((_TIMES[each.timeout] for each in operators if each.timeout in _TIMES), time)


def _by_operator(tables: Sequence[Mapping[str, Any]]) -> dict[int, list[Mapping[str, Any]]]:
    found: dict[int, list[Mapping[str, Any]]] = {}
    for table in tables:
        found.setdefault(_operator_of(table), []).append(table)
    return found


def _operator_of(table: Mapping[str, Any]) -> int:
    return int(str(table["table"]).partition("-")[0])


def _name_of(table: Mapping[str, Any]) -> str:
    return str(table["table"]).partition("/")[0].partition("-")[2]


def _summed(lists: Sequence[Sequence[int]]) -> list[int]:
    size = max((len(one) for one in lists), default=0)
    return [sum(one[at] for one in lists if at < len(one)) for at in range(size)]


def feed_gap(before: QuerySnapshot, after: QuerySnapshot, *, same_deployment: bool) -> str:
    """Why Spark's change feed does not reach from one snapshot of a query to a later one; "" where it does."""
    first, last = before.position.batch_id, after.position.batch_id
    if first is None or last is None or not same_deployment:
        return "the feed is of one deployment's batches"
    if last <= first:
        return "the feed goes from an older batch to a newer one"
    folders = _versions(after)
    if not folders:
        return "there is no state"
    for folder, versions in sorted(folders.items()):
        for version in range(first + 2, last + 2):
            if version not in versions:
                return f"the snapshot does not hold what batch {version - 1} changed in {folder}"
    return ""


def _versions(query: QuerySnapshot) -> Mapping[str, set[int]]:
    """By folder of a state store, the versions whose changes exist, perhaps of another try of a batch."""
    found: dict[str, set[int]] = {}
    for entry in query.files:
        match = _VERSION.fullmatch(entry.path)
        if match is not None:
            versions = found.setdefault(match[1], set())
            if match[3] in _CHANGES:
                versions.add(int(match[2]))
    return found


def fork_for_reading(
    checkpoints: Store, manifest: SnapshotManifest, query_name: str, reading_id: str, since: SnapshotManifest | None
) -> StatePlace:
    """Build the fork of one query that a reading reads: Spark never opens the snapshot itself (Law 4).

    Links on a disk, server-side copies on S3. Two files may be written anew. Spark's readers take the number of
    partitions from the entry of the offset log, which is missing there in version 2 before a query's first restart
    (4.2.0: None.get). For the change feed they need the commit of its first batch to exist, and read nothing of it.

    Args:
        query_name: a query that has committed a batch.
        since: the older snapshot for a change feed; None for none.

    Raises:
        SnapshotIncompleteError, SnapshotCorruptError: the snapshot is not whole.
        DataError: an entry of its logs cannot be understood.
    """
    check_complete(checkpoints, manifest, [query_name])
    batch_id = manifest.queries[query_name].position.batch_id
    if batch_id is None:
        raise DataError("the query has committed nothing", query_name=query_name, snapshot_id=manifest.snapshot_id)
    files = _without_planned(data_files(manifest, query_name), batch_id)
    offset_path, commit_path = f"offsets/{batch_id}", f"commits/{batch_id}"
    offset = parse_offset_entry(_body(checkpoints, files, offset_path), key=files[offset_path])
    commit = parse_commit_entry(_body(checkpoints, files, commit_path), key=files[commit_path])
    state_format = 2 if commit.has_state_ids else 1
    instead = {}
    if PARTITIONS not in offset.conf:
        sizes = bytes_by_partition(manifest.queries[query_name].files).values()
        count = 1 + max((partition for partitions in sizes for partition in partitions), default=0)
        instead[offset_path] = format_offset_entry(replace(offset, conf={**offset.conf, PARTITIONS: str(count)}))
    feed_from, gap = _feed(manifest, since, query_name)
    first_commit = f"commits/{feed_from}"
    if feed_from is not None and first_commit not in files:
        if state_format == 1:
            instead[first_commit] = format_commit_entry(replace(commit, extra={}))
        else:
            feed_from, gap = None, _NO_COMMIT
    folder = layout.reading_fork_folder(manifest.stream_id, reading_id, manifest.snapshot_id, query_name)
    target = Checkpoint(checkpoints, folder)
    wipe(target)
    fork(checkpoints, files, target, instead)
    return StatePlace(checkpoint_uri(target), batch_id, state_format, feed_from, gap)


def _feed(manifest: SnapshotManifest, since: SnapshotManifest | None, query_name: str) -> tuple[int | None, str]:
    before = None if since is None else since.queries.get(query_name)
    if since is None or before is None:
        return None, ""
    after: QuerySnapshot = manifest.queries[query_name]
    gap = feed_gap(before, after, same_deployment=since.deployment_id == manifest.deployment_id)
    return (None, gap) if gap or before.position.batch_id is None else (before.position.batch_id + 1, "")


def _without_planned(files: dict[str, str], batch_id: int) -> dict[str, str]:
    """Without the entry of a planned batch, so that the fork ends at its last commit."""
    planned = {f"offsets/{batch_id + 1}", f"offsets/.{batch_id + 1}.crc"}
    return {path: key for path, key in files.items() if path not in planned}


def _body(store: Store, files: dict[str, str], path: str) -> bytes:
    stored = store.get(files[path]) if path in files else None
    if stored is None:
        raise SnapshotIncompleteError("a log entry of the snapshot is missing", path=path)
    return stored.body


@dataclass(frozen=True)
class _WantedReading:
    """What one reading reads."""

    manifest: SnapshotManifest
    queries: Mapping[str, QuerySnapshot]
    since: SnapshotManifest | None = None


class Readings:
    """Reads the state of snapshots."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._home = context.home
        self._clock = context.clock

    def look(self, request: ReadingRequest, on_progress: Report | None = None) -> dict[str, Any]:
        """The state of a snapshot: operators, rows, bytes, skew, variables, timers; rows by key; exports.

        With ``changes_since`` only changes are exported.

        Raises:
            StreamNotFoundError, SnapshotNotFoundError: it does not exist.
            InvalidRequestError: the snapshot holds positions only; no state has such key columns; the export cannot
                lie there.
            ConflictError: the target of the export exists.
            SnapshotIncompleteError, SnapshotCorruptError, DataError: the snapshot is not whole, or not understood.
            DeadlineExceededError: it was not read in time, and has been ended.
            DeploymentFailedError: its driver ended without an answer; with the end of its log.
        """
        control = self._home.need_stream(request.stream_id)
        wanted = self._wanted(control, request)
        facts = {"stream_id": request.stream_id, **snapshot_facts(wanted.manifest, self._clock.now())}
        answer = self._read(control, request, wanted, "state", facts, on_progress)
        plans = recorded_plans(control, wanted.manifest.deployment_id) if request.changes_since is None else {}
        read = answer.get("queries", {})
        queries = {
            name: query_report(query, read.get(name), plans.get(name))
            for name, query in wanted.queries.items()
            if wanted.since is None
        }
        found = [{"query_name": name, **rows} for name, query in read.items() for rows in query["rows"]]
        return {
            **facts,
            "since_snapshot_id": request.changes_since,
            "queries": queries,
            "key": None if request.key is None else dict(request.key),
            "found": found,
            "limit": request.limit,
            "export": _export_of(request.out, answer.get("export")),
        }

    def load(self, request: ReadingRequest, on_progress: Report | None = None) -> LoadedState:
        """Whether Spark loads the state of a snapshot: it counts every row of every partition.

        Raises as ``look``, except for a snapshot that holds positions only: nothing is loaded then.
        """
        control = self._home.need_stream(request.stream_id)
        manifest = control.need_manifest(request.snapshot_id or "")
        if all(query.drained for query in manifest.queries.values()):
            return loaded_state({})
        return loaded_state(self.look(request, on_progress)["queries"])

    def diff(self, request: ReadingRequest, on_progress: Report | None = None) -> dict[str, Any]:
        """The rows that were added, changed and removed since an older snapshot, with the first of each.

        Raises as ``look``; InvalidRequestError also where the two have different operators.
        """
        control = self._home.need_stream(request.stream_id)
        wanted = self._wanted(control, request)
        if wanted.since is None:
            raise InvalidRequestError("two snapshots are needed for a comparison", next_step="Name both.")
        now = self._clock.now()
        before, after = (snapshot_facts(manifest, now) for manifest in (wanted.since, wanted.manifest))
        names, alone = self._shared(request, wanted)
        answer = self._read(control, request, wanted, "diff", {}, on_progress)
        return {
            "stream_id": request.stream_id,
            "before": before,
            "after": after,
            "limit": request.limit,
            "queries": {name: answer["queries"][name] for name in names},
            "only_in": alone,
        }

    def sweep(self, stream_id: str) -> None:
        """Remove what expired readings left, whose shells were killed."""
        control = self._home.control(stream_id)
        for reading_id in control.reading_ids():
            with suppress(StreamStateError):  # the next reading tries again
                reading = control.reading(reading_id)
                other_clock = self._clock.now() - timedelta(seconds=CLOCKS_DIFFER_SECONDS)
                if reading is None or is_late(reading.deadline_at, other_clock):
                    self._remove(control, reading_id)

    def _wanted(self, control: StreamControl, request: ReadingRequest) -> _WantedReading:
        if request.snapshot_id is None:
            manifests = Snapshots(self._context).all(request.stream_id)
            manifest = newest_with_state(manifests, request.stream_id, request.query_name)
        else:
            manifest = control.need_manifest(request.snapshot_id)
        queries = queries_with_state(manifest, request.query_name)
        if request.changes_since is None:
            return _WantedReading(manifest, queries)
        since = control.need_manifest(request.changes_since)
        check_pair(since, manifest)
        queries_with_state(since, request.query_name)
        return _WantedReading(manifest, queries, since)

    def _shared(self, request: ReadingRequest, wanted: _WantedReading) -> tuple[list[str], dict[str, str]]:
        if wanted.since is None:
            return [name for name, query in wanted.queries.items() if is_stateful(query)], {}
        return shared_queries(queries_with_state(wanted.since, request.query_name), wanted.queries)

    def _read(
        self,
        control: StreamControl,
        request: ReadingRequest,
        wanted: _WantedReading,
        verb: Verb,
        about: Mapping[str, Any],
        on_progress: Report | None,
    ) -> dict[str, Any]:
        names, alone = self._shared(request, wanted)
        export = self._export(control, request, {**about, "only_in": alone})
        self.sweep(request.stream_id)
        if not names:
            if request.key is not None or export is not None:
                raise InvalidRequestError(
                    "the queries of this snapshot keep no state", snapshot_id=wanted.manifest.snapshot_id
                )
            return {}
        spec = control.spec(wanted.manifest.deployment_id)
        reading = self._record(control, request, wanted)
        try:
            _say(on_progress, "a fork of the snapshot is made")
            order = self._order(request, wanted, names, verb, export, reading)
            handle = self._context.drivers.launch_reader(
                reader_spec(spec, request, reading.reading_id), order.to_json()
            )
            return self._answer(spec, handle, order, on_progress)
        finally:
            with suppress(StreamStateError):  # else the next reading removes it
                self._remove(control, reading.reading_id)

    def _export(self, control: StreamControl, request: ReadingRequest, about: Mapping[str, Any]) -> StateExport | None:
        if request.out is None:
            return None
        kept = {self._home.home.uri, self._home.checkpoints.uri, *known_places(control)}
        for deployment_id in control.deployment_ids():
            with suppress(StreamStateError):
                kept.update(control.spec(deployment_id).version.mirrors)
        said = {**about, "since_snapshot_id": request.changes_since, "format": request.format}
        said.pop("age_seconds", None)
        return StateExport(export_uri(request.out, sorted(kept)), request.format, request.overwrite, said)

    def _record(self, control: StreamControl, request: ReadingRequest, wanted: _WantedReading) -> StateReading:
        now = self._clock.now()
        ids = (wanted.manifest.snapshot_id, *((wanted.since.snapshot_id,) if wanted.since is not None else ()))
        reading = StateReading(
            stream_id=request.stream_id,
            reading_id=reading_id_for(self._clock.new_uuid()),
            snapshot_ids=ids,
            created_at=now,
            deadline_at=now + timedelta(seconds=request.deadline_seconds),
            requested_by=self._context.requested_by,
            write_id=self._clock.new_uuid(),
        )
        control.create_reading(reading)
        return reading

    def _order(
        self,
        request: ReadingRequest,
        wanted: _WantedReading,
        names: list[str],
        verb: Verb,
        export: StateExport | None,
        reading: StateReading,
    ) -> StateOrder:
        checkpoints, since = self._home.checkpoints, wanted.since

        def place(manifest: SnapshotManifest, name: str, feeds_from: SnapshotManifest | None) -> StatePlace:
            control, reader = self._home.control(manifest.stream_id), f"reading {reading.reading_id}"
            with leased(control, manifest.snapshot_id, reader) as lease:
                here = lease.landed(self._home.places, manifest, [name])
                return fork_for_reading(checkpoints, here, name, reading.reading_id, feeds_from)

        return StateOrder(
            verb=verb,
            places={name: place(wanted.manifest, name, since if verb == "state" else None) for name in names},
            before={} if since is None else {name: place(since, name, None) for name in names},
            folder=str(self._driver(self._home.control(reading.stream_id), reading.reading_id).launch_folder),
            deadline_seconds=(reading.deadline_at - self._clock.now()).total_seconds(),
            limit=request.limit,
            key=request.key,
            export=export,
        )

    def _driver(self, control: StreamControl, reading_id: str) -> ScratchDriver:
        return ScratchDriver(self._context, control, reading_id, _RECORD)

    def _answer(
        self, spec: DeploymentSpec, handle: LaunchHandle, order: StateOrder, on_progress: Report | None
    ) -> dict[str, Any]:
        folder = Path(order.folder)

        def look() -> bool | None:
            if (folder / RESULT).exists() or self._context.observer.status(handle).has_ended:
                return True
            _say(on_progress, _text(folder / PROGRESS) or "its driver starts")
            return None

        seconds = order.deadline_seconds
        poll(self._clock, look, timeout_seconds=seconds, pause_seconds=lambda: POLL_SECONDS)
        text = _text(folder / RESULT)
        if text:
            return _result(json.loads(text))
        status = self._context.observer.status(handle)
        if not status.has_ended:
            raise DeadlineExceededError(
                "the state was not read within the deadline, and its driver is ended",
                stream_id=spec.stream_id,
                deadline_seconds=round(seconds, 1),
                last_seen=_text(folder / PROGRESS) or "its driver was starting",
                next_step="Give a later --deadline, or read one query with --query.",
            )
        raise DeploymentFailedError(
            "the driver that reads the state ended without an answer",
            stream_id=spec.stream_id,
            reason=status.reason,
            log_tail=log_tail_of(self._context, spec, handle),
        )

    def _remove(self, control: StreamControl, reading_id: str) -> None:
        driver = self._driver(control, reading_id)
        driver.end(END_SECONDS if (driver.launch_folder / RESULT).exists() else 0.0)
        driver.remove()


def reader_spec(spec: DeploymentSpec, request: ReadingRequest, reading_id: str) -> DeploymentSpec:
    """The spec of a reading's driver, on this machine: configuration, packages, jars, environment of the deployment."""
    of_stream = spec.version
    version = replace(
        of_stream,
        application=Artifact(f"state of {spec.stream_id}", ""),
        arguments=(),
        modules=(),
        py_files=(),
        files=(),
        working_folder="",
        master=request.master,
        conf={**of_stream.conf, **request.conf},
        packages=(*of_stream.packages, *(one for one in request.packages if one not in of_stream.packages)),
        spark_conn_id=None,
        launcher=None,
    )
    return replace(spec, deployment_id=reading_id, version=version)


def _result(raw: Mapping[str, Any]) -> dict[str, Any]:
    error = raw.get("error")
    if error is None:
        return dict(raw["result"])
    raise _ERRORS.get(error["type"], DataError)(error["message"], next_step=error["next_step"], **error["context"])


def _export_of(out: str | None, export: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if export is None:
        return None
    return {"uri": out, **{key: export[key] for key in ("format", "complete", "tables", "problems", "only_in")}}


def _say(on_progress: Report | None, words: str) -> None:
    if on_progress is not None:
        on_progress(words)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
