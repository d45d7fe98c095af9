"""Replays: recorded batches of a deployment run again into files, by a driver alongside the stream."""

from __future__ import annotations

import bisect
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from airflow_streamstate.checkpoint.file_source import plain_moves
from airflow_streamstate.checkpoint.fork import batch_at, can_fork_before, planned_batches
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.controller.deploy.start_plan import refuse_spark
from airflow_streamstate.controller.deploy.takeover import built_checkpoints
from airflow_streamstate.controller.drivers.driver_places import ATTEMPT
from airflow_streamstate.controller.observe.observation import NOT_ENDED, Observation
from airflow_streamstate.controller.request.patch import DEFAULT_MASTER
from airflow_streamstate.controller.request.requests import ChangeRequest, change_request
from airflow_streamstate.controller.scratch.run import Report, ScratchRuns, spec_of_run
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    IncompatibleUpgradeError,
    InputLostError,
    InvalidRequestError,
    ObjectMissingError,
    StreamStateError,
)
from airflow_streamstate.plan.replay_report import ReplayedVersions, ReplayReport, replay_report
from airflow_streamstate.plan.report import PlanReport, queries_to_replay, with_replay
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.protocol.scratch import REPLAY_SECONDS, Replay, ScratchRun
from airflow_streamstate.store.open import local_folder
from airflow_streamstate.store.options import plain_uri

# Which recorded batches a replay runs again, and where their rows go. Reads checkpoints, writes nothing.


def chosen_queries(
    checkpoints: Mapping[str, Checkpoint], deployment_id: str, query_name: str | None
) -> Mapping[str, Checkpoint]:
    """The queries that are replayed.

    Raises:
        InvalidRequestError: the deployment has no such query, or no checkpoint.
    """
    if not checkpoints:
        raise InvalidRequestError(
            "this deployment has no checkpoint: no query of it was started, or they were removed",
            deployment_id=deployment_id,
            next_step="`streamstate audit STREAM` lists the deployments; name another one with --deployment.",
        )
    if query_name is None:
        return checkpoints
    if query_name not in checkpoints:
        raise InvalidRequestError(
            "this deployment has no such query",
            deployment_id=deployment_id,
            query_name=query_name,
            queries=sorted(checkpoints),
            next_step="Name one of these with --query.",
        )
    return {query_name: checkpoints[query_name]}


def batch_chosen(name: str, checkpoint: Checkpoint, batch_id: int) -> tuple[int, ...]:
    """A batch that was named.

    Raises:
        InvalidRequestError: it never was, or its entries or the state of before it were cleaned up.
        DataError: the log is damaged.
    """
    planned = planned_batches(checkpoint)
    position = checkpoint.position()
    newest = position.last_batch_id
    if newest is None or batch_id > newest:
        raise InvalidRequestError(
            "the query has not planned this batch",
            query_name=name,
            batch_id=batch_id,
            newest_batch_id=newest,
            next_step=f"{_can_be_replayed(checkpoint, planned)} Name one of these with --batch.",
        )
    if batch_id not in planned or not can_fork_before(checkpoint, batch_id):
        raise InvalidRequestError(
            "the log of this batch, or the state of before it, was cleaned up",
            query_name=name,
            batch_id=batch_id,
            next_step=f"{_can_be_replayed(checkpoint, planned)} Name one of these with --batch, or an older deployment"
            " with --deployment.",
        )
    return (batch_id,)


def last_batches(name: str, checkpoint: Checkpoint, count: int, *, runs: bool) -> tuple[int, ...]:
    """The newest batches of a query, ascending, up to the one that is planned and not committed, or else to the newest
    one that read something: ``count`` of them, or as many as can be replayed.

    Args:
        runs: the query runs, so that its planned batch is in flight and has not failed: it counts if it reads rows.

    Raises:
        InvalidRequestError: no batch can be replayed.
        DataError: the log is damaged.
    """
    planned = planned_batches(checkpoint)
    last = checkpoint.position().planned_id
    if last is None or runs:
        last = next((batch_id for batch_id in reversed(planned) if _reads(checkpoint, batch_id)), None)
    found = [] if last is None else _unbroken(planned, last)
    first = _first_replayable(checkpoint, found)
    if not found or first == len(found):
        raise InvalidRequestError(
            "no batch of this query can be replayed: none has read rows yet, or they were cleaned up",
            query_name=name,
            next_step="Replay once the query has read rows; --query names another query, --deployment an older one.",
        )
    return tuple(found[max(first, len(found) - count) :])


