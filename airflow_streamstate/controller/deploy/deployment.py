"""The verb ``deploy``: decides which deployment a request becomes, writes its records, and launches it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from airflow_streamstate.connectors.registry import known_sources, sending_once
from airflow_streamstate.control.objects import Stored
from airflow_streamstate.control.registers import AlertBook
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.decide import (
    Became,
    Begin,
    Refused,
    Start,
    TakeOver,
    UseSnapshot,
    decide_expected_snapshot,
    decide_predecessor,
    decide_request,
)
from airflow_streamstate.controller.deploy.attempts import Attempts, audit_notes, someone_was_first
from airflow_streamstate.controller.deploy.start_plan import (
    decide_elsewhere,
    leave_behind,
    marked,
    moving,
    refuse_spark,
    refuse_used,
    renaming,
)
from airflow_streamstate.controller.deploy.takeover import (
    ResumedError,
    built_checkpoints,
    carried_queries,
    fence,
    lost_with_start,
    take_over,
)
from airflow_streamstate.controller.observe.observation import Observation, pending_drain, refuse_old_end
from airflow_streamstate.controller.observe.views import DeploymentView
from airflow_streamstate.controller.request.patch import beside_checkpoints, in_working_folder
from airflow_streamstate.controller.request.requests import Change, DeployRequest
from airflow_streamstate.controller.stream_guards import (
    check_same_request,
    create_unadopted,
    refuse_during_upgrade,
    refuse_retired,
)
from airflow_streamstate.controller.wait.waiting import retire_commands
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    DeploymentNotFoundError,
    InputLostError,
    ObjectExistsError,
    StreamStateError,
    VersionConflictError,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.events import QueryStarted
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.policies import RetentionPolicy
from airflow_streamstate.protocol.records import DeploymentSpec, Intent, RequestRecord, StartPlan, StreamRegister
from airflow_streamstate.protocol.settings import default_settings
from airflow_streamstate.snapshot.verify import check_before_start

# One try of a deploy, from the register as it was read to the launch.
#
# Order of writes, each safe to repeat with the same request id (Laws 1 and 2): the request's record, the intent in
# the register, the snapshot at the predecessor's end, ``spec.json``, the register's move, the launch.

log = logging.getLogger(__name__)

OnStart = Callable[[DeploymentView], None]


def refuse_sent_once(request: Change, manifest: SnapshotManifest) -> tuple[str, ...]:
    """Check that no query continues from an offset of a source that sends each row once.

    Returns:
        One note for each such source that ``accept_lost_input`` names.

    Raises:
        InputLostError: a query has such a source, and ``accept_lost_input`` does not name it.
    """
    notes = []
    for name, query in sorted(manifest.queries.items()):
        lines = request.terms.offsets.get(name, query.position.end_offsets)
        found = sending_once(query.identities, lines, known_sources().connectors)
        if not found:
            continue
        if name not in request.terms.accept_lost_input:
            raise InputLostError(
                "a source of this query cannot be read again, so no start can continue from its offset",
                query_name=name,
                sources=found,
                snapshot_id=manifest.snapshot_id,
                offsets=list(lines),
                next_step=f"Pass --accept-lost-input {name}: it then reads what is sent from its start on, and what was"
                " sent since, or was read and not committed, is lost. A fresh start leaves its state behind.",
            )
        notes += [
            f"query {name} reads {what} from its start on ({why}): what was sent since is lost, as was accepted"
            for what, why in sorted(found.items())
        ]
    return tuple(notes)


@dataclass(frozen=True)
class LeftBehind:
    """Where the stream stood before deployments that were started fresh and ran no query.

    Attributes:
        deployment_id: the last deployment that ran a query or started from a snapshot.
        snapshot_id: its newest readable snapshot, else the one that it started from; None for neither.
    """

    deployment_id: str
    snapshot_id: str | None


def left_behind(control: StreamControl, seen: Observation | None) -> LeftBehind | None:
    """The last position before ``seen``, a deployment that ended without one; None if no record names one."""
    start: StartPlan | None = None if seen is None else seen.spec.start
    while start is not None and start.mode == "fresh" and start.predecessor_id is not None:
        deployment_id = start.predecessor_id
        events = (entry.event for entry in control.journal(deployment_id).events())
        if any(isinstance(event, QueryStarted) for event in events):
            return LeftBehind(deployment_id, _newest_snapshot(control, deployment_id))
        try:
            start = control.spec(deployment_id).start
        except DeploymentNotFoundError:  # pruned: a deployment with a position is never pruned
            return None
        if start.mode != "fresh":  # for example the deployment of an adoption
            return LeftBehind(deployment_id, _newest_snapshot(control, deployment_id) or start.snapshot_id)
    return None


def refuse_to_fall_back(
    control: StreamControl, request: DeployRequest, seen: Observation | None, end: SnapshotManifest | None
) -> None:
    """Check that a deploy does not start with nothing unless it asks for that (Law 5).

    Raises:
        ConflictError: ``seen``, the predecessor, was started fresh and ran no query, but the stream had a position
            before it.
    """
    if request.terms.start == "fresh" or end is None or end.queries:
        return
    found = left_behind(control, seen)
    if seen is None or found is None:
        return
    way = f"`streamstate rollback {seen.stream_id} --snapshot {found.snapshot_id or 'ID'}` continues from there"
    raise ConflictError(
        "the deployment before was started fresh and ran no query; the stream has a position from before it, and does"
        " not start with nothing again by itself",
        stream_id=seen.stream_id,
        deployment_id=seen.deployment_id,
        position_of=found.deployment_id,
        snapshot_id=found.snapshot_id,
        next_step=f"{way}; --start fresh gives the position up.",
    )


def _newest_snapshot(control: StreamControl, deployment_id: str) -> str | None:
    manifests = (control.readable_manifest(one) for one in control.snapshot_ids())
    of_it = [
        found for found in manifests if found is not None and found.deployment_id == deployment_id and found.queries
    ]
    return max(of_it, key=lambda found: found.taken_at).snapshot_id if of_it else None


class Deploying:
    """One try of a deploy; ``begin``: which deployment it becomes."""

    def __init__(
        self,
        context: ControllerContext,
        attempts: Attempts,
        control: StreamControl,
        request: DeployRequest,
        request_id: str,
        begin: Begin,
    ) -> None:
        self._context = context
        self._attempts = attempts
        self._home = context.home
        self._clock = context.clock
        self._control = control
        self._request = request
        self._version = request.settled(default_settings(context.home.home.uri))
        self._request_id = request_id
        self._begin = begin
        self._wanted = self._spec(StartPlan(mode="fresh"))  # for all that does not depend on the start
        self._held: Stored[StreamRegister] | None = None
        self._checked: tuple[str, tuple[str, ...]] | None = None

    def run(self, stored: Stored[StreamRegister] | None, on_start: OnStart) -> DeploymentView:
        """From the register as it was read to the launch.

        Args:
            on_start: gets the start before the register moves.

        Raises:
            VersionConflictError: another writer moved the register in the meantime.
            StreamStateError: as ``Controller.deploy``.
        """
        predecessor = self._observe_predecessor(stored)
        before = None if predecessor is None else predecessor.spec.version
        self._version = in_working_folder(self._version, before)
        self._wanted = self._spec(StartPlan(mode="fresh"))
        if predecessor is not None and self._request.terms.start != "fresh":
            self._home.check_place(predecessor.spec)
            if not self._undoes:
                refuse_spark(self._home, self._control, self._context.drivers, self._wanted, predecessor)
        end = self._decide_end(predecessor)
        # All refusals that can be known by now come before the first record.
        kept = self._kept_end(end)
        if predecessor is not None and self._request.terms.start != "fresh":
            refuse_old_end(predecessor, kept, self._request.terms.max_snapshot_age_seconds, self._clock.now())
        if end is None or kept is not None or self._request.terms.start == "fresh":
            self._decide_start(predecessor, self._beginning_of(predecessor, kept))
        self._context.drivers.check(self._wanted, 1)
        self._refuse_left_checkpoints(stored)
        place = self._context.drivers.place_note(self._wanted)
        self._home.begin(self._context.requested_by, has_stream=stored is not None)
        self._home.places.claim(self._control, self._wanted.version.snapshots)
        self._request.pin(self._home.guarded)
        self._context.drivers.check_pinned(self._wanted)
        self._record()
        stored = self._intend(stored)
        try:
            stored, manifest = self._end_of(stored, predecessor, end, kept)
            manifest = self._beginning_of(predecessor, manifest)
            start = self._decide_start(predecessor, manifest)
            if predecessor is not None:
                audit = audit_notes(self._home, self._control, predecessor)
                start = replace(start, notes=(*start.notes, *audit))
        except StreamStateError:
            self._withdraw_intent(self._held or stored)
            raise
        spec = self._create_spec(start.plan)
        notes = replace(self._request, version=self._version).notes(before)
        start = replace(start, notes=(*start.notes, *notes))
        if place:
            start = replace(start, notes=(*start.notes, place))
        on_start(DeploymentView(spec.stream_id, spec.deployment_id, 1, "launching", spec.start, start.notes))
        if self._request.stream.alert_rules:
            AlertBook(self._control, self._context.requested_by).change_rules(self._request.stream.alert_rules)
        self._update(
            stored,
            fencing_token=self._begin.fencing_token,
            deployment_id=self._begin.deployment_id,
            attempt=1,
            attempt_mode="run",
            attempt_reason="",
            attempt_accepts_hazards=False,
            intent=None,
            retirement=None,
            restart_policy=stored.value.restart_policy.changed(self._request.stream.restart_policy),
            ownership=stored.value.ownership.changed(self._request.stream.owner, self._request.stream.labels),
            retention=self._retention_after(stored.value),
            restarts=None,
        )
        if predecessor is not None:
            retire_commands(self._control, predecessor.deployment_id)
        self._context.drivers.start(self._control, spec, 1, self._request.rehearsal_id)
        return self._attempts.view(spec.stream_id, spec.deployment_id, start.notes)

    def _retention_after(self, register: StreamRegister) -> RetentionPolicy | None:
        asked = self._request.stream.retention
        return register.retention if asked is None else RetentionPolicy.of(asked)

    def _observe_predecessor(self, stored: Stored[StreamRegister] | None) -> Observation | None:
        if stored is None or stored.value.deployment_id is None:
            return None
        return self._context.observer.look(self._control, stored, stored.value.deployment_id)

    def _refuse_left_checkpoints(self, stored: Stored[StreamRegister] | None) -> None:
        try:
            self._home.refuse_left_checkpoints(self._control, self._begin.deployment_id)
        except ConflictError:
            if self._control.register() != stored:  # they belong to the deployment of a different controller
                raise VersionConflictError(
                    "another writer moved the stream", stream_id=self._control.stream_id
                ) from None
            raise

    def _decide_end(self, predecessor: Observation | None) -> UseSnapshot | TakeOver | None:
        if predecessor is None:
            return None
        drain = pending_drain(predecessor, self._control.journal(predecessor.deployment_id).commands())
        decision = decide_predecessor(predecessor, self._request, drain)
        if isinstance(decision, Refused):
            raise decision.error
        unexpected = decide_expected_snapshot(self._request, predecessor.deployment_id, decision.snapshot_id)
        if unexpected is not None:
            self._control.need_manifest(str(self._request.terms.snapshot_id))  # raises if that snapshot does not exist
            raise unexpected.error
        return decision

    def _kept_end(self, end: UseSnapshot | TakeOver | None) -> SnapshotManifest | None:
        if not isinstance(end, UseSnapshot):
            return None
        manifest = self._control.manifest(end.snapshot_id)
        return self._control.need_manifest(end.snapshot_id) if manifest is None and end.is_drained else manifest

    def _decide_start(self, predecessor: Observation | None, manifest: SnapshotManifest | None) -> Start:
        predecessor_id = None if predecessor is None else predecessor.deployment_id
        refuse_to_fall_back(self._control, self._request, predecessor, manifest)
        carried = carried_queries(self._control, predecessor, manifest)
        decision = decide_elsewhere(self._home, self._request, predecessor_id, manifest, carried)
        if isinstance(decision, Refused):
            raise decision.error
        if self._request.returns is not None and predecessor_id is not None:
            decision = replace(decision, plan=marked(decision.plan, self._request.returns, predecessor_id))
        before = None if predecessor is None else predecessor.spec.start
        decision = renaming(decision, before, self._request.terms.rename_queries, manifest)
        decision = moving(decision, self._request.terms.move_sources, manifest)
        if manifest is not None and decision.plan.snapshot_id is not None:
            lost = () if predecessor is None else lost_with_start(self._home, self._control, predecessor, manifest)
            once = refuse_sent_once(self._request, manifest)
            return replace(decision, notes=(*decision.notes, *once, *lost, *self._check(manifest)))
        return decision

    def _check(self, manifest: SnapshotManifest) -> tuple[str, ...]:
        """Verify the snapshot's data once; notes on what could not be read."""
        if self._checked is None or self._checked[0] != manifest.snapshot_id:
            unread = check_before_start(self._control, self._home.places.of(manifest), manifest)
            self._checked = manifest.snapshot_id, () if unread is None else (unread.describe(manifest.snapshot_id),)
        return self._checked[1]

    def _record(self) -> None:
        if not self._begin.is_new:
            return
        record = RequestRecord(
            request_id=self._request_id,
            stream_id=self._control.stream_id,
            verb="deploy",
            request_digest=self._request.digest,
            deployment_id=self._begin.deployment_id,
            write_id=self._clock.new_uuid(),
            created_at=self._clock.now(),
        )
        try:
            self._control.create_request(record)
        except ObjectExistsError:
            # The same request runs twice at once: the next try reads what the other one recorded.
            raise VersionConflictError(
                "this request is being recorded by another", request_id=self._request_id
            ) from None

    def _intend(self, stored: Stored[StreamRegister] | None) -> Stored[StreamRegister]:
        """Write the intent into the register, before anything of the predecessor is touched (1a.8)."""
        intent = Intent(
            request_id=self._request_id,
            deployment_id=self._begin.deployment_id,
            requested_at=self._clock.now(),
            requested_by=self._context.requested_by,
        )
        if stored is None:
            register = StreamRegister(
                stream_id=self._control.stream_id,
                fencing_token=0,
                deployment_id=None,
                attempt=0,
                attempt_mode="run",
                attempt_reason="",
                intent=intent,
                **self._context.signed(),
            )
            try:
                return create_unadopted(self._control, register)
            except ObjectExistsError:
                raise VersionConflictError("the stream has just been created", stream_id=register.stream_id) from None
        return self._update(stored, intent=intent)

    def _update(self, stored: Stored[StreamRegister], **changes: Any) -> Stored[StreamRegister]:
        return self._context.update_register(self._control, lambda register: replace(register, **changes), since=stored)

    def _withdraw_intent(self, stored: Stored[StreamRegister]) -> None:
        try:
            self._update(stored, intent=None)
        except StreamStateError as error:
            log.info("the intent of a refused deploy stays in the register until it expires: %s", error)

    def _end_of(
        self,
        stored: Stored[StreamRegister],
        predecessor: Observation | None,
        end: UseSnapshot | TakeOver | None,
        kept: SnapshotManifest | None,
    ) -> tuple[Stored[StreamRegister], SnapshotManifest | None]:
        """The snapshot at the predecessor's end, taken now if it is missing (1a.9)."""
        if predecessor is None or end is None or kept is not None:
            return stored, kept
        self._context.endings.prove(self._control, predecessor, assume_dead=self._request.terms.assume_dead)
        # The proof may have outlasted the intent: write it again, which fails where another writer moved the register.
        held = self._held = self._intend(stored)

        def still_ours() -> None:
            found = self._control.register()
            if found is not None and found.version == held.version:
                return
            is_resumed = (
                found is not None
                and found.value.intent is None
                and found.value.deployment_id == predecessor.deployment_id
                and found.value.attempt > predecessor.attempt
            )
            raise (ResumedError if is_resumed else VersionConflictError)(
                "another writer moved the stream", stream_id=predecessor.stream_id
            )

        if self._request.terms.start == "fresh":
            with contextlib.suppress(DataError):  # a fresh start needs nothing of a damaged log
                checkpoints = built_checkpoints(self._home, predecessor)
                fence(checkpoints, predecessor, self._request_id, self._clock, still_ours)
            return held, None
        if self._undoes:
            leave_behind(self._home, self._control, predecessor, end.snapshot_id, self._request_id, still_ours)
            return held, None
        manifest = take_over(
            self._home,
            self._control,
            predecessor,
            end.snapshot_id,
            self._request_id,
            may_discard=self._request.terms.allow_state_loss,
            still_ours=still_ours,
            kept_at=self._wanted.version.snapshots,
        )
        return held, manifest

    @property
    def _undoes(self) -> bool:
        """Whether it goes back to an older snapshot and undoes later output."""
        return self._request.returns is not None and self._request.returns.undoes

    def _beginning_of(self, predecessor: Observation | None, end: SnapshotManifest | None) -> SnapshotManifest | None:
        """The snapshot to start from: the predecessor's beginning for a rollback to it, else its end."""
        returns = self._request.returns
        if returns is None or predecessor is None:
            return end
        beginning = self._control.need_manifest(returns.snapshot_id)
        if not returns.undoes and end is not None:
            refuse_used(predecessor, beginning, end)
        return beginning

    def _spec(self, start: StartPlan) -> DeploymentSpec:
        checkpoints_uri = self._home.checkpoints.uri
        return DeploymentSpec(
            stream_id=self._control.stream_id,
            deployment_id=self._begin.deployment_id,
            fencing_token=self._begin.fencing_token,
            version=beside_checkpoints(self._version, checkpoints_uri),
            start=start,
            checkpoints_uri=checkpoints_uri,
            request_id=self._request_id,
            requested_by=self._context.requested_by,
            reason=self._request.reason,
            created_at=self._clock.now(),
        )

    def _create_spec(self, start: StartPlan) -> DeploymentSpec:
        spec = self._spec(start)
        try:
            self._control.create_spec(spec)
        except ObjectExistsError:
            there = self._context.observer.spec(self._control, spec.deployment_id)
            if there.request_id != self._request_id:
                raise taken(there) from None
            if there.start != spec.start:
                raise ConflictError(
                    "the stream has moved on since this request was started",
                    deployment_id=there.deployment_id,
                    start_then=there.start.snapshot_id,
                    start_now=spec.start.snapshot_id,
                    next_step="Deploy with a new request id.",
                ) from None
            return there
        return spec


