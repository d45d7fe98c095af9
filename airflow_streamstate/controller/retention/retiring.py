"""Retires or deletes a stream, and removes what old deployments left."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import ClassVar

from airflow_streamstate.checkpoint.log import Checkpoint, crc_key_of
from airflow_streamstate.control.objects import Stored
from airflow_streamstate.control.registers import Retention
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.control.upgrade_journal import UpgradeJournal
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.decide import refuse_other_intent
from airflow_streamstate.controller.observe.observation import NOT_ENDED
from airflow_streamstate.controller.retention.kept_snapshots import Needs, needs_of
from airflow_streamstate.controller.scratch.run import ScratchRuns
from airflow_streamstate.controller.stream_guards import refuse_during_upgrade
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    DeploymentNotFoundError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.launch.interface import LOCAL
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import TERMINAL_EVENTS
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.protocol.ids import attempt_of, check_id, is_sha256, is_snapshot_of, launch_key_for, order_of
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.policies import RetentionRegister
from airflow_streamstate.protocol.records import DeploymentSpec, RequestRecord, Retirement, StreamRegister
from airflow_streamstate.snapshot.deletion import has_data
from airflow_streamstate.snapshot.location import known_places
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.transfer import delete_below, delete_many, end_uploads, keys_below


@dataclass(frozen=True)
class Retired(View):
    """A retired stream; ``objects``: how many objects this call removed."""

    form: ClassVar[str] = (
        "stream_id retired_at=retirement.retired_at retired_by=retirement.retired_by reason=retirement.reason"
        " deleted=retirement.is_deleting objects"
    )

    stream_id: str
    retirement: Retirement
    objects: int = 0


class Retiring:
    """Retires streams."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._home = context.home

    def retire(self, stream_id: str, *, reason: str = "", deletes: bool = False) -> Retired:
        """Mark a stream as retired; idempotent.

        Args:
            deletes: also delete everything of it, pinned snapshots included. This cannot be undone.

        Raises:
            StreamNotFoundError: there is no such stream (any more).
            ConflictError: it runs, or may run; or it is being deployed or upgraded.
            InvalidRequestError: with ``deletes``, where its checkpoints are in another store than this home's.
            UnavailableError: with ``deletes``, where a store of its snapshots does not answer.
        """
        control = self._home.control(stream_id)
        stored = control.register_or_lost()
        if stored is None:
            raise control.not_found()
        _ = self._home.checkpoints  # refused explicitly before anything is written
        if deletes and stored.value.deployment_id is not None:
            with suppress(DeploymentNotFoundError):  # deleted by an earlier call that was cut short
                self._home.check_place(control.spec(stored.value.deployment_id))
        retirement = stored.value.retirement
        if retirement is None or (deletes and not retirement.is_deleting):
            self._refuse_what_runs(control, stored)
            if deletes:
                self._refuse_lost_places(control)
            if retirement is None:
                retirement = Retirement(self._context.clock.now(), self._context.requested_by, reason)
            retirement = replace(retirement, is_deleting=deletes)
            marked = retirement
            self._context.update_register(
                control, lambda register: replace(register, retirement=marked, intent=None), since=stored
            )
        objects = self._delete(control) if retirement.is_deleting else 0
        return Retired(stream_id, retirement, objects)

    def _refuse_what_runs(self, control: StreamControl, stored: Stored[StreamRegister]) -> None:
        register = stored.value
        refuse_during_upgrade(control, register, None)
        refused = refuse_other_intent(register, "", self._context.clock.now())
        if refused is not None:
            raise refused.error
        if register.deployment_id is None:
            return
        needs_of(control, register, {}, None)  # raises where the records cannot be read
        seen = self._context.observer.look(control, stored, register.deployment_id)
        state = seen.state
        if state in NOT_ENDED or state == "lost":
            what = "it is unknown whether this stream has ended" if state == "lost" else f"the stream is {state}"
            raise ConflictError(
                f"{what}: only a stream that has ended can be retired",
                stream_id=control.stream_id,
                deployment_id=seen.deployment_id,
                state=state,
                next_step=f"`streamstate stop {control.stream_id}` ends it and keeps its state."
                if state != "silent"
                else f"`streamstate kill {control.stream_id}` ends its driver.",
            )
        still_runs = seen.launch_status is not None and seen.launch_status.state == "running"
        if not seen.is_closed and (still_runs or not isinstance(seen.terminal, TERMINAL_EVENTS)):
            self._context.endings.prove(control, seen)

    def _refuse_lost_places(self, control: StreamControl) -> None:
        """Raise UnavailableError unless each store of snapshots answers: a stream marked as being deleted cannot be
        deployed, and snapshots in a lost store could never be deleted."""
        for uri in known_places(control):
            try:
                self._home.places.need(control.stream_id, uri)
            except UnavailableError as error:
                raise UnavailableError(
                    "snapshots of this stream are at a place that does not answer: nothing was deleted",
                    stream_id=control.stream_id,
                    place=uri,
                    reason=str(error),
                    next_step="Mount or reach it again; where it is lost for good, retire without --delete.",
                ) from error

    def _delete(self, control: StreamControl) -> int:
        """Delete everything but the register, then the register."""
        stream_id = control.stream_id
        home, checkpoints = self._home.home, self._home.checkpoints
        for run_id in control.scratch_ids():
            ScratchRuns(self._context).give_up(stream_id, run_id)
        places, elsewhere = self._delete_elsewhere(control)
        register_key = layout.register_key(stream_id)
        stores = dict.fromkeys((checkpoints, home))
        count = sum(len(keys_below(store, f"{stream_id}/")) for store in stores)
        name = register_key.rpartition("/")[2]
        for store in stores:
            delete_below(store, stream_id, but=(name,))
        for store in dict.fromkeys((*stores, *places)):  # no later prune of this stream would
            end_uploads(store, stream_id, self._context.clock.now())
        self._home.remove_stream(stream_id, but=name)
        for place in places:  # before the name is free: the next stream of the name may use the same place
            place.delete(layout.place_record_key(stream_id))
        home.delete(register_key)
        delete_below(home, stream_id)
        return count + elsewhere

    def _delete_elsewhere(self, control: StreamControl) -> tuple[list[Store], int]:
        """Delete the snapshots in other stores. Raises UnavailableError where one does not answer; the next call goes
        on."""
        count, folder = 0, layout.snapshots_folder(control.stream_id)
        places = []
        for uri in known_places(control):
            with suppress(ConflictError):  # the place is another home's
                store = self._home.places.need_own(control, uri)
                count += len(keys_below(store, f"{folder}/"))
                delete_below(store, folder)
                places.append(store)
        return places, count