def check_out(out: str, kept: Collection[str]) -> str:
    """The absolute path of the folder for the rows.

    Args:
        kept: the URIs of the home, of its places and mirrors: a replay never writes into them (Law 4).

    Raises:
        InvalidRequestError: it is no folder of this machine, or is in one of them, or one of them in it.
        ConflictError: it is not empty.
    """
    plain = out.removeprefix("file://")
    if "://" in plain:
        raise InvalidRequestError(
            "a replay writes into a folder of this machine", out=out, next_step="Name a folder with --out."
        )
    folder = Path(local_folder(plain)).resolve()
    for uri in kept:
        place = plain_uri(uri)
        there = Path(place).resolve() if place.startswith("/") else None
        if there is not None and (folder.is_relative_to(there) or there.is_relative_to(folder)):
            raise InvalidRequestError(
                "a replay does not write to where streams, their snapshots or copies of them are kept",
                out=str(folder),
                kept_there=uri,
                next_step="Name a separate folder with --out.",
            )
    try:
        is_taken = next(iter(folder.iterdir()), None) is not None
    except FileNotFoundError:
        is_taken = False
    except OSError as error:
        raise InvalidRequestError(
            "the folder for the rows cannot be used", out=str(folder), error=type(error).__name__,
            next_step="Name an empty or a new folder with --out.",
        ) from error  # fmt: skip
    if is_taken:
        raise ConflictError(
            "the folder for the rows is not empty",
            out=str(folder),
            next_step="Name an empty or a new folder with --out.",
        )
    return str(folder)


def _reads(checkpoint: Checkpoint, batch_id: int) -> bool:
    batch = batch_at(checkpoint, batch_id)
    return batch is not None and batch.entry.source_lines != batch.before


def _unbroken(planned: list[int], last: int) -> list[int]:
    """The batches up to this one without a gap between them."""
    known, first = set(planned), last
    while first - 1 in known:
        first -= 1
    return list(range(first, last + 1))


def _first_replayable(checkpoint: Checkpoint, batch_ids: list[int]) -> int:
    """The index of the oldest of these batches that can be replayed: Spark cleans up from the oldest on."""
    # Before batch 0 nothing has to be there: it is left out of the search.
    first = bisect.bisect_left(batch_ids, True, key=lambda each: each > 0 and can_fork_before(checkpoint, each))
    return 0 if first == 1 and batch_ids[0] == 0 else first


def _can_be_replayed(checkpoint: Checkpoint, planned: list[int]) -> str:
    found = planned[_first_replayable(checkpoint, planned) :]
    if not found:
        return "No batch of it can be replayed."
    return f"Batch {found[0]} can be replayed." if len(found) == 1 else (
        f"Batches {found[0]} to {found[-1]} can be replayed."
    )  # fmt: skip


OLD, NEW = "old", "new"
ROWS_FOLDER = "streamstate-replay-"
"""The prefix of the names of temporary folders for rows."""
NOT_THERE = (InvalidRequestError, IncompatibleUpgradeError, InputLostError, DataError, ObjectMissingError)
"""Errors by which nothing can be replayed, and which are no evidence about the new version."""


@dataclass(frozen=True, kw_only=True)
class ReplayRequest:
    """What is to run again.

    Attributes:
        change: what is different from the recorded version, its ``master`` above all; its ``stream_id`` is the stream.
        batch_id: one batch; None for the newest ones.
        last: this many of the newest ones.
        deployment_id: whose batches; None for the current deployment.
        query_name: None for all queries.
        among: of these queries those that have a batch which can be replayed, the others being noted; None for all,
            each of which must have one.
        out: a folder of this machine that is empty or absent; None for ``replay-STREAM-BATCH`` in the current one.
        part: a folder below that one for the rows; "": not set.
        compared_with: the view of a replay that has ended: its batches run, and their rows are compared with its rows.
        notes: human-readable, kept with the replay.
        keeps_state: as in ``Replay``; set for two versions.
        calls_foreach_batch, debugger: as in ``Replay``; of two versions the new one's alone.
    """

    change: ChangeRequest
    batch_id: int | None = None
    last: int = 1
    deployment_id: str | None = None
    query_name: str | None = None
    among: Collection[str] | None = None
    out: str | None = None
    part: str = ""
    compared_with: ReplayView | None = None
    deadline_seconds: float = REPLAY_SECONDS
    notes: tuple[str, ...] = ()
    keeps_state: bool = False
    calls_foreach_batch: bool = False
    debugger: str = ""