def taken(spec: DeploymentSpec) -> ConflictError:
    """The error of a deploy whose deployment id another deploy took first."""
    return ConflictError(
        "another deploy was first",
        deployment_id=spec.deployment_id,
        deployed_by=spec.requested_by,
        deployed_at=spec.created_at,
        next_step="Check whether it is the version that you want; if not, deploy again.",
    )


TRIES = 3


class Deployer:
    """Makes a script the current deployment of a stream."""

    def __init__(self, context: ControllerContext, attempts: Attempts) -> None:
        self._context = context
        self._attempts = attempts

    def deploy(
        self,
        request: DeployRequest,
        request_id: str,
        on_start: OnStart,
        *,
        upgrade_id: str | None = None,
        until_finished: bool = False,
    ) -> DeploymentView:
        """As ``Controller.deploy``; ``upgrade_id``: the upgrade that this is a step of."""
        control = self._context.home.control(request.stream_id, begins=True)
        _ = self._context.home.checkpoints  # raises where they cannot be opened, before anything is written
        for _try in range(TRIES):
            record = control.request(request_id)
            if record is not None:
                check_same_request(record, request.digest)
            stored = control.register_or_lost()
            register = None if stored is None else stored.value
            decision = decide_request(record, register, request_id, self._context.clock.now())
            if isinstance(decision, Refused):
                raise decision.error
            if upgrade_id is not None or isinstance(decision, Begin):
                refuse_during_upgrade(control, register, upgrade_id)
            if isinstance(decision, Became):
                return self._became(control, decision.deployment_id, request_id, request.rehearsal_id, until_finished)
            refuse_retired(register, revive=request.terms.revive)
            try:
                deploying = Deploying(self._context, self._attempts, control, request, request_id, decision)
                return deploying.run(stored, on_start)
            except VersionConflictError:
                continue
        raise someone_was_first(control)

    def _became(
        self,
        control: StreamControl,
        deployment_id: str,
        request_id: str,
        rehearsal_id: str | None,
        until_finished: bool,
    ) -> DeploymentView:
        seen = self._context.observer.observe(control.stream_id, deployment_id)
        if seen.spec.request_id != request_id:
            raise taken(seen.spec)
        if seen.is_unlaunched and seen.spec.start.predecessor_id is not None:
            retire_commands(control, seen.spec.start.predecessor_id)
        return self._attempts.go_on(control, seen, rehearsal_id, until_finished=until_finished)
