"""Upgrades and rollbacks: request, start, advance, observe, approve and cancel them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from datetime import timedelta

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.objects import OF_DRIVER, Bell, Lease
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.control.upgrade_journal import (
    ABANDONED,
    LEASE_SECONDS,
    LOST_CLAIM,
    UpgradeJournal,
    UpgradeState,
)
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.observe.observation import Observation, refuse_old, silent_error
from airflow_streamstate.controller.request.patch import check_secrets
from airflow_streamstate.controller.request.requests import Change, as_plain
from airflow_streamstate.controller.stream_guards import (
    BusyError,
    check_same_request,
    refuse_another_upgrade,
    request_id_or_new,
)
from airflow_streamstate.controller.upgrade.backward import next_backward
from airflow_streamstate.controller.upgrade.decisions import problem_of_approver
from airflow_streamstate.controller.upgrade.forward import claim, clear_up, next_forward
from airflow_streamstate.controller.upgrade.steps import Act, Tools, UpgradeVerbs, Wait
from airflow_streamstate.controller.upgrade.upgrade_views import Telling, UpgradeView
from airflow_streamstate.controller.wait.condition import WaitCondition, WaitResult
from airflow_streamstate.controller.wait.waiting import poll
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    DeadlineExceededError,
    DeploymentNotFoundError,
    InvalidRequestError,
    ObjectExistsError,
    OutcomeUnknownError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.launch.interface import LaunchHandle
from airflow_streamstate.protocol.codec import fields_json
from airflow_streamstate.protocol.ids import check_stream_id, return_request_id_for, upgrade_id_for, upgrade_of_return
from airflow_streamstate.protocol.records import DeploymentSpec, StartPlan
from airflow_streamstate.protocol.redaction import is_reference, split_argument
from airflow_streamstate.protocol.terms.order import RollbackTerms, UpgradeTerms
from airflow_streamstate.protocol.terms.version import Version, digest_of
from airflow_streamstate.protocol.upgrades import AfterStop, Approval, Cancellation, Upgrade, UpgradeLease, UpgradeStep
from airflow_streamstate.snapshot.deletion import SnapshotLease

# The requests for an upgrade and for a rollback.


@dataclass(frozen=True)
class UpgradeRequest:
    """A stream is to run another version on its state.

    Attributes:
        change: what changes; everything else stays as it runs now. Without a change this is a restart. Or all of a
            version.
        terms: how the new version takes over.

    Raises:
        InvalidRequestError: the terms do not fit the change.
    """

    change: Change
    terms: UpgradeTerms = field(default_factory=UpgradeTerms)

    def __post_init__(self) -> None:
        self._check_rewrite()
        check_undo_command(self.terms.undo_command)

    def _check_rewrite(self) -> None:
        terms = self.terms
        if self.change.rewrite is None:
            return
        if terms.mode not in ("auto", "restore") or terms.allow_drain:
            raise InvalidRequestError(
                "state that is rewritten is restored, not drained",
                mode=terms.mode,
                allow_drain=terms.allow_drain,
                next_step="Leave out the mode and allow_drain; or drain, and give the new version its settings (conf).",
            )
        if not terms.rehearse:
            raise InvalidRequestError(
                "state is rewritten only after a rehearsal on a fork of it, and rehearse is off",
                rehearse=terms.rehearse,
                next_step="Leave out --no-rehearsal.",
            )

    @property
    def stream_id(self) -> str:
        """The stream."""
        return self.change.stream_id

    @property
    def digest(self) -> str:
        """Over the whole request. Raises InvalidRequestError where a file cannot be read."""
        return digest_of({"verb": "upgrade", "change": self.change.digest, "terms": fields_json(self.terms)})


@dataclass(frozen=True)
class RollbackRequest:
    """A stream is to run again what it ran before its current deployment, or before an older snapshot.

    Attributes:
        terms: how that version takes over.

    Raises:
        InvalidRequestError: an option is wrong.
    """

    stream_id: str
    terms: RollbackTerms = field(default_factory=RollbackTerms)
    reason: str = ""

    def __post_init__(self) -> None:
        check_stream_id(self.stream_id)
        check_undo_command(self.terms.undo_command)

    @property
    def recorded_terms(self) -> RollbackTerms:
        """The terms as they are recorded: to an older snapshot only an undo leads."""
        return self.terms if self.terms.snapshot_id is None else replace(self.terms, strategy="undo")

    @property
    def digest(self) -> str:
        """Over the whole request."""
        asked = {"stream_id": self.stream_id, "terms": self.terms, "reason": self.reason}
        return digest_of({"verb": "rollback", **as_plain(asked)})


def check_undo_command(words: Sequence[str]) -> None:
    """Raises InvalidRequestError where the command seems to hold a secret: it is recorded and run as it is."""
    try:
        check_secrets({}, words, {}, may_be_literal=False)
        is_plain = not any(is_reference(split_argument(word)[1]) for word in words)
    except InvalidRequestError:
        is_plain = False
    if not is_plain:
        raise InvalidRequestError(
            "this command seems to hold a secret, or a reference to one, and would be recorded as it is",
            command=words[0],
            next_step="Have it read the secret itself, from a file or from a variable of the driver's environment.",
        )


def version_to_return_to(
    context: ControllerContext, control: StreamControl, request: RollbackRequest, request_id: str
) -> str:
    """The deployment whose code a rollback runs again. Takes a lease on the snapshot that the request names.

    Raises:
        InvalidRequestError: there was no deployment before; or an upgrade that was abandoned made the current one, so
            that the one before it was abandoned, or is the same code.
        SnapshotNotFoundError: there is no such snapshot, or it is being removed.
        IncompatibleUpgradeError: the snapshot is older than allowed.
    """
    snapshot_id, bound = request.terms.snapshot_id, request.terms.max_snapshot_age_seconds
    if snapshot_id is None:
        return _before(control, context.observer.observe(control.stream_id))
    manifest = control.need_manifest(snapshot_id)
    refuse_old(manifest.taken_at, manifest.snapshot_id, bound, context.clock.now())
    # Keeps a prune that looked before the rollback was recorded from removing the snapshot; the lease expires by
    # itself, long after that prune reads the record.
    SnapshotLease(control, snapshot_id, f"the rollback {request_id}").take()
    return manifest.deployment_id


def _before(control: StreamControl, seen: Observation) -> str:
    before = seen.spec.start.predecessor_id
    if before is None:
        raise InvalidRequestError(
            "this is the stream's first deployment, so there is no version to go back to",
            stream_id=seen.stream_id,
            deployment_id=seen.deployment_id,
            next_step="Upgrade it to a version that works.",
        )
    given_up_by = upgrade_of_return(seen.spec.request_id)
    if given_up_by is not None and _is_same_anew(control, seen.spec, before, given_up_by):
        raise InvalidRequestError(
            "an upgrade that was abandoned has deployed this version again, so the one before it is the same code",
            stream_id=seen.stream_id,
            deployment_id=seen.deployment_id,
            same_code=before,
            given_up_by=given_up_by,
            next_step=f"`streamstate upgrade {seen.stream_id}` with the application of an older version runs that on"
            f" the state as it is; `streamstate rollback {seen.stream_id} --snapshot ID` goes back to an older state.",
        )
    if given_up_by is not None:
        raise InvalidRequestError(
            "the stream has gone back already: the version before its current deployment was abandoned",
            stream_id=seen.stream_id,
            deployment_id=seen.deployment_id,
            given_up=before,
            given_up_by=given_up_by,
            next_step=f"`streamstate rollback {seen.stream_id} --snapshot ID` goes further back; `streamstate upgrade "
            f"{seen.stream_id}` with the application of {before} runs that again.",
        )
    return before


def _is_same_anew(control: StreamControl, spec: DeploymentSpec, before: str, upgrade_id: str) -> bool:
    """Whether an upgrade that never started its new version has deployed the old code again."""
    with suppress(DataError, DeploymentNotFoundError):
        is_anew = spec.request_id == return_request_id_for(upgrade_id, "anew")
        return is_anew and control.spec(before).version.application == spec.version.application
    return False


Report = Callable[[str], None]
SETTLE_PAUSE_SECONDS = 0.2
BUSY_PAUSE_SECONDS = 2.0
ACT_SECONDS = 900.0
"""The lease during one act, in which a worker does not renew it."""
_BEFORE_APPROVAL = frozenset({"begun", "rehearsing", "planned"})
_SETTLED = frozenset({"started", "returned"})
_BACKWARD = frozenset({"unhealthy", "trying", "returning", "returned"})


class Upgrades:
    """The upgrades and rollbacks of the streams of one home."""

    def __init__(self, context: ControllerContext, verbs: UpgradeVerbs) -> None:
        self._context = context
        self._verbs = verbs
        self._home = context.home
        self._clock: Clock = context.clock

    # start

    def begin(
        self,
        request: UpgradeRequest,
        request_id: str | None = None,
        *,
        lease_seconds: float | None = None,
        if_abandoned: AfterStop = "finish",
    ) -> UpgradeView:
        """Record an upgrade, and claim the stream for it; ``advance`` does the rest. The same request id finds the
        same upgrade.

        Args:
            request_id: the same for every retry of this request; None for a new request.
            lease_seconds: of a task, as for ``hold``: once it is gone, an upgrade that has touched nothing is ended.
                None: only a cancellation gives it up.
            if_abandoned: what a watcher does where its caller is gone and the stream was touched.

        Raises:
            StreamNotFoundError: the stream was never deployed.
            InvalidRequestError: the request is wrong, or the new version could not be launched.
            BusyError: another upgrade is under way.
            ConflictError: the request id belongs to another request, or the stream is silent.
        """
        request_id = request_id_or_new(request_id, self._clock)

        def made(control: StreamControl) -> Upgrade:
            change, seen = request.change, self._context.observer.observe(control.stream_id)
            if seen.state == "silent":
                raise silent_error(seen, "upgrade")
            return Upgrade(
                old_deployment_id=seen.deployment_id,
                request_digest=request.digest,
                reason=change.reason,
                upgrade_terms=request.terms,
                target=change.applied_to(self._pinned_version(control, seen.deployment_id), self._home.guarded),
                rewrite=change.rewrite,
                handover=change.terms.handover,
                if_abandoned=if_abandoned,
                ends_untouched=lease_seconds is not None,
                **self._signed(control, request_id),  # type: ignore[arg-type]
            )

        return self._begin(request.stream_id, request_id, request.digest, made, lease_seconds)

    def begin_rollback(
        self, request: RollbackRequest, request_id: str | None = None, *, lease_seconds: float | None = None
    ) -> UpgradeView:
        """Record a rollback to the deployment before the current one, or to an older snapshot. As ``begin``; raises
        also as ``version_to_return_to``."""
        request_id = request_id_or_new(request_id, self._clock)

        def made(control: StreamControl) -> Upgrade:
            old_id = version_to_return_to(self._context, control, request, request_id)
            return Upgrade(
                old_deployment_id=old_id,
                target=self._pinned_version(control, old_id),
                request_digest=request.digest,
                reason=request.reason,
                rollback_terms=request.recorded_terms,
                ends_untouched=lease_seconds is not None,
                **self._signed(control, request_id),  # type: ignore[arg-type]
            )

        return self._begin(request.stream_id, request_id, request.digest, made, lease_seconds)

    def _signed(self, control: StreamControl, request_id: str) -> dict[str, object]:
        return {
            "stream_id": control.stream_id,
            "upgrade_id": upgrade_id_for(request_id),
            "request_id": request_id,
            "requested_by": self._context.requested_by,
            "created_at": self._clock.now(),
            "write_id": self._clock.new_uuid(),
        }

    def _begin(
        self,
        stream_id: str,
        request_id: str,
        digest: str,
        made: Callable[[StreamControl], Upgrade],
        lease_seconds: float | None,
    ) -> UpgradeView:
        control = self._home.need_stream(stream_id)
        journal, upgrade_id = UpgradeJournal(control), upgrade_id_for(request_id)
        upgrade = journal.upgrade(upgrade_id)
        if upgrade is None:
            register = control.need_register().value
            refuse_another_upgrade(control, register, upgrade_id)
            self._clear_up_after(stream_id, register.upgrade_id)
            upgrade = made(control)
            self._check_target(control, upgrade)
            with suppress(ObjectExistsError):  # the same request, twice at once
                journal.create(upgrade)
            upgrade = journal.upgrade(upgrade_id) or upgrade
        check_same_request(upgrade, digest)
        tools = Tools(self._context, self._verbs, upgrade, control)
        if journal.state(upgrade_id) is None:
            self._first_step(tools)
        state = journal.need_state(upgrade_id)
        if lease_seconds is not None and not state.is_over:
            self.hold(stream_id, upgrade_id, lease_seconds)
        if state.phase == "begun":
            claim(tools, state)
        return self.view(stream_id, upgrade_id)

    def _clear_up_after(self, stream_id: str, upgrade_id: str | None) -> None:
        """Remove what an ended upgrade left, its waiting driver included; another command may have ended it."""
        if upgrade_id is None:
            return
        with suppress(StreamStateError):
            tools, state = self._tools(stream_id, upgrade_id)
            if state.is_over:
                clear_up(tools)

    def _pinned_version(self, control: StreamControl, deployment_id: str) -> Version:
        """What a deployment runs, with the modules that its drivers found."""
        return control.with_found_modules(control.spec(deployment_id)).version

    def _check_target(self, control: StreamControl, upgrade: Upgrade) -> None:
        """Check that a driver of the target could be launched. Raises as ``Drivers.check``."""
        old = control.spec(upgrade.old_deployment_id)
        self._context.drivers.check(replace(old, version=upgrade.target, start=StartPlan("fresh")), 1)

    def _first_step(self, tools: Tools) -> None:
        step = UpgradeStep(
            stream_id=tools.stream_id,
            upgrade_id=tools.upgrade.upgrade_id,
            number=1,
            phase="begun",
            taken_at=self._clock.now(),
            taken_by=self._context.requested_by,
            write_id=self._clock.new_uuid(),
        )
        tools.journal.take(step)

    # who drives it

    def hold(self, stream_id: str, upgrade_id: str, seconds: float) -> None:
        """Record that this caller drives an upgrade for this long from now.

        Later than that, watchers bring it to its end (``take_over``); the next command that needs the stream ends a
        task's upgrade that has not touched the stream (``UpgradeJournal.end_abandoned``).
        """
        until_at, by = self._clock.now() + timedelta(seconds=seconds), self._context.requested_by
        self._journal(stream_id).hold(
            UpgradeLease(stream_id, upgrade_id, by, until_at, self._clock.new_uuid(), seconds)
        )

    def keeps_lease(self, stream_id: str, upgrade_id: str) -> Callable[[], None]:
        """A function that renews the lease of an upgrade; for the caller that drives it to call at each poll."""
        lease = Lease(self._clock, LEASE_SECONDS)

        def keep() -> None:
            if lease.is_due():
                with suppress(UnavailableError, OutcomeUnknownError), lease.renewed():
                    self.hold(stream_id, upgrade_id, LEASE_SECONDS)

        return keep

    def prolong(self, stream_id: str, upgrade_id: str, seconds: float) -> None:
        """Move the lease of an upgrade on in the name of its holder, such as a task that waits in a triggerer."""
        self._journal(stream_id).prolong(upgrade_id, seconds)

    def leave(self, stream_id: str, upgrade_id: str) -> None:
        """Record that this caller no longer drives the upgrade, so that watchers need not wait; not if it has ended."""
        journal = self._journal(stream_id)
        if journal.is_under_way(upgrade_id):
            journal.release(upgrade_id, self._context.requested_by)

    def take_over(self, stream_id: str, upgrade_id: str) -> UpgradeView:
        """Take the steps that can be taken now of an upgrade whose owner is gone, by its own ``if_abandoned``.

        Any number of watchers may do so at once. An owner that comes back holds it again, and continues from there.
        Raises as ``advance``.
        """
        tools, state = self._tools(stream_id, upgrade_id)
        upgrade, journal, is_forward = state.upgrade, tools.journal, state.phase not in _BACKWARD
        journal.release(upgrade_id, state.last.taken_by)
        if tools.cancellation() is None and not state.is_over:
            if state.has_touched_nothing and upgrade.ends_untouched:
                journal.end_abandoned(upgrade_id)
            elif is_forward and not state.has_touched_nothing and upgrade.if_abandoned == "rollback":
                lease = journal.lease(upgrade_id)
                by = state.last.taken_by if lease is None else lease.held_by
                moment, write_id = self._clock.now(), self._clock.new_uuid()
                journal.cancel(Cancellation(stream_id, upgrade_id, "rollback", by, moment, write_id, ABANDONED))
        return self.advance(stream_id, upgrade_id)

    def was_abandoned(self, view: UpgradeView) -> bool:
        """Whether an upgrade was cancelled because nobody drove it any more, and not by a person."""
        cancellation = self._journal(view.stream_id).cancellation(view.upgrade_id)
        return cancellation is not None and cancellation.reason == ABANDONED

    def _journal(self, stream_id: str) -> UpgradeJournal:
        return UpgradeJournal(self._home.control(stream_id))

    def holder(self, stream_id: str) -> UpgradeView | None:
        """The upgrade for which another one has to wait; None where the stream is free. Writes nothing. Raises
        StreamNotFoundError."""
        view = self.under_way(stream_id)
        if view is None or self._journal(stream_id).abandoned_lease(view.state) is not None:
            return None
        return view

    def begin_when_free(
        self,
        stream_id: str,
        request_id: str | None,
        begin: Callable[[str], UpgradeView],
        seconds: float,
        on_progress: Report | None = None,
    ) -> UpgradeView:
        """Start an upgrade or a rollback as soon as no other one holds the stream; records nothing before.

        The same request id finds the same upgrade. An upgrade that was recorded but lost the claim has ended: the
        request then continues under an id derived from its own.

        Args:
            request_id: the same for every retry of this request; None for a new request.
            begin: starts it under the given request id.
            seconds: how long to wait.
            on_progress: called with what it waits for.

        Raises:
            DeadlineExceededError: another upgrade still holds the stream.
            Every error of ``begin`` except BusyError.
        """
        known, journal = request_id_or_new(request_id, self._clock), UpgradeJournal(self._home.need_stream(stream_id))
        until_seconds = self._clock.monotonic_seconds() + seconds
        for number in itertools.count(1):
            one = known if number == 1 else request_id_of_turn(known, number)
            cancellation = journal.cancellation(upgrade_id_for(one))
            while cancellation is None or cancellation.reason != LOST_CLAIM:
                try:
                    return begin(one)
                except BusyError:
                    if journal.upgrade(upgrade_id_for(one)) is not None:
                        break  # it was recorded, and lost the claim
                self.wait_until_free(stream_id, max(until_seconds - self._clock.monotonic_seconds(), 0.0), on_progress)
        raise AssertionError

    def wait_until_free(self, stream_id: str, seconds: float, on_progress: Report | None = None) -> None:
        """Wait until ``holder`` is None; records nothing.

        Raises:
            StreamNotFoundError: the stream was never deployed.
            DeadlineExceededError: an upgrade still holds the stream.
        """
        seen: UpgradeView | None = None

        def look() -> bool | None:
            nonlocal seen
            with suppress(UnavailableError):
                seen = self.holder(stream_id)
                if seen is None:
                    return True
            if on_progress is not None and seen is not None:
                on_progress(f"another upgrade holds the stream: {describe_holder(seen)}")
            return None

        if poll(self._clock, look, timeout_seconds=seconds, pause_seconds=lambda: BUSY_PAUSE_SECONDS) is None:
            raise busy_too_long(stream_id, seen)

    # observe and advance

    def view(self, stream_id: str, upgrade_id: str, waits_for: str = "") -> UpgradeView:
        """The status of an upgrade. Raises InvalidRequestError: there is no such upgrade."""
        control = self._home.need_stream(stream_id)
        return UpgradeView(UpgradeJournal(control).need_state(upgrade_id), waits_for)

    def under_way(self, stream_id: str) -> UpgradeView | None:
        """The upgrade that holds the stream now, or None. Raises StreamNotFoundError."""
        control = self._home.need_stream(stream_id)
        upgrade_id = control.need_register().value.upgrade_id
        if upgrade_id is None or not UpgradeJournal(control).is_under_way(upgrade_id):
            return None
        return self.view(stream_id, upgrade_id)

    def has_work(self, stream_id: str, upgrade_id: str) -> bool:
        """Whether ``advance`` would do anything, or the upgrade has ended; writes nothing."""
        tools, state = self._tools(stream_id, upgrade_id)
        return state.is_over or isinstance(self._next(tools, state), Act)

    def look_for_work(self, condition: WaitCondition) -> WaitResult:
        """Whether ``advance`` would do anything."""
        where = condition.stream_id, condition.deployment_id
        state = self.view(*where).state
        last_seen = f"phase {state.phase}{f': {state.text}' if state.text else ''}"
        if not self.has_work(*where):
            return WaitResult("pending", last_seen=last_seen)
        return WaitResult("done", {"upgrade_id": condition.deployment_id}, last_seen=last_seen)

    def look_for_none(self, condition: WaitCondition) -> WaitResult:
        """Whether no upgrade holds the stream."""
        holder = self.holder(condition.stream_id)
        if holder is not None:
            return WaitResult("pending", last_seen=describe_holder(holder))
        return WaitResult("done", {"stream_id": condition.stream_id}, last_seen="no upgrade holds the stream")

    def advance(
        self, stream_id: str, upgrade_id: str, on_state: Callable[[UpgradeState], None] = lambda _: None
    ) -> UpgradeView:
        """Take every step that can be taken now. Idempotent; any worker may call it at any time, also two at once.

        Args:
            on_state: called with the state before each step and at the end (``views.Telling``).

        Raises:
            InvalidRequestError: there is no such upgrade.
            UnavailableError, OutcomeUnknownError, ConflictError: retry; the upgrade is where it was.
        """
        while True:
            tools, state = self._tools(stream_id, upgrade_id)
            on_state(state)
            if state.is_over:
                clear_up(tools)
                return UpgradeView(state)
            found = self._next(tools, state)
            if isinstance(found, Wait):
                return UpgradeView(state, found.text, found.pause_seconds, found.driver)
            with self._held_within_an_act(tools, state):
                found.do()

    @contextmanager
    def _held_within_an_act(self, tools: Tools, state: UpgradeState) -> Iterator[None]:
        """Prolong the lease for the time of an act whose worker, taken for gone, would find its upgrade abandoned: one
        that captures a large state is not gone. The lease of a worker that dies in the act expires by itself."""
        upgrade = tools.upgrade
        gives_up = upgrade.ends_untouched if state.has_touched_nothing else upgrade.if_abandoned == "rollback"
        lease = tools.journal.lease(upgrade.upgrade_id) if gives_up else None
        if lease is None or lease.seconds == 0.0 or self._clock.now() > lease.until_at:
            yield
            return
        with suppress(UnavailableError, OutcomeUnknownError):
            self.hold(tools.stream_id, upgrade.upgrade_id, ACT_SECONDS)
        yield
        with suppress(UnavailableError, OutcomeUnknownError):
            left_seconds = (lease.until_at - self._clock.now()).total_seconds()
            self.hold(tools.stream_id, upgrade.upgrade_id, max(LEASE_SECONDS, left_seconds))

    def run(
        self,
        stream_id: str,
        upgrade_id: str,
        timeout_seconds: float,
        on_progress: Report | None = None,
        on_step: Report | None = None,
        *,
        tells_end: bool = True,
    ) -> UpgradeView:
        """Bring an upgrade to its end.

        Args:
            timeout_seconds: how long to wait; after it the upgrade stays under way, for any caller to continue with.
            on_progress: called with what it waits for.
            on_step: called with each step, in one line.
            tells_end: report the last step as well.

        Raises:
            InvalidRequestError: there is no such upgrade.
            DeadlineExceededError: it is not over by then.
        """
        last_seen, pause_seconds, telling = "nothing yet", 0.5, Telling(on_step, tells_end=tells_end)
        keep_lease = self.keeps_lease(stream_id, upgrade_id)
        driver: LaunchHandle | None = None
        bell = Bell(None)

        def look() -> UpgradeView | None:
            nonlocal last_seen, pause_seconds, driver, bell
            keep_lease()
            try:
                view = self.advance(stream_id, upgrade_id, telling)
            except (UnavailableError, OutcomeUnknownError, ConflictError) as error:
                last_seen = str(error)
            else:
                if view.is_over:
                    return view
                last_seen, pause_seconds = view.waits_for, view.pause_seconds
                if view.driver != driver:
                    driver = view.driver
                    bell = Bell.of_launch(None if driver is None else driver.data, OF_DRIVER)
            if on_progress is not None:
                on_progress(last_seen)
            return None

        found = poll(
            self._clock,
            look,
            timeout_seconds=timeout_seconds,
            pause_seconds=lambda: pause_seconds,
            pause=lambda seconds: bell.pause(self._clock, seconds),
        )
        if found is not None:
            return found
        raise DeadlineExceededError(
            "the upgrade is not over within the timeout, and stays under way",
            stream_id=stream_id,
            upgrade_id=upgrade_id,
            timeout_seconds=timeout_seconds,
            last_seen=last_seen,
            next_step=f"`streamstate continue {stream_id}` continues with it, `cancel` abandons it.",
        )

    def settle(self, stream_id: str, upgrade_id: str, timeout_seconds: float) -> UpgradeView:
        """Advance an upgrade until it has ended, or a version runs again and its health is checked.

        For a caller that is about to leave it. Any caller can continue with the rest, and watchers do.

        Raises:
            InvalidRequestError: there is no such upgrade.
        """
        keep_lease = self.keeps_lease(stream_id, upgrade_id)

        def look() -> UpgradeView | None:
            keep_lease()
            with suppress(UnavailableError, OutcomeUnknownError, ConflictError):
                view = self.advance(stream_id, upgrade_id)
                if view.is_over or view.state.phase in _SETTLED:
                    return view
            return None

        found = poll(self._clock, look, timeout_seconds=timeout_seconds, pause_seconds=lambda: SETTLE_PAUSE_SECONDS)
        with suppress(UnavailableError, OutcomeUnknownError):
            self.leave(stream_id, upgrade_id)
        return found or self.view(stream_id, upgrade_id)

    # approve and cancel

    def approve(self, stream_id: str, upgrade_id: str, *, is_approved: bool, reason: str = "") -> Approval:
        """Approve or reject the plan of an upgrade; the first answer counts.

        Raises:
            InvalidRequestError: there is no such upgrade, it needs no approval, or another person has to approve it.
            ConflictError: it is past its plan.
        """
        tools, state = self._tools(stream_id, upgrade_id)
        facts = {"stream_id": stream_id, "upgrade_id": upgrade_id, "phase": state.phase}
        next_step = f"`streamstate cancel {stream_id}` gives it up."
        if not tools.upgrade.terms.waits_for_approval:
            raise InvalidRequestError("this upgrade needs no approval", **facts, next_step=next_step)
        if state.phase not in _BEFORE_APPROVAL and tools.journal.approval(upgrade_id) is None:
            raise ConflictError("this upgrade is past its plan", **facts, next_step=next_step)
        moment, by = self._clock.now(), self._context.requested_by
        problem = problem_of_approver(tools.upgrade, by) if is_approved else ""
        if problem:
            raise InvalidRequestError(
                problem,
                **facts,
                asked_by=tools.upgrade.requested_by,
                approved_by=by,
                next_step=f"Another person runs `streamstate approve {stream_id}`, or answers on the page.",
            )
        return tools.journal.approve(
            Approval(stream_id, upgrade_id, is_approved, by, moment, self._clock.new_uuid(), reason)
        )

    def cancel(self, stream_id: str, upgrade_id: str, *, after_stop: AfterStop, reason: str = "") -> Cancellation:
        """Cancel an upgrade; the first cancellation counts. ``advance`` then brings it to its end.

        Args:
            after_stop: if the old version was already ordered to stop: ``finish`` the upgrade, or ``rollback``.

        Raises:
            InvalidRequestError: there is no such upgrade.
        """
        tools, _ = self._tools(stream_id, upgrade_id)
        moment, by = self._clock.now(), self._context.requested_by
        return tools.journal.cancel(
            Cancellation(stream_id, upgrade_id, after_stop, by, moment, self._clock.new_uuid(), reason)
        )

    def _tools(self, stream_id: str, upgrade_id: str) -> tuple[Tools, UpgradeState]:
        control = self._home.need_stream(stream_id)
        state = UpgradeJournal(control).need_state(upgrade_id)
        return Tools(self._context, self._verbs, state.upgrade, control), state

    def _next(self, tools: Tools, state: UpgradeState) -> Wait | Act:
        return next_backward(tools, state) if state.phase in _BACKWARD else next_forward(tools, state)


def request_id_of_turn(request_id: str, number: int) -> str:
    """The id under which a request continues that lost the claim; ``number`` counts from 2."""
    return "turn-" + hashlib.sha256(f"{request_id} {number}".encode()).hexdigest()[:40]


def describe_holder(view: UpgradeView) -> str:
    """The id, phase and owner of an upgrade, in one line."""
    return f"{view.upgrade_id} {view.state.phase_for_people}, by {view.state.upgrade.requested_by}"


def busy_too_long(stream_id: str, holder: UpgradeView | None) -> DeadlineExceededError:
    """The error of a request that waited in vain for another upgrade; it recorded nothing."""
    return DeadlineExceededError(
        "another upgrade still holds the stream, so this one was not started",
        stream_id=stream_id,
        held_by=None if holder is None else holder.upgrade_id,
        last_seen="nothing" if holder is None else describe_holder(holder),
        next_step=f"Repeat the request to wait on; `streamstate status {stream_id}` shows the upgrade that holds it.",
    )
