"""The life of a scratch run: it is started, found again, waited for, concluded and swept.

A scratch run is neither a deployment nor an attempt: it does not touch the register, claims nothing, and writes no
event of the stream (Law 4). Its record is written first and removed last (Law 1). It names the deadline at which the
driver ends itself, so that any later controller can clean up after one that died. A stream may have any number of runs
at once, each for as long as its record states.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path

from airflow_streamstate.control.registers import CLOCKS_DIFFER_SECONDS
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.drivers.driver_places import ATTEMPT, is_handed_over, is_to_wait
from airflow_streamstate.controller.wait.waiting import poll
from airflow_streamstate.controller.wait.watching import log_tail_of, secrets_seen
from airflow_streamstate.errors import (
    InvalidRequestError,
    ObjectExistsError,
    OutcomeUnknownError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.launch.interface import LaunchHandle
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.ids import launch_key_for, scratch_id_for
from airflow_streamstate.protocol.records import DeploymentSpec, StartPlan
from airflow_streamstate.protocol.redaction import shortened
from airflow_streamstate.protocol.scratch import (
    Reading,
    Rehearsal,
    Replay,
    ScratchOutcome,
    ScratchRun,
    ScratchVerdict,
)
from airflow_streamstate.protocol.terms.version import Version
from airflow_streamstate.snapshot.location import known_places
from airflow_streamstate.snapshot.state_tables import PROGRESS, RESULT
from airflow_streamstate.store.transfer import delete_below

LATE_SECONDS = 15.0
"""A live driver has ended itself this long after its deadline, by its own clock."""
END_SECONDS = 10.0
"""How long to wait for a driver that has answered: a JVM that ends by itself removes its own temporary files."""
END_POLL_SECONDS = 0.2
GRACE_SECONDS = 5.0
POLL_SECONDS = 0.5
KEPT_REPORTS = 20
MAX_LINE_CHARACTERS = 1_000
LAUNCHES = "launches"
NO_VERDICT = "its driver ended without a verdict"
_RECORD = "run.json"
_KEPT = (_RECORD, "verdict.json", "plans")
"""What stays of a run whose verdict is kept."""
_OF_THE_ATTEMPT = (LAUNCHES, "waiting.json", "handover.json")
"""Stays, too, if the driver has become an attempt."""

Report = Callable[[str], None]


def is_late(deadline_at: datetime, now: datetime) -> bool:
    """Whether a driver with this deadline has ended itself, if both clocks agree."""
    return now >= deadline_at + timedelta(seconds=LATE_SECONDS)


def text_of(path: Path) -> str:
    """The content of a file of a driver; "" if it does not exist."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def spec_of_run(
    run: ScratchRun, of_deployment: DeploymentSpec, version: Version, start: StartPlan, reason: str
) -> DeploymentSpec:
    """What the driver of a run that runs a script is launched with, alongside this deployment."""
    from airflow_streamstate.controller.request.patch import beside_checkpoints

    return DeploymentSpec(
        stream_id=run.stream_id,
        deployment_id=run.run_id,
        fencing_token=of_deployment.fencing_token,
        version=beside_checkpoints(version, of_deployment.checkpoints_uri),
        start=start,
        checkpoints_uri=of_deployment.checkpoints_uri,
        request_id=run.request_id,
        requested_by=run.requested_by,
        reason=reason,
        created_at=run.created_at,
    )


class ScratchDriver:
    """The driver of one scratch run, and what it leaves in the home and on this machine."""

    def __init__(self, context: ControllerContext, control: StreamControl, run_id: str) -> None:
        self._context = context
        self._control = control
        self._run_id = run_id
        self.folder = layout.deployment_folder(control.stream_id, run_id)

    @property
    def launch_folder(self) -> Path:
        """The folder of its launch on this machine."""
        key = launch_key_for(self._run_id, ATTEMPT)
        return self._context.home.launch_path(layout.launch_folder(self._control.stream_id, self._run_id, key))

    def handle(self) -> LaunchHandle | None:
        """The driver's launch, or None."""
        return self._context.observer.handle(self._control, self._run_id, ATTEMPT)

    def has_ended(self) -> bool:
        """Whether it was launched and has ended; a reported end counts, since it writes its own trial alone."""
        handle = self.handle()
        status = None if handle is None else self._context.observer.status(handle)
        return status is not None and (status.has_ended or status.reported_end)

    def end(self, patience_seconds: float = 0.0) -> None:
        """Kill the driver, unless it ends by itself first. A driver of a different launcher is left to its deadline."""
        handle = self.handle()
        if handle is None or not self._context.launcher.knows(handle):
            return

        def is_gone() -> bool | None:
            return True if self._context.observer.status(handle).state not in ("running", "unknown") else None

        poll(self._context.clock, is_gone, timeout_seconds=patience_seconds, pause_seconds=lambda: END_POLL_SECONDS)
        self._context.launcher.kill(handle, GRACE_SECONDS)

    def remove(self, kept: Collection[str] = ()) -> None:
        """Remove what the driver made, except the objects and folders of these names directly below its folder."""
        home, handle = self._context.home, self.handle()
        if handle is not None and LAUNCHES not in kept:
            with suppress(StreamStateError):  # a cluster that is away keeps its objects, and the launcher tidies later
                self._context.launcher.forget(handle)
        delete_below(home.checkpoints, self.folder, but=(*kept, _RECORD))
        if LAUNCHES not in kept:
            home.remove_launches(self.folder)
        if home.checkpoints is not home.home:
            delete_below(home.home, self.folder, but=(*kept, _RECORD))
        if _RECORD not in kept:  # last (Law 1)
            delete_below(home.home, self.folder, but=kept)
        if LAUNCHES not in kept:  # else the next ``end`` would wait for a driver whose launch is gone
            self._context.observer.forget(self._control.stream_id, self._run_id)