@dataclass(frozen=True)
class ReplayView:
    """A replay as it was started.

    Attributes:
        batches: by query, the batches that run.
        out: the absolute path of the folder that gets their rows.
        compared_with: that of the replay with whose rows these are compared; "": not set.
    """

    stream_id: str
    replay_id: str
    deployment_id: str
    batches: Mapping[str, tuple[int, ...]]
    out: str
    deadline_at: datetime
    compared_with: str = ""


@dataclass(frozen=True)
class ReplayPair:
    """Two runs over the same batches: of the recorded version into ``OUT/old``, then of the new one into ``OUT/new``.

    Attributes:
        new: the run of the new version, which names the batches.
        recorded: what is different in the run of the recorded version, its ``master`` above all.
    """

    new: ReplayRequest
    recorded: ChangeRequest

    def after(self, last: ReplayView | None) -> ReplayRequest | None:
        """The run that follows this one, the first for None; None after the second."""
        if last is None:
            first = replace(self.new, change=self.recorded, part=OLD, calls_foreach_batch=False, debugger="")
            return replace(first, keeps_state=True)
        if last.compared_with:
            return None
        out = str(Path(last.out).with_name(NEW))
        same = replace(self.new, out=out, part="", deployment_id=last.deployment_id, notes=())
        return replace(same, compared_with=last, keeps_state=True)


@dataclass(frozen=True)
class PlannedReplay:
    """The newest batches of each query of a change that was planned, in the recorded version and in the new one.

    Attributes:
        report: of the plan. If nothing can be replayed, it states why, and its own outcome is unchanged.
        change: what was planned.
        last: this many batches of each query.
        deadline_seconds: for each of the two runs.
    """

    report: PlanReport
    change: ChangeRequest
    last: int
    deadline_seconds: float = REPLAY_SECONDS


Watched = Callable[[ReplayView], AbstractContextManager[Report]]
"""Called with a replay that has started: the context of the wait for it, which gives what reports the progress."""