# Remove what old deployments left: checkpoints, launches, records, artifacts.
#
# A deployment older than the last known good version keeps the ends of its logs: audits and an undo read there where
# it ended, and they keep the fence against a driver that may still wake up. The oldest ones are removed entirely.
# Nothing of a deployment newer than the last known good version is removed, and no checkpoint with files that a kept
# snapshot names.

KEPT_DEPLOYMENTS = 10
"""This many of the newest deployments always stay on record."""
KEPT_UPGRADES = 20
KEPT_LAUNCHES = 3
KEPT_LOG_ENTRIES = 3
"""Entries kept of each log of a cut-down checkpoint: the last commit, a batch planned after it, and a fence."""
SILENT_SECONDS = 86_400.0
"""The driver of an old deployment without a known end counts as gone this long after its last sign of life."""
UNUSED_SECONDS = 3_600.0
"""How long an unused artifact stays: a deploy that is under way has recorded its spec by then."""


class SameStream:
    """Detects that a stream was deleted, and maybe another one of its name created, since a prune started.

    ``spec`` is the record of the deployment that was current then: no prune removes it within ten deployments.
    """

    def __init__(self, control: StreamControl, spec: DeploymentSpec) -> None:
        self._control = control
        self._spec = spec

    def check(self) -> None:
        """Call this right before each deletion. Raises ConflictError where the stream is another one."""
        before = self._spec
        try:
            now = self._control.spec(before.deployment_id)
        except DeploymentNotFoundError:
            now = None
        if now is None or now.identity != before.identity:
            raise ConflictError(
                "the stream was deleted while it was pruned",
                stream_id=before.stream_id,
                deployment_id=before.deployment_id,
                created_at=before.created_at,
                next_step="Nothing is left to prune of it; prune again if another stream has its name now.",
            )