class ScratchRuns:
    """The scratch runs of the streams of one home. Each kind adds how it is started, and what it reports."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._home = context.home
        self._clock = context.clock

    # start

    def record(
        self,
        control: StreamControl,
        request_id: str,
        what: Rehearsal | Replay | Reading,
        *,
        deployment_id: str,
        deadline_seconds: float,
        digest: str = "",
        notes: tuple[str, ...] = (),
    ) -> ScratchRun:
        """Record a run before anything else of it (Law 1); the run that is recorded."""
        now = self._clock.now()
        run = ScratchRun(
            stream_id=control.stream_id,
            run_id=self._next_id(control, request_id),
            deployment_id=deployment_id,
            what=what,
            created_at=now,
            deadline_at=now + timedelta(seconds=deadline_seconds),
            requested_by=self._context.requested_by,
            request_id=request_id,
            request_digest=digest,
            write_id=self._clock.new_uuid(),
            notes=notes,
        )
        with suppress(ObjectExistsError):  # two calls of the same request at once
            control.create_scratch_run(run)
        return control.scratch_run(run.run_id) or run

    @contextmanager
    def beginning(self, control: StreamControl, run_id: str) -> Iterator[None]:
        """The driver of a recorded run is launched in this block. A run that cannot start leaves nothing; the next call
        finds one that may have started."""
        try:
            yield
        except (UnavailableError, OutcomeUnknownError):
            raise
        except StreamStateError:
            with suppress(StreamStateError):
                if self.driver(control, run_id).handle() is None:
                    self._remove(control, run_id, everything=True)
            raise

    def launch(
        self,
        control: StreamControl,
        spec: DeploymentSpec,
        order: Mapping[str, object] | None = None,
        *,
        recorded: DeploymentSpec | None = None,
    ) -> DeploymentSpec:
        """Record what a run runs, and launch it; the spec that is recorded.

        Args:
            order: of a driver that runs no script: what it does instead.
            recorded: the spec without what may hold a secret; None for all of it.
        """
        try:
            control.create_spec(recorded or spec)
        except ObjectExistsError:
            spec = control.spec(spec.deployment_id)  # by an earlier call, whose driver may run
        self._context.drivers.launch(control, spec, ATTEMPT, order)
        return spec

    def kept_places(self, control: StreamControl) -> set[str]:
        """The URIs of the home, of its places and mirrors: no run writes its rows there (Law 4)."""
        kept = {self._home.home.uri, self._home.checkpoints.uri, *known_places(control)}
        for deployment_id in control.deployment_ids():
            with suppress(StreamStateError):
                kept.update(control.spec(deployment_id).version.mirrors)
        return {uri for uri in kept if uri}

    # find

    def begun_by(self, stream_id: str, request_ids: Iterable[str]) -> list[str]:
        """The ids of all runs that these requests started, sorted."""
        control = self._home.control(stream_id)
        starts = tuple(f"{scratch_id_for(each, 1).rpartition('-')[0]}-" for each in request_ids)
        return sorted(run_id for run_id in control.scratch_ids() if run_id.startswith(starts))

    def _next_id(self, control: StreamControl, request_id: str) -> str:
        begun = self.begun_by(control.stream_id, [request_id])
        number = 1 + max((int(run_id.rpartition("-")[2]) for run_id in begun), default=0)
        return scratch_id_for(request_id, number)

    def need(self, control: StreamControl, run_id: str) -> ScratchRun:
        """The record of a run. Raises InvalidRequestError if the stream has no such run."""
        run = control.scratch_run(run_id)
        if run is None:
            raise InvalidRequestError(
                "this stream has no such rehearsal",
                stream_id=control.stream_id,
                rehearsal_id=run_id,
                next_step="Rehearse again: reports are kept for a while only.",
            )
        return run

    def driver(self, control: StreamControl, run_id: str) -> ScratchDriver:
        """The driver of a run."""
        return ScratchDriver(self._context, control, run_id)

    # wait

    def is_over(self, stream_id: str, run_id: str) -> bool:
        """Whether its driver has answered, or cannot answer any more; writes nothing.

        Raises:
            InvalidRequestError: the stream has no such run.
        """
        control = self._home.control(stream_id)
        return self._has_ended(control, self.need(control, run_id))

    def _has_ended(self, control: StreamControl, run: ScratchRun) -> bool:
        if self._is_answered(control, run) or is_late(run.deadline_at, self._clock.now()):
            return True
        return self.driver(control, run.run_id).has_ended()

    def describe(self, stream_id: str, run_id: str, run: ScratchRun | None = None) -> str:
        """The status of a run in one line; ``run``: its record, if it was read. Raises as ``is_over``."""
        control = self._home.control(stream_id)
        driver = self.driver(control, run_id)
        progress, handle = text_of(driver.launch_folder / PROGRESS), driver.handle()
        if progress:
            return progress
        left = ((run or self.need(control, run_id)).deadline_at - self._clock.now()).total_seconds()
        state = "not launched" if handle is None else self._context.observer.status(handle).state
        return f"its driver is {state}; {max(left, 0):.0f} s are left"

    def wait_over(
        self,
        stream_id: str,
        run_id: str,
        deadline_at: datetime,
        on_progress: Report | None = None,
        run: ScratchRun | None = None,
    ) -> None:
        """Wait until a run has ended, at its deadline at the latest.

        Args:
            run: its record, if the caller wrote it. Then no poll reads the record, so that a driver whose answer is on
                this machine is waited for while the home is away.
        """

        def look() -> bool | None:
            with suppress(UnavailableError):  # the store is away; the run may continue
                has_ended = (
                    self.is_over(stream_id, run_id)
                    if run is None
                    else self._has_ended(self._home.control(stream_id), run)
                )
                if has_ended:
                    return True
                if on_progress is not None:
                    on_progress(self.describe(stream_id, run_id, run))
            return None

        left = (deadline_at - self._clock.now()).total_seconds() + LATE_SECONDS
        poll(self._clock, look, timeout_seconds=max(left, 0.0), pause_seconds=lambda: POLL_SECONDS)

    def _is_answered(self, control: StreamControl, run: ScratchRun) -> bool:
        if run.what.keeps_verdict:
            return control.verdict(run.run_id) is not None
        return (self.driver(control, run.run_id).launch_folder / RESULT).exists()

    def _is_left_alone(self, control: StreamControl, run: ScratchRun) -> bool:
        """Whether its driver lives on after its verdict: it waits for an attempt, or is about to."""
        if not is_to_wait(run, control.verdict(run.run_id), self._clock.now()):
            return False
        return not is_handed_over(control, run.run_id) and not self.driver(control, run.run_id).has_ended()

    @contextmanager
    def ended_if_interrupted(self, stream_id: str, run_id: str) -> Iterator[None]:
        """A run that is waited for in this block: what interrupts the block ends the run."""
        try:
            yield
        except BaseException:
            with suppress(StreamStateError):  # its driver ends at its deadline
                self.give_up(stream_id, run_id)
            raise

    # conclude

    def conclude(self, stream_id: str, run_id: str) -> tuple[ScratchRun, ScratchVerdict]:
        """End a run, remove what it made, and return its verdict; idempotent. Raises as ``is_over``.

        A driver that was handed over belongs to a deployment: it is not ended, and its launch and its log stay.
        """
        control = self._home.control(stream_id)
        run = self.need(control, run_id)
        verdict = control.verdict(run_id)
        if not is_handed_over(control, run_id):
            is_answered = verdict is not None or self._is_answered(control, run)
            ends_by_itself = is_answered and not is_to_wait(run, verdict, self._clock.now())
            self.driver(control, run_id).end(END_SECONDS if ends_by_itself else 0.0)
        verdict = verdict or control.verdict(run_id) or self._given(control, run)
        self._remove(control, run_id)
        return run, verdict

    def verdict_without_answer(self, control: StreamControl, run: ScratchRun) -> ScratchVerdict:
        """A controller's verdict on a run whose driver recorded none."""
        outcome, error, tail = self._why_none(control, run)
        return ScratchVerdict(
            stream_id=control.stream_id,
            run_id=run.run_id,
            outcome=outcome,
            queries={},
            error=error,
            seconds=round((self._clock.now() - run.created_at).total_seconds(), 3),
            given_by="controller",
            given_at=self._clock.now(),
            write_id=self._clock.new_uuid(),
            log_tail=tail,
        )

    def _given(self, control: StreamControl, run: ScratchRun) -> ScratchVerdict:
        """The verdict for a driver that recorded none; recorded, if the verdicts of this kind are kept."""
        verdict = self.verdict_without_answer(control, run)
        if not run.what.keeps_verdict:
            return verdict
        try:
            control.create_verdict(verdict)
        except ObjectExistsError:
            return control.verdict(run.run_id) or verdict
        return verdict

    def _why_none(self, control: StreamControl, run: ScratchRun) -> tuple[ScratchOutcome, str, str]:
        """Outcome, error and the end of the log."""
        if not run.what.keeps_verdict and self._is_answered(control, run):
            return "done", "", ""
        handle = self.driver(control, run.run_id).handle()
        if self._clock.now() >= run.deadline_at:
            return "deadline", f"it was not over at its deadline, {format_time(run.deadline_at)}", ""
        if handle is None:
            return "failed", "its driver was never launched", ""
        reason = self._context.observer.status(handle).reason
        try:
            spec = control.spec(run.run_id)
        except StreamStateError:
            return "failed", NO_VERDICT, ""
        tail = log_tail_of(self._context, spec, handle)
        secrets = secrets_seen(spec, handle)
        words = shortened(f"{NO_VERDICT}: {reason}", secrets, MAX_LINE_CHARACTERS, in_a_line=True)
        return "failed", words, tail

    def give_up(self, stream_id: str, run_id: str) -> None:
        """End a run early, a waiting driver included, without a report."""
        with suppress(InvalidRequestError):
            self.conclude(stream_id, run_id)

    # sweep

    def sweep(self, stream_id: str, only: type = object) -> None:
        """Remove what runs left that have ended or are past their deadline, and the oldest reports.

        Args:
            only: of this kind alone, which takes one read for each other run.
        """
        control = self._home.control(stream_id)
        over: dict[str, datetime] = {}
        for run_id in control.scratch_ids():
            with suppress(StreamStateError):  # the next sweep tries again
                ended_at = self._swept(control, run_id, only)
                if ended_at is not None:
                    over[run_id] = ended_at
        for run_id in sorted(over, key=lambda each: over[each])[:-KEPT_REPORTS]:
            with suppress(StreamStateError):
                self._remove(control, run_id, everything=True)

    def _swept(self, control: StreamControl, run_id: str, only: type) -> datetime | None:
        """Remove what one run left; when a kept report was given, or None for a run that is not over, is not kept, or
        was handed over."""
        run = control.scratch_run(run_id)
        if run is None:  # it was removed just now; a run of the same id may have started since
            return None
        if not isinstance(run.what, only):
            return None
        if not run.what.keeps_verdict:
            # Whoever started it removes it, unless that process has ended, perhaps on a machine with another clock.
            if is_late(run.deadline_at, self._clock.now() - timedelta(seconds=CLOCKS_DIFFER_SECONDS)):
                self.conclude(control.stream_id, run_id)
            return None
        verdict = control.verdict(run_id)
        if self._is_left_alone(control, run):
            return None
        if is_handed_over(control, run_id):
            if self._has_leftovers(control, run_id):
                self._remove(control, run_id)
            return None  # it has the log of a deployment's driver, and goes with that deployment
        is_over = verdict is not None or is_late(run.deadline_at, self._clock.now())
        if not is_over and not self.driver(control, run_id).has_ended():
            return None
        if verdict is None or self._has_leftovers(control, run_id):
            _, verdict = self.conclude(control.stream_id, run_id)
        return verdict.given_at

    def is_removed(self, control: StreamControl, run_id: str) -> bool:
        """Whether what its driver ran is removed, which comes after the proof of the driver's end."""
        return self._home.home.head(layout.spec_key(control.stream_id, run_id)) is None

    def _has_leftovers(self, control: StreamControl, run_id: str) -> bool:
        folder = layout.deployment_folder(control.stream_id, run_id)
        stores = (self._home.home, self._home.checkpoints)
        is_kept = is_handed_over(control, run_id)
        kept = {*_KEPT, *(_OF_THE_ATTEMPT if is_kept else ())}
        left = {name for store in stores for name in store.list_folders(folder)} - kept
        if left or not self.is_removed(control, run_id):
            return True
        # A work dir belongs to one machine: the controller that concluded the run may not have seen this folder.
        return not is_kept and self._home.launch_path(f"{folder}/launches").exists()

    def _remove(self, control: StreamControl, run_id: str, *, everything: bool = False) -> None:
        run = None if everything else control.scratch_run(run_id)
        kept: tuple[str, ...] = _KEPT if run is not None and run.what.keeps_verdict else ()
        if is_handed_over(control, run_id):
            kept = (*_KEPT, *_OF_THE_ATTEMPT)
        self.driver(control, run_id).remove(kept)
