"""Readings of the state in snapshots: rows, counts, exports and differences, by a driver on forks."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow_streamstate.checkpoint.fork import checkpoint_uri, fork, wipe
from airflow_streamstate.checkpoint.guards import STATE_READERS_SINCE, line_of
from airflow_streamstate.checkpoint.log import (
    PARTITIONS,
    Checkpoint,
    format_commit_entry,
    format_offset_entry,
    parse_commit_entry,
    parse_offset_entry,
)
from airflow_streamstate.checkpoint.state_files import write_operator_metadata
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.drivers.driver_places import ATTEMPT
from airflow_streamstate.controller.scratch.run import NO_VERDICT, Report, ScratchRuns, spec_of_run, text_of
from airflow_streamstate.controller.snapshot_list import Snapshots
from airflow_streamstate.errors import (
    DataError,
    DeadlineExceededError,
    DeploymentFailedError,
    InvalidRequestError,
    SnapshotIncompleteError,
    SnapshotNotFoundError,
    StreamStateError,
    read_error,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.launch.spark_home import PYTHONS, environment_of_spark, own_pyspark, version_of
from airflow_streamstate.plan.model import QueryPlan
from airflow_streamstate.plan.record import recorded_plans
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.forms import selected
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.records import DeploymentSpec, StartPlan
from airflow_streamstate.protocol.scratch import Reading, ScratchRun
from airflow_streamstate.protocol.terms.order import SHOWN_ROWS, ExportFormat, ReadingTerms
from airflow_streamstate.protocol.terms.version import Artifact, Version
from airflow_streamstate.snapshot.data import check_complete, data_files, query_of
from airflow_streamstate.snapshot.deletion import leased
from airflow_streamstate.snapshot.state_tables import (
    PROGRESS,
    RESULT,
    StateExport,
    StateOrder,
    StatePlace,
    Verb,
    bytes_by_partition,
    operators_in,
    parse_exactly,
    skew_of,
)
from airflow_streamstate.snapshot.verify import Problem
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.open import local_folder
from airflow_streamstate.store.options import plain_uri, s3a_uri

# What a reading reads: the snapshot, its queries, and where an export may go. Pure.


@dataclass(frozen=True, kw_only=True)
class ReadingRequest(ReadingTerms):
    """A question about the state of a stream, with the terms of reading.

    Attributes:
        changes_since: an older snapshot, from which changes are compared or exported.
        key: columns of the state's keys and their values: these rows are shown.
        out: a folder or URI for exported tables; None for no export.
        format, overwrite: of the export, as in ``ExportTerms``.
        limit: the rows shown of each table, at most.
    """

    stream_id: str
    changes_since: str | None = None
    key: Mapping[str, Any] | None = None
    out: str | None = None
    format: ExportFormat = "parquet"
    overwrite: bool = False
    limit: int = SHOWN_ROWS


def newest_with_state(
    manifests: Sequence[SnapshotManifest], stream_id: str, query_name: str | None
) -> SnapshotManifest:
    """The newest snapshot, of these from oldest to newest, in which a query, or that query, was not flushed.

    Raises SnapshotNotFoundError.
    """
    for manifest in reversed(manifests):
        queries = manifest.queries if query_name is None else {query_name: manifest.queries.get(query_name)}
        if any(query is not None and not query.drained for query in queries.values()):
            return manifest
    raise SnapshotNotFoundError(
        "this stream has no snapshot with state" + (" of that query" if query_name else ""),
        stream_id=stream_id,
        **({"query_name": query_name} if query_name else {}),
        snapshots=[manifest.snapshot_id for manifest in manifests][-5:],
        next_step="Take one with `streamstate snapshot create`; what a drain leaves holds positions only.",
    )


def queries_with_state(manifest: SnapshotManifest, query_name: str | None) -> dict[str, QuerySnapshot]:
    """The queries of a snapshot that were not flushed.

    Raises:
        InvalidRequestError: it has no such query, or positions only.
    """
    queries = manifest.queries if query_name is None else {query_name: query_of(manifest, query_name)}
    found = {name: query for name, query in sorted(queries.items()) if not query.drained}
    if found or not queries:
        return found
    raise InvalidRequestError(
        "this snapshot holds positions only: its state was flushed by a drain",
        stream_id=manifest.stream_id,
        snapshot_id=manifest.snapshot_id,
        next_step="Read the snapshot of kind pre-drain next to it; `streamstate snapshot list` lists them.",
    )


def is_stateful(query: QuerySnapshot) -> bool:
    """Whether it has state that can be read."""
    return query.position.batch_id is not None and bool(operators_in(query.files))


def check_pair(before: SnapshotManifest, after: SnapshotManifest) -> None:
    """Refuse to compare a snapshot with itself."""
    if before.snapshot_id == after.snapshot_id:
        raise InvalidRequestError(
            "a snapshot cannot be compared with itself",
            snapshot_id=after.snapshot_id,
            next_step="Name two snapshots; `streamstate snapshot list` lists them.",
        )


def shared_queries(
    before: Mapping[str, QuerySnapshot], after: Mapping[str, QuerySnapshot]
) -> tuple[list[str], dict[str, str]]:
    """The queries with state in both, and the others with their side. Raises InvalidRequestError if they share none."""
    first, second = ({name for name, query in side.items() if is_stateful(query)} for side in (before, after))
    alone = {name: ("before" if name in first else "after") for name in sorted(first ^ second)}
    if not first & second:
        raise InvalidRequestError(
            "these two snapshots share no query with state",
            before=sorted(before),
            after=sorted(after),
            next_step="Name two snapshots of the same queries.",
        )
    return sorted(first & second), alone


def parse_key(text: str) -> dict[str, Any]:
    """The columns and values in this JSON object; raises InvalidRequestError for another text, or an empty object."""
    try:
        found = parse_exactly(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and found:
        return found
    raise InvalidRequestError(
        "a key is given as a JSON object of key columns and values",
        key=text[:200],
        next_step="""For example --key '{"origin": "ATL"}'; `streamstate snapshot inspect` shows the columns.""",
    )


def export_uri(out: str, kept: Sequence[str]) -> str:
    """The folder or URI ``out`` as Spark needs it.

    Args:
        kept: the URIs of the home, of its places and mirrors: an export never overlaps with them (Law 4).

    Raises:
        InvalidRequestError: it is in one of them, or one of them in it.
    """
    is_local = "://" not in out and not out.startswith("file:")
    uri = f"file://{local_folder(out)}" if is_local else s3a_uri(out)
    place = _plain(uri)
    for store_uri in kept:
        home = _plain(store_uri)
        if f"{place}/".startswith(f"{home}/") or f"{home}/".startswith(f"{place}/"):
            raise InvalidRequestError(
                "state cannot be exported to where streams, their snapshots or copies of them are kept",
                out=out,
                kept_there=store_uri,
                next_step="Name a separate place.",
            )
    return uri.rstrip("/")


def _plain(uri: str) -> str:
    plain = plain_uri(uri)
    return str(Path(plain).resolve()) if plain.startswith("/") else plain


# What a reading reports of the state in a snapshot: operators, rows, bytes, skew, variables and timers. Pure.

NO_METADATA = "Spark kept no metadata of this operator, so its readers do not know it"
_TABLE_KEYS = ("table", "name", "kind", "has_ttl", "rows", "columns")
_TIMES = {"ProcessingTimeTimeout": "processing_time", "EventTimeTimeout": "event_time"}


def snapshot_facts(manifest: SnapshotManifest, now: datetime) -> dict[str, Any]:
    """The snapshot and its age."""
    return (
        selected(manifest, "snapshot_id kind=snapshot_kind deployment_id taken_at")
        | {"age_seconds": round(max(0.0, (now - manifest.taken_at).total_seconds()), 3)}
        | selected(manifest, "spark_version")
    )


def query_report(query: QuerySnapshot, read: Mapping[str, Any] | None, plan: QueryPlan | None) -> dict[str, Any]:
    """One query: operators with partitions, rows, bytes, skew, tables and timers, and what could not be read.

    Args:
        query: in the manifest, which records bytes and positions.
        read: what the driver counted; None if there was nothing to read.
        plan: as recorded; None where unknown.
    """
    tables = _by_operator(read["tables"] if read is not None else [])
    problems = list(read["problems"]) if read is not None else []
    sizes = bytes_by_partition(query.files)
    failed = {_operator_of(problem): _name_of(problem) for problem in problems}
    problems += [
        {"table": str(number), "reason": NO_METADATA}
        for number in sorted(operators_in(query.files) - set(tables) - set(failed) if read is not None else ())
    ]
    return {
        **selected(query.position, "batch_id watermark_at"),
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
    """The kind of time of a timeout: Spark's state does not record it, the plan does."""
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