@dataclass(frozen=True)
class Leftover(View):
    """Something that a prune removes: one word for its kind, its id, and the reason."""

    what: str
    which: str
    why: str


class Leftovers:
    """Finds and removes what is left over of one stream.

    Args:
        kept: the snapshots that are kept, as of now.
        current: the current deployment.
        known_good: the last known good version, or None: then nothing of deployments is removed.
        same: checks that the stream is still the same one.
        is_dry: only report what would be removed.
        is_blind: an unreadable manifest may name files of any deployment's checkpoint: nothing of deployments is
            removed.
    """

    def __init__(
        self,
        context: ControllerContext,
        control: StreamControl,
        needs: Needs,
        kept: Collection[SnapshotManifest],
        current: str,
        known_good: str | None,
        same: SameStream,
        *,
        is_dry: bool,
        is_blind: bool = False,
    ) -> None:
        self._is_blind = is_blind
        self._context = context
        self._home = context.home
        self._control = control
        self._stream_id = control.stream_id
        self._needs = needs
        self._owners = {manifest.deployment_id for manifest in kept}
        self._referred = {one for manifest in kept for one in manifest.referred_deployments}
        self._current = current
        self._known_good = known_good
        self._same = same
        self._is_dry = is_dry
        self._now = context.clock.now()
        self._found: list[Leftover] = []

    def remove(self) -> list[Leftover]:
        """Remove what is left over; the next call finishes one that was cut short."""
        if self._needs.is_moving:
            return []
        ids = self._control.deployment_ids()
        older = [] if self._is_blind else [one for one in ids if self._is_behind(one)]
        gone = [one for one in older if self._may_go(one, ids)]
        for deployment_id in older:
            if deployment_id in gone:
                self._remove_deployment(deployment_id)
            elif deployment_id not in self._referred:
                self._cut_down(deployment_id)
        self._remove_launches(self._current, KEPT_LAUNCHES)
        kept = [one for one in ids if one not in gone]
        self._remove_abandoned(kept)
        self._remove_rehearsals(kept)
        self._remove_upgrades()
        self._remove_requests(kept)
        self._remove_artifacts(kept)
        return self._found

    def _tell(self, what: str, which: str, why: str) -> bool:
        """Note a leftover; whether to remove it now."""
        self._found.append(Leftover(what, which, why))
        if not self._is_dry:
            self._same.check()
        return not self._is_dry

    # deployments

    def _is_behind(self, deployment_id: str) -> bool:
        if self._known_good is None or deployment_id == self._current:
            return False
        return order_of(deployment_id) < order_of(self._known_good)

    def _may_go(self, deployment_id: str, ids: list[str]) -> bool:
        if deployment_id in ids[-KEPT_DEPLOYMENTS:]:
            return False
        if deployment_id in self._needs.deployments or deployment_id in {*self._owners, *self._referred}:
            return False
        return self._has_ended(deployment_id)

    def _has_ended(self, deployment_id: str) -> bool:
        """Whether no driver of it can wake up and find its fence gone: its terminal event is there, its launcher proves
        its end, or it has been silent for a day."""
        try:
            seen = self._context.observer.observe(self._stream_id, deployment_id)
        except (DataError, DeploymentNotFoundError):
            return True  # never started, or not readable by a driver either
        if isinstance(seen.terminal, TERMINAL_EVENTS):
            return True
        if seen.launch_status is not None and seen.launch_status.has_ended:
            return True
        return self._now - seen.silent_since_at > timedelta(seconds=SILENT_SECONDS)

    def _remove_deployment(self, deployment_id: str) -> None:
        why = f"older than the {KEPT_DEPLOYMENTS} newest, and than the last known good version"
        if not self._tell("deployment", deployment_id, why):
            return
        folder = layout.deployment_folder(self._stream_id, deployment_id)
        self._forget_drivers(deployment_id)
        self._home.remove_launches(folder)
        if self._home.checkpoints is not self._home.home:
            delete_below(self._home.checkpoints, folder)
        # The spec, which makes it a deployment, goes last, so that the next pass continues with one that was cut short.
        delete_below(self._home.home, folder, but=("spec.json",))
        delete_below(self._home.home, folder)

    def _remove_abandoned(self, kept: Collection[str]) -> None:
        """Records of partial snapshots of deployments that are gone: no writer of those can wake up.

        Looks for all of them, since the pass that removed their deployment may have been cut short.
        """
        for snapshot_id in self._control.snapshot_ids():
            if self._is_dry or any(is_snapshot_of(snapshot_id, deployment_id) for deployment_id in kept):
                continue
            with suppress(DataError):
                if self._control.manifest(snapshot_id) is None:
                    folder = layout.snapshot_folder(self._stream_id, snapshot_id)
                    if not has_data(self._home.checkpoints, folder):
                        self._same.check()
                        for store in dict.fromkeys((self._home.checkpoints, self._home.home)):
                            delete_below(store, folder)

    def _cut_down(self, deployment_id: str) -> None:
        """Remove its checkpoints except the ends of their logs, what was being built or tried, and older launches."""
        folder = layout.deployment_folder(self._stream_id, deployment_id)
        keys = [*self._keys_beyond_ends(deployment_id)]
        for room in ("building", "trials"):
            keys += keys_below(self._home.checkpoints, f"{folder}/{room}/")
        why = f"{self._known_good} is known good: the ends of its logs are enough"
        if keys and self._tell("checkpoints", deployment_id, why):
            delete_many(self._home.checkpoints, keys)
            for room in ("building", "trials"):
                delete_below(self._home.checkpoints, f"{folder}/{room}")
            for name in self._home.checkpoints.list_folders(f"{folder}/checkpoints"):
                for part in ("state", "sources"):
                    delete_below(self._home.checkpoints, f"{folder}/checkpoints/{name}/{part}")
        self._remove_launches(deployment_id, 1)

    def _keys_beyond_ends(self, deployment_id: str) -> Iterator[str]:
        folder = layout.checkpoints_folder(self._stream_id, deployment_id)
        for name in self._home.checkpoints.list_folders(folder):
            checkpoint = Checkpoint(self._home.checkpoints, f"{folder}/{name}")
            kept = {checkpoint.metadata_key}
            kept |= {checkpoint.offset_key(one) for one in checkpoint.offset_ids()[-KEPT_LOG_ENTRIES:]}
            kept |= {checkpoint.commit_key(one) for one in checkpoint.commit_ids()[-KEPT_LOG_ENTRIES:]}
            kept |= {crc_key_of(key) for key in kept}
            yield from (key for key in keys_below(self._home.checkpoints, f"{checkpoint.prefix}/") if key not in kept)

    def _forget_drivers(self, deployment_id: str) -> None:
        """Have launchers remove what clusters still keep of its drivers; one that is away keeps it."""
        folder = f"{layout.deployment_folder(self._stream_id, deployment_id)}/launches/"
        for key in keys_below(self._home.home, folder):
            if not key.endswith(".json"):
                continue
            with suppress(StreamStateError):
                record = self._control.launch(deployment_id, key.removeprefix(folder).removesuffix(".json"))
                if record is not None and record.launcher != LOCAL:
                    spec = self._control.spec(deployment_id)
                    self._context.launcher.forget(self._context.drivers.places.handle(spec, record))

    def _remove_launches(self, deployment_id: str, kept: int) -> None:
        """Remove the files of its older attempts on this machine, logs included; the records stay."""
        folder = self._home.launch_path(f"{layout.deployment_folder(self._stream_id, deployment_id)}/launches")
        attempts = []
        for path in folder.iterdir() if folder.is_dir() else ():
            with suppress(StreamStateError):
                if path.is_dir():
                    attempts.append(attempt_of(path.name))
        for attempt in sorted(attempts)[:-kept]:
            key = launch_key_for(deployment_id, attempt)
            if self._tell("launch", key, f"not one of the last {kept} of its deployment"):
                self._home.remove_launch(layout.launch_folder(self._stream_id, deployment_id, key))

    # what is not a deployment's own

    def _remove_rehearsals(self, kept: Collection[str]) -> None:
        """Remove rehearsals of drivers that became an attempt of a deployment that is gone."""
        for rehearsal_id in self._control.scratch_ids():
            with suppress(DataError):
                handover = self._control.handover(rehearsal_id)
                if handover is None or handover.deployment_id in kept:
                    continue
                why = f"its driver became an attempt of {handover.deployment_id}, which is gone"
                if self._tell("rehearsal", rehearsal_id, why):
                    folder = layout.deployment_folder(self._stream_id, rehearsal_id)
                    self._home.remove_launches(folder)
                    for store in dict.fromkeys((self._home.checkpoints, self._home.home)):
                        delete_below(store, folder)

    def _remove_upgrades(self) -> None:
        journal = UpgradeJournal(self._control)
        over: list[tuple[datetime, str]] = []
        halves: list[str] = []
        for upgrade_id in journal.ids():
            with suppress(DataError):
                state = journal.state(upgrade_id)
                if state is not None and state.is_over:
                    over.append((state.upgrade.created_at, upgrade_id))
                elif journal.upgrade(upgrade_id) is None and journal.steps(upgrade_id):
                    halves.append(upgrade_id)  # a pass that removed it was cut short
        for upgrade_id in (*halves, *(one for _, one in sorted(over)[:-KEPT_UPGRADES])):
            if self._tell("upgrade", upgrade_id, f"over, and not one of the last {KEPT_UPGRADES}"):
                # Its record goes first: a record without steps would look like an upgrade that is about to start.
                self._home.home.delete(layout.upgrade_key(self._stream_id, upgrade_id))
                delete_below(self._home.home, layout.deployment_folder(self._stream_id, upgrade_id))

    def _remove_requests(self, kept: Collection[str]) -> None:
        """Remove the requests of deployments that are gone."""
        store, prefix = self._home.home, f"{layout.idempotency_folder(self._stream_id)}/"
        for key in keys_below(store, prefix):
            request_id = key[len(prefix) :].removesuffix(".json")
            with suppress(StreamStateError):
                check_id(request_id, "request id")
                record = self._control.request(request_id)
                if record is not None and self._is_forgotten(record, kept):
                    why = f"it was about {record.deployment_id}, which is gone"
                    if self._tell("request", request_id, why):
                        store.delete(key)

    def _is_forgotten(self, record: RequestRecord, kept: Collection[str]) -> bool:
        if self._known_good is None or order_of(record.deployment_id) >= order_of(self._known_good):
            return False
        return record.deployment_id not in kept

    def _remove_artifacts(self, kept: Collection[str]) -> None:
        """Note, and some time later remove, artifacts that no deployment, upgrade or rehearsal on record uses."""
        used = self._used_artifacts(kept)
        if used is None:
            return
        there = filter(is_sha256, self._home.home.list_folders(layout.artifacts_folder(self._stream_id)))
        unused = [one for one in there if one not in used]
        retention = Retention(self._control, self._context.requested_by)
        noted = retention.read().unused_artifacts
        aged = self._now - timedelta(seconds=UNUSED_SECONDS)
        for sha256 in unused:
            if noted.get(sha256, self._now) <= aged and self._tell(
                "artifact", sha256, "no deployment on record runs it"
            ):
                delete_below(self._home.home, f"{layout.artifacts_folder(self._stream_id)}/{sha256}")
        if self._is_dry:
            return
        left = {one: noted.get(one, self._now) for one in unused if noted.get(one, self._now) > aged}

        def edit(register: RetentionRegister) -> RetentionRegister:
            return register if dict(register.unused_artifacts) == left else replace(register, unused_artifacts=left)

        retention.change(edit)

    def _used_artifacts(self, kept: Collection[str]) -> set[str] | None:
        """None where a record, which may name any artifact, cannot be read."""
        found = set[str]()
        journal = UpgradeJournal(self._control)
        for upgrade_id in journal.ids():
            try:
                upgrade = journal.upgrade(upgrade_id)
            except DataError:
                return None
            if upgrade is not None:
                migration = None if upgrade.rewrite is None else upgrade.rewrite.migration
                named = (*upgrade.target.artifacts, *filter(None, [migration]))
                found |= {artifact.sha256 for artifact in named}
        for owner in (*kept, *self._control.scratch_ids()):
            try:
                spec = self._control.with_found_modules(self._control.spec(owner))
            except DeploymentNotFoundError:
                continue
            except DataError:
                return None
            found |= {artifact.sha256 for artifact in spec.artifacts}
        return found