class Replays(ScratchRuns):
    """The replays of the streams of one home."""

    def begin(self, request: ReplayRequest) -> ReplayView:
        """Choose the batches, and launch the driver that runs them. The stream may run at the same time.

        Raises:
            StreamNotFoundError, DeploymentNotFoundError: it does not exist.
            InvalidRequestError: there is no such query or batch, or it was cleaned up; the folder cannot be used; the
                driver could not be launched.
            ConflictError: the folder is not empty.
            IncompatibleUpgradeError: the Spark of this machine cannot read the checkpoints.
            DataError: a checkpoint is damaged.
        """
        change = request.change
        control = self._home.need_stream(change.stream_id)
        seen = self._context.observer.observe(change.stream_id, request.deployment_id)
        self.sweep(change.stream_id)
        batches, left_out = self._chosen(request, seen)
        newest = max(ids[-1] for ids in batches.values())
        out = check_out(
            request.out or str(Path.cwd() / f"replay-{change.stream_id}-{newest}"), self.kept_places(control)
        )
        replay = Replay(
            batches,
            str(Path(out) / request.part),
            "" if request.compared_with is None else request.compared_with.out,
            keeps_state=request.keeps_state,
            calls_foreach_batch=request.calls_foreach_batch,
            debugger=request.debugger,
        )
        run = self.record(
            control,
            self._clock.new_uuid(),
            replay,
            deployment_id=seen.deployment_id,
            deadline_seconds=request.deadline_seconds,
            digest=change.digest,
            notes=(*request.notes, *change.notes(seen.spec.version), *left_out),
        )
        with self.beginning(control, run.run_id):
            version = change.applied_to(control.with_found_modules(seen.spec).version, self._home.guarded)
            # Its rows go into a folder of this machine, wherever the stream itself runs.
            version = replace(version, launcher=None, master=version.master or DEFAULT_MASTER)
            start = StartPlan("fresh", move_sources=plain_moves(change.terms.move_sources))
            spec = spec_of_run(run, seen.spec, version, start, change.reason)
            self._context.drivers.check(spec, ATTEMPT)
            refuse_spark(self._home, control, self._context.drivers, spec, seen)
            self.launch(control, spec)
        return _view(run, replay)

    def find(self, stream_id: str, run_id: str) -> ReplayView | None:
        """The replay of this id; None if that is a run of a different kind, or is not kept any more."""
        run = self._home.control(stream_id).scratch_run(run_id)
        return _view(run, run.what) if run is not None and isinstance(run.what, Replay) else None

    def _chosen(
        self, request: ReplayRequest, seen: Observation
    ) -> tuple[Mapping[str, tuple[int, ...]], tuple[str, ...]]:
        """By query its batches, and a sentence for each query that is left out."""
        if request.compared_with is not None:
            return request.compared_with.batches, ()
        checkpoints = chosen_queries(built_checkpoints(self._home, seen), seen.deployment_id, request.query_name)
        chosen: dict[str, tuple[int, ...]] = {}
        left_out: dict[str, InvalidRequestError] = {}
        for name, checkpoint in sorted(checkpoints.items()):
            if request.among is not None and name not in request.among:
                continue
            try:
                if request.batch_id is not None:
                    chosen[name] = batch_chosen(name, checkpoint, request.batch_id)
                else:
                    runs = seen.state in NOT_ENDED and name not in seen.failed_queries
                    chosen[name] = last_batches(name, checkpoint, request.last, runs=runs)
            except InvalidRequestError as error:
                if request.among is None:
                    raise
                left_out[name] = error
        if not chosen:
            raise next(
                iter(left_out.values()),
                InvalidRequestError(
                    "no query of this deployment has a checkpoint whose batches can be replayed",
                    deployment_id=seen.deployment_id,
                    queries=sorted(checkpoints),
                    next_step="Replay once a query has read rows.",
                ),
            )
        return chosen, tuple(f"query {name}: {error.message}" for name, error in left_out.items())

    def wait(self, view: ReplayView, on_progress: Report | None = None) -> ReplayReport:
        """Wait until a replay has ended, at its deadline at the latest; then as ``report``."""
        self.wait_over(view.stream_id, view.replay_id, view.deadline_at, on_progress)
        return self.report(view)

    def report(self, view: ReplayView) -> ReplayReport:
        """End a replay, remove what it made except its files, and report; idempotent."""
        return replay_report(*self.conclude(view.stream_id, view.replay_id))

    def run(self, request: ReplayRequest, watched: Watched) -> tuple[ReplayView, ReplayReport]:
        """Run a replay to its end; what interrupts the wait ends it. Raises as ``begin``."""
        view = self.begin(request)
        with self.ended_if_interrupted(view.stream_id, view.replay_id), watched(view) as on_progress:
            return view, self.wait(view, on_progress)

    def run_both(self, pair: ReplayPair, watched: Watched) -> ReplayedVersions:
        """Run both versions to their ends, and compare their rows. Raises as ``begin``."""
        pair.new.change.digest  # noqa: B018 - refuses a missing script before the recorded one runs
        view: ReplayView | None = None
        reports: list[ReplayReport] = []
        while (request := pair.after(view)) is not None:
            view, report = self.run(request, watched)
            reports.append(report)
        return ReplayedVersions(*reports)

    def check_folder(self, stream_id: str, out: str) -> None:
        """Check a folder for the rows. Raises StreamNotFoundError, InvalidRequestError and ConflictError, as
        ``begin``."""
        check_out(out, self.kept_places(self._home.need_stream(stream_id)))

    # of a plan

    def add_to(self, planned: PlannedReplay, watched: Watched, *, out: str | None = None) -> PlanReport:
        """The report of a plan with both runs of its replay.

        Args:
            out: the folder for the rows; None for a temporary one, which is removed.

        Raises:
            ConflictError: the change is another one by now; the folder is not empty.
            UnavailableError: the store does not answer.
        """
        folder = out or tempfile.mkdtemp(prefix=ROWS_FOLDER)
        try:
            pair, why_not = self._pair_of(planned, folder)
            if pair is None:
                return replace(planned.report, not_replayed=why_not)
            both = self.run_both(pair, watched)
        except NOT_THERE as error:
            return replace(planned.report, not_replayed=error.message)
        finally:
            if out is None:
                shutil.rmtree(folder, ignore_errors=True)
        return with_replay(planned.report, both if out else both.without_files())

    def advance(self, planned: PlannedReplay, last: ReplayView | None, watched: Watched) -> ReplayView | PlanReport:
        """The same in steps, each of which another process may take: the run that follows, into temporary files; or
        the report, after which nothing is left.

        If the rows of the first run are on another machine, both versions run here, one after the other.

        Args:
            last: the run that has ended; None for the first step.

        Raises:
            ConflictError, UnavailableError: as ``add_to``. The run and its rows are removed (``discard``).
        """
        folder = tempfile.mkdtemp(prefix=ROWS_FOLDER) if last is None else str(Path(last.out).parent)
        try:
            step = self._advanced(planned, last, folder, watched)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if not isinstance(step, ReplayView):
            shutil.rmtree(folder, ignore_errors=True)
        return step

    def _advanced(
        self, planned: PlannedReplay, last: ReplayView | None, folder: str, watched: Watched
    ) -> ReplayView | PlanReport:
        if last is not None and last.compared_with:
            return self._compared(planned.report, last)
        if last is not None:
            self.report(last)
            if not Path(folder).is_dir():
                return self.add_to(planned, watched)
        # A later report does not know what its libraries are: their record is removed with the rehearsal.
        pair, why_not = self._pair_of(planned, folder, planned.report.notes)
        request = None if pair is None else pair.after(last)
        if request is None:
            return replace(planned.report, not_replayed=why_not)
        try:
            return self.begin(request)
        except NOT_THERE as error:
            return replace(planned.report, not_replayed=error.message)

    def _compared(self, report: PlanReport, new: ReplayView) -> PlanReport:
        run_ids = self._home.control(new.stream_id).scratch_ids()
        replays = (self.find(new.stream_id, run_id) for run_id in run_ids)
        old = next((each for each in replays if each is not None and each.out == new.compared_with), None)
        if old is None:
            return replace(report, not_replayed="the record of the first of its two runs was removed")
        both = ReplayedVersions(self.report(old), self.report(new)).without_files()
        return with_replay(replace(report, notes=tuple(dict.fromkeys((*report.notes, *both.old.notes)))), both)

    def discard(self, view: ReplayView) -> None:
        """End a run of ``advance`` early, and remove its rows."""
        with suppress(StreamStateError):  # its driver ends at its deadline
            self.give_up(view.stream_id, view.replay_id)
        shutil.rmtree(Path(view.out).parent, ignore_errors=True)

    def _pair_of(
        self, planned: PlannedReplay, folder: str, notes: tuple[str, ...] = ()
    ) -> tuple[ReplayPair | None, str]:
        """The two runs of a change that was planned; None with the reason if nothing can be replayed.

        Raises:
            ConflictError: the change is another one by now.
        """
        report, change = planned.report, planned.change
        names, why_not = queries_to_replay(report)
        if why_not:
            return None, why_not
        run = self._home.control(report.stream_id).scratch_run(report.rehearsal_id)
        if run is not None and run.request_digest != change.digest:
            raise ConflictError(
                "the script, or a file of it, was changed while it was planned",
                stream_id=report.stream_id,
                rehearsal_id=report.rehearsal_id,
                next_step="Plan it again.",
            )
        new = ReplayRequest(
            change=replace(change, patch=change.patch.but(master=DEFAULT_MASTER, spark_conn_id=None)),
            last=planned.last,
            deployment_id=report.deployment_id,
            among=names,
            out=folder,
            deadline_seconds=planned.deadline_seconds,
            notes=notes,
        )
        return ReplayPair(new, change_request(report.stream_id, master=DEFAULT_MASTER, reason=change.reason)), ""


def _view(run: ScratchRun, replay: Replay) -> ReplayView:
    return ReplayView(
        run.stream_id, run.run_id, run.deployment_id, replay.batches, replay.out, run.deadline_at, replay.compared_with
    )