# The fork of a snapshot's state that a reading reads, and how far Spark's change feed reaches in it.

# Spark reads the change feed from the files of each batch: ``<v>.delta`` of the HDFS-backed store, ``<v>.changelog`` of
# RocksDB with changelog checkpointing. A snapshot holds those since its newest full version; batch N leaves N + 1.
_VERSION = re.compile(r"(state/[0-9]+/[0-9]+(?:/[^/]+)?)/([1-9][0-9]*)(?:_[0-9a-f-]+)?\.(zip|changelog|delta|snapshot)")
_CHANGES = ("changelog", "delta")
_NO_COMMIT = "the snapshot does not hold the commit of the feed's first batch, which names the files of its state"


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
    """By folder of a state store, the versions whose changes exist, perhaps of an earlier try of a batch."""
    found: dict[str, set[int]] = {}
    for entry in query.files:
        match = _VERSION.fullmatch(entry.path)
        if match is not None:
            versions = found.setdefault(match[1], set())
            if match[3] in _CHANGES:
                versions.add(int(match[2]))
    return found


def fork_for_reading(
    checkpoints: Store, manifest: SnapshotManifest, query_name: str, run_id: str, since: SnapshotManifest | None
) -> StatePlace:
    """Build the fork of one query that a reading reads: Spark never opens the snapshot itself (Law 4).

    Links on a disk, server-side copies on S3. Two files may be rewritten. Spark's readers take the number of
    partitions from the entry of the offset log, which is missing there in version 2 before a query's first restart
    (4.2.0: None.get). For the change feed they need the commit of its first batch to exist, and read nothing of it.

    Args:
        query_name: a query that has committed a batch.
        since: the older snapshot for a change feed, or None.

    Raises:
        SnapshotIncompleteError, SnapshotCorruptError: the snapshot is incomplete.
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
    folder = layout.reading_fork_folder(manifest.stream_id, run_id, manifest.snapshot_id, query_name)
    target = Checkpoint(checkpoints, folder)
    wipe(target)
    fork(checkpoints, files, target, instead)
    write_operator_metadata(target, batch_id)
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


class Readings(ScratchRuns):
    """Reads the state of snapshots."""

    def look(self, request: ReadingRequest, on_progress: Report | None = None) -> dict[str, Any]:
        """The state of a snapshot: operators, rows, bytes, skew, variables, timers; rows by key; exports.

        With ``changes_since`` only changes are exported.

        Raises:
            StreamNotFoundError, SnapshotNotFoundError: it does not exist.
            InvalidRequestError: the snapshot holds positions only; no state has such key columns; the export cannot
                be there.
            ConflictError: the target of the export exists.
            SnapshotIncompleteError, SnapshotCorruptError, DataError: the snapshot is incomplete, or not understood.
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

    def verify(
        self, request: ReadingRequest, *, deep: bool = False, on_progress: Report | None = None
    ) -> dict[str, Any]:
        """Read every byte of a snapshot; with ``deep``, Spark loads its state, too, if every byte is as captured.

        Returns:
            ``{snapshot_id, ok, problems[{kind, query, path, detail}], loaded}``; ``loaded`` is None if nothing was.

        Raises:
            StreamNotFoundError, SnapshotNotFoundError: it does not exist.
            DataError: its manifest is not understood.
            DeadlineExceededError, DeploymentFailedError: with ``deep``: as ``look``.
        """
        snapshot_id = request.snapshot_id or ""
        problems = Snapshots(self._context).verify(request.stream_id, snapshot_id)
        loaded = self.load(request, on_progress) if deep and not problems else None
        rows = [problem.to_json() for problem in (*problems, *(() if loaded is None else loaded.problems))]
        queries = None if loaded is None else loaded.queries
        return {"snapshot_id": snapshot_id, "ok": not rows, "problems": rows, "loaded": queries}

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
        self.sweep(request.stream_id, Reading)
        if not names:
            if request.key is not None or export is not None:
                raise InvalidRequestError(
                    "the queries of this snapshot keep no state", snapshot_id=wanted.manifest.snapshot_id
                )
            return {}
        spec = control.spec(wanted.manifest.deployment_id)
        manifests = (wanted.manifest, *((wanted.since,) if wanted.since is not None else ()))
        run = self.record(
            control,
            self._clock.new_uuid(),
            Reading(tuple(manifest.snapshot_id for manifest in manifests)),
            deployment_id=wanted.manifest.deployment_id,
            deadline_seconds=request.deadline_seconds,
        )
        folder = self.driver(control, run.run_id).launch_folder
        try:
            with self.beginning(control, run.run_id):
                _say(on_progress, "a fork of the snapshot is made")
                order = self._order(request, wanted, names, verb, export, run, folder)
                reader = reader_spec(spec, request, run, wanted.manifest.spark_version)
                self._context.drivers.check(reader, ATTEMPT)
                # What is laid over the configuration may be a secret: nobody has agreed to its record.
                recorded = replace(reader, version=replace(reader.version, conf=spec.version.conf))
                self.launch(control, reader, order.to_json(), recorded=recorded)
            self.wait_over(run.stream_id, run.run_id, run.deadline_at, on_progress, run)
            result, last_seen = text_of(folder / RESULT), text_of(folder / PROGRESS)
            verdict = self.verdict_without_answer(control, run)
        finally:
            with suppress(StreamStateError):  # else the next reading removes it
                self.give_up(run.stream_id, run.run_id)
        if result:
            return _result(json.loads(result))
        if verdict.outcome == "deadline":
            raise DeadlineExceededError(
                "the state was not read within the deadline, and its driver is ended",
                stream_id=run.stream_id,
                deadline_seconds=request.deadline_seconds,
                last_seen=last_seen or "its driver was starting",
                next_step="Give a later --deadline, or read one query with --query.",
            )
        raise DeploymentFailedError(
            "the driver that reads the state ended without an answer",
            stream_id=run.stream_id,
            reason=verdict.error.removeprefix(f"{NO_VERDICT}: "),
            log_tail=verdict.log_tail,
        )

    def _export(self, control: StreamControl, request: ReadingRequest, about: Mapping[str, Any]) -> StateExport | None:
        if request.out is None:
            return None
        said = {**about, "since_snapshot_id": request.changes_since, "format": request.format}
        said.pop("age_seconds", None)
        return StateExport(
            export_uri(request.out, sorted(self.kept_places(control))), request.format, request.overwrite, said
        )

    def _order(
        self,
        request: ReadingRequest,
        wanted: _WantedReading,
        names: list[str],
        verb: Verb,
        export: StateExport | None,
        run: ScratchRun,
        folder: Path,
    ) -> StateOrder:
        checkpoints, since = self._home.checkpoints, wanted.since

        def place(manifest: SnapshotManifest, name: str, feeds_from: SnapshotManifest | None) -> StatePlace:
            control, reader = self._home.control(manifest.stream_id), f"reading {run.run_id}"
            with leased(control, manifest.snapshot_id, reader) as lease:
                here = lease.landed(self._home.places, manifest, [name])
                return fork_for_reading(checkpoints, here, name, run.run_id, feeds_from)

        return StateOrder(
            verb=verb,
            places={name: place(wanted.manifest, name, since if verb == "state" else None) for name in names},
            before={} if since is None else {name: place(since, name, None) for name in names},
            folder=str(folder),
            deadline_seconds=(run.deadline_at - self._clock.now()).total_seconds(),
            limit=request.limit,
            key=request.key,
            export=export,
        )


