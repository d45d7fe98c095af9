"""Readings of the state of a snapshot: counts, rows by key, exports and differences, by a driver on a fork.

The stream may run at the same time; a reading touches nothing of it. The answer holds rows of the state: the driver
writes it into the folder of its launch, and nothing of a reading stays in the home.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.drivers.launching import NO_SCRIPT
from airflow_streamstate.controller.drivers.places import ATTEMPT
from airflow_streamstate.controller.scratch.reading_request import (
    ReadingRequest,
    check_pair,
    export_uri,
    is_stateful,
    newest_with_state,
    queries_with_state,
    shared_queries,
)
from airflow_streamstate.controller.scratch.run import NO_VERDICT, Report, ScratchRuns, spec_of_run, text_of
from airflow_streamstate.controller.scratch.state_fork import fork_for_reading
from airflow_streamstate.controller.scratch.state_report import (
    LoadedState,
    loaded_state,
    query_report,
    snapshot_facts,
)
from airflow_streamstate.controller.snapshots import Snapshots
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    DeadlineExceededError,
    DeploymentFailedError,
    InvalidRequestError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.plan.recorded import recorded_plans
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.records import DeploymentSpec, StartPlan
from airflow_streamstate.protocol.scratch import Reading, ScratchRun
from airflow_streamstate.protocol.terms.version import Artifact
from airflow_streamstate.snapshot.leases import leased
from airflow_streamstate.snapshot.state_order import PROGRESS, RESULT, StateExport, StateOrder, StatePlace, Verb

_ERRORS: Mapping[str, type[StreamStateError]] = {
    cls.__name__: cls for cls in (InvalidRequestError, ConflictError, DataError, UnavailableError)
}


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
                reader = reader_spec(spec, request, run)
                self._context.drivers.check(reader, ATTEMPT)
                # What is laid over the configuration may be a secret: nobody has agreed to its record.
                recorded = replace(reader, version=replace(reader.version, conf=spec.version.conf))
                self.launch(control, reader, order.to_json(), recorded=recorded)
            self.wait_over(run.stream_id, run.run_id, run.deadline_at, on_progress)
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


def reader_spec(spec: DeploymentSpec, request: ReadingRequest, run: ScratchRun) -> DeploymentSpec:
    """The spec of a reading's driver, on this machine: configuration, packages, jars, environment of the deployment."""
    of_stream = spec.version
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