def reader_spec(spec: DeploymentSpec, request: ReadingRequest, run: ScratchRun, written_by: str = "") -> DeploymentSpec:
    """The spec of a reading's driver, on this machine: configuration, packages, jars, environment of the deployment.

    Args:
        written_by: the version of the Spark that wrote the state; "" if unknown.
    """
    from airflow_streamstate.controller.drivers.driver_launch import NO_SCRIPT

    of_stream = on_reader(spec.version, request.spark, written_by)
    version = replace(
        of_stream,
        application=Artifact(f"state of {spec.stream_id}", hashlib.sha256(NO_SCRIPT.encode()).hexdigest()),
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
    return spec_of_run(run, spec, version, StartPlan("fresh"), "")


_OF_ITS_SPARK = ("SPARK_HOME", "JAVA_HOME", *PYTHONS)
_FOR_A_READER = (
    *("spark.hadoop.", "spark.sql.streaming.stateStore.", "spark.streamstate.", "spark.driver.memory"),
    "spark.local.dir",
)
"""What of a version's configuration another Spark takes: the rest may name classes that it lacks."""


def on_reader(version: Version, spark: str, written_by: str) -> Version:
    """The version as a reading has it: on this Spark, without the packages and jars for its own one; on the pyspark of
    the caller where its own cannot read state.

    Raises:
        InvalidRequestError: there is no Spark at this path.
    """
    own = own_pyspark()
    is_old = (line_of(written_by) or STATE_READERS_SINCE) < STATE_READERS_SINCE
    if not spark and (not is_old or own is None or (line_of(version_of(own)) or (0, 0)) < STATE_READERS_SINCE):
        return version
    variables = environment_of_spark(spark) if spark else {"SPARK_HOME": str(own)}
    kept = {name: value for name, value in version.environment.items() if name not in _OF_ITS_SPARK}
    conf = {name: value for name, value in version.conf.items() if name.startswith(_FOR_A_READER)}
    return replace(version, environment={**kept, **variables}, conf=conf, packages=(), jars=())


def _result(raw: Mapping[str, Any]) -> dict[str, Any]:
    error = raw.get("error")
    if error is None:
        return dict(raw["result"])
    raise read_error(error)


def _export_of(out: str | None, export: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if export is None:
        return None
    return {"uri": out, **{key: export[key] for key in ("format", "complete", "tables", "problems", "only_in")}}


def _say(on_progress: Report | None, words: str) -> None:
    if on_progress is not None:
        on_progress(words)
