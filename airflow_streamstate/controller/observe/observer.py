"""Reads of a deployment, before every decision; what cannot change is read once."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.journal import NumberedEvent
from airflow_streamstate.control.objects import Remembered, Stored
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.drivers.driver_places import DriverPlaces, awaits_handover
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observation import (
    ENDED,
    FENCED_STATUS,
    Observation,
    with_believed_end,
)
from airflow_streamstate.errors import (
    DeploymentNotFoundError,
    InvalidRequestError,
    MalformedMessageError,
    StillReadingError,
    StreamStateError,
    UnavailableError,
    UntrustedRecordError,
)
from airflow_streamstate.launch.interface import LOCAL, LaunchHandle, LaunchStatus
from airflow_streamstate.launch.launchers import Launchers
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.ids import launch_key_for
from airflow_streamstate.protocol.positions import Heartbeat
from airflow_streamstate.protocol.records import Claim, DeploymentSpec, StreamRegister
from airflow_streamstate.store.base import most_events
from airflow_streamstate.store.local import LocalStore

MAX_REMEMBERED = 4096


@dataclass
class _Beat:
    """What this process has seen of the last heartbeat of an attempt, in its own monotonic seconds.

    Attributes:
        at: the heartbeat's own time, which distinguishes it from others.
        first_seen: when this process saw it first.
        not_before: the last poll at which another one was there: it was written after that. None for no such poll.
        last_seen: the last poll.
    """

    at: datetime
    first_seen: float
    not_before: float | None
    last_seen: float


class Observer:
    """Reads deployments. Specs, claims, launches and events never change once written, so each is read once.

    A stream may be deleted and created again under its name, with deployments of the same ids. So a spec is read again
    where the register has changed; where it is another spec, the cache of that deployment is dropped.
    """

    def __init__(self, home: Home, launcher: Launchers, clock: Clock) -> None:
        self._home = home
        self._launcher = launcher
        self._places = DriverPlaces(home, launcher)
        self._clock = clock
        self._guard = threading.Lock()
        self._registers: Remembered[tuple[str, str], str] = Remembered(MAX_REMEMBERED)
        self._specs: Remembered[tuple[str, str], tuple[str, DeploymentSpec]] = Remembered(MAX_REMEMBERED)
        self._events: Remembered[tuple[str, str], tuple[NumberedEvent, ...]] = Remembered(MAX_REMEMBERED)
        self._claims: Remembered[tuple[str, str], Claim] = Remembered(MAX_REMEMBERED)
        self._signs: Remembered[tuple[str, str], tuple[datetime | None, float]] = Remembered(MAX_REMEMBERED)
        self._handles: Remembered[tuple[str, str], LaunchHandle] = Remembered(MAX_REMEMBERED)
        self._beats: Remembered[tuple[str, str], _Beat] = Remembered(MAX_REMEMBERED)

    def observe(self, stream_id: str, deployment_id: str | None = None, *, to_be_shown: bool = False) -> Observation:
        """Look at a deployment, by default the current one; ``to_be_shown`` as in ``look``.

        Raises:
            StreamNotFoundError, DeploymentNotFoundError: it does not exist.
            UnavailableError: as ``look``.
        """
        control = self._home.control(stream_id)
        stored = control.need_register()
        deployment_id = deployment_id or str(stored.value.deployment_id)
        return self.look(control, stored, deployment_id, to_be_shown=to_be_shown)

    def look(
        self, control: StreamControl, stored: Stored[StreamRegister], deployment_id: str, *, to_be_shown: bool = False
    ) -> Observation:
        """Look at a deployment, given a register that was just read.

        Args:
            to_be_shown: nothing is done by what is seen, so a launch that is not recorded and that the launcher cannot
                find now is unknown, no error.

        Raises:
            DeploymentNotFoundError: it does not exist.
            MalformedMessageError: the register names it, and its record is gone.
            UnavailableError: the home does not answer; or the launcher does not, of a launch that is not recorded.
        """
        is_current = stored.value.deployment_id == deployment_id
        with self._guard:
            self._registers[(control.stream_id, "")] = stored.version
        try:
            spec = self.spec(control, deployment_id)
        except DeploymentNotFoundError:
            if not is_current:
                raise
            raise MalformedMessageError(
                "the record of the current deployment is gone",
                key=layout.spec_key(control.stream_id, deployment_id),
                next_step="Put it back from a copy of the home: it records what runs, and nothing else does.",
            ) from None
        events: tuple[NumberedEvent, ...] | None = None
        attempt = stored.value.attempt
        if not is_current:
            events = self.events(control, deployment_id)
            attempt = max((entry.event.attempt for entry in events if entry.event is not None), default=1)
        handle = self._recorded(control, spec, attempt)
        if handle is None:
            try:
                handle = self._found(spec, attempt)
            except UnavailableError as error:
                if not to_be_shown:
                    raise
                handle = _nowhere(spec, attempt, error.message)
        status = None if handle is None else self.status(handle)
        claim = self.claim(control, deployment_id, attempt)
        if handle is not None and status is not None and status.state == "running" and claim is None:
            # A warm driver that waits for its order: a launch by its key gives it, so it counts as pending.
            status = replace(status, state="pending") if awaits_handover(control, handle) else status
        stored_beat = control.stored_heartbeat(deployment_id)
        # Events are read last: a driver that had ended when the launcher was asked has written its terminal event.
        events = self.events(control, deployment_id)
        seen = Observation(
            register=stored.value,
            register_version=stored.version,
            spec=spec,
            attempt=attempt,
            events=events,
            handle=handle,
            launch_status=status,
            claim=claim,
            heartbeat=None if stored_beat is None else stored_beat.value,
            observed_at=self._clock.now(),
        )
        seen = replace(seen, heartbeat_age_seconds=self._age_seconds(seen, stored_beat))
        return with_believed_end(seen, self._silent_seconds(seen))

    def look_again(self, seen: Observation) -> Observation | None:
        """What was seen before, updated with what changes without an entry in the feed; None if that is not enough.

        That is the launcher's answer and the heartbeat, of a driver that may work.

        Costs one read of the home, none for a deployment that has ended. Raises UnavailableError.
        """
        if seen.state in ENDED:
            return replace(seen, observed_at=self._clock.now())
        if seen.handle is None or seen.claim is None:
            return None
        status = self.status(seen.handle)
        stored_beat = self._home.control(seen.stream_id).stored_heartbeat(seen.deployment_id)
        again = replace(
            seen,
            launch_status=status,
            heartbeat=None if stored_beat is None else stored_beat.value,
            observed_at=self._clock.now(),
        )
        again = replace(again, heartbeat_age_seconds=self._age_seconds(again, stored_beat))
        again = with_believed_end(again, self._silent_seconds(again))
        return again if again.state == seen.state else None

    def _age_seconds(self, seen: Observation, stored: Stored[Heartbeat] | None) -> float | None:
        """How long ago the last heartbeat of this attempt was written, or None.

        By the clock of the store and that of this process: the driver's clock may be wrong by any amount. What this
        process has seen itself bounds it: for how long the heartbeat is there already, and when it was not there yet.
        So a process that looks again and again is not misled by a wrong clock at all.
        """
        if stored is None or stored.value.attempt != seen.attempt:
            return None
        key = (seen.stream_id, launch_key_for(seen.deployment_id, seen.attempt))
        beat_at, now = stored.value.at, self._clock.monotonic_seconds()
        with self._guard:
            known = self._beats.get(key)
            if known is None or known.at != beat_at:
                known = _Beat(beat_at, now, None if known is None else known.last_seen, now)
            known.last_seen = now
            self._beats[key] = known
        written_at = beat_at if stored.modified_at is None else stored.modified_at
        age_seconds = max((seen.observed_at - written_at).total_seconds(), now - known.first_seen, 0.0)
        return age_seconds if known.not_before is None else min(age_seconds, now - known.not_before)

    def _silent_seconds(self, seen: Observation) -> float:
        """For how long this process has seen no new sign of life of a driver whose end is only reported."""
        key = (seen.stream_id, launch_key_for(seen.deployment_id, seen.attempt))
        status = seen.launch_status
        if status is None or not (status.reported_end or status.exit_code == FENCED_STATUS):
            return 0.0
        now = self._clock.monotonic_seconds()
        with self._guard:
            sign_at, since = self._signs.get(key, (None, now))
            if sign_at != seen.silent_since_at:
                self._signs[key] = (seen.silent_since_at, now)
                return 0.0
        return now - since

    def spec(self, control: StreamControl, deployment_id: str) -> DeploymentSpec:
        """The deployment's spec; raises DeploymentNotFoundError."""
        key = (control.stream_id, deployment_id)
        with self._guard:
            version = self._registers.get((control.stream_id, ""), "")
            known = self._specs.get(key)
        if known is not None and known[0] == version:
            return known[1]
        spec = control.spec(deployment_id)
        with self._guard:
            if known is not None and known[1] != spec:
                self._forget(control.stream_id, deployment_id)
            self._specs[key] = (version, spec)
        return spec

    def forget(self, stream_id: str, deployment_id: str) -> None:
        """Drop everything that is remembered of a deployment, or of a scratch run, which was removed."""
        with self._guard:
            self._specs.pop((stream_id, deployment_id), None)
            self._forget(stream_id, deployment_id)

    def _forget(self, stream_id: str, deployment_id: str) -> None:
        """Drop the cache of a deployment; the caller holds the lock."""
        self._events.pop((stream_id, deployment_id), None)
        for memory in (self._claims, self._handles, self._beats):
            for key in [key for key in memory if key[0] == stream_id and key[1].startswith(f"{deployment_id}-a")]:
                del memory[key]

    def events(self, control: StreamControl, deployment_id: str) -> tuple[NumberedEvent, ...]:
        """Every event of the deployment.

        Raises:
            StillReadingError: they are more than one poll of many reads; what was read is kept for the next one.
        """
        key = (control.stream_id, deployment_id)
        with self._guard:
            known = self._events.get(key, ())
        # A number below the highest is missing only for a moment, while two writers race; numbers are never reused.
        after = known[-1].number if known else 0
        journal, most = control.journal(deployment_id), most_events()
        new, left = (list(journal.events(after)), 0) if most is None else journal.some_events(after, most)
        found = (*known, *new)
        with self._guard:
            if len(found) >= len(self._events.get(key, ())):
                self._events[key] = found
        if left:
            raise StillReadingError(
                "this stream has more events than one look reads, and nothing is done until all are read",
                stream_id=control.stream_id,
                deployment_id=deployment_id,
                read=len(found),
                not_read_yet=left,
                next_step="The next polls read on; `streamstate events` shows what they are.",
            )
        return found

    def claim(self, control: StreamControl, deployment_id: str, attempt: int) -> Claim | None:
        """The claim of the driver that is the attempt; None before one claims it."""
        key = (control.stream_id, launch_key_for(deployment_id, attempt))
        with self._guard:
            known = self._claims.get(key)
        if known is None:
            known = control.claim(deployment_id, attempt)
            if known is not None:
                with self._guard:
                    self._claims[key] = known
        return known

    def handle(self, control: StreamControl, deployment_id: str, attempt: int) -> LaunchHandle | None:
        """The launch of an attempt, as recorded, or as the launcher finds it; None where none is known."""
        try:
            spec = self.spec(control, deployment_id)
        except DeploymentNotFoundError:
            return None
        return self._recorded(control, spec, attempt) or self._found(spec, attempt)

    def _recorded(self, control: StreamControl, spec: DeploymentSpec, attempt: int) -> LaunchHandle | None:
        launch_key = launch_key_for(spec.deployment_id, attempt)
        key = (control.stream_id, launch_key)
        with self._guard:
            known = self._handles.get(key)
        if known is not None:
            return known
        record = control.launch(spec.deployment_id, launch_key)
        if record is None:
            return None
        handle = self._places.handle(spec, record)
        if not handle.refused:
            with self._guard:
                self._handles[key] = handle
        return handle

    def _found(self, spec: DeploymentSpec, attempt: int) -> LaunchHandle | None:
        """A launch that is not recorded; raises UnavailableError where the launcher cannot look for it now."""
        try:
            return self._launcher.find(self._places.place(spec, launch_key_for(spec.deployment_id, attempt)))
        except (InvalidRequestError, UntrustedRecordError) as error:
            return _nowhere(spec, attempt, str(error))

    def status(self, handle: LaunchHandle) -> LaunchStatus:
        """How a driver is; ``unknown`` for what this launcher cannot be asked."""
        try:
            return self._launcher.status(handle)
        except StreamStateError as error:
            return LaunchStatus(state="unknown", exit_code=None, reason=str(error), observed_at=self._clock.now())


def _nowhere(spec: DeploymentSpec, attempt: int, reason: str) -> LaunchHandle:
    """Without a place it cannot be asked, so it is unknown: neither running, nor without a launch."""
    launcher = LOCAL if spec.version.launcher is None else spec.version.launcher.name
    return LaunchHandle(launcher, launch_key_for(spec.deployment_id, attempt), data={}, refused=reason)


# Full disks, as this machine sees them.
#
# A driver whose home is full cannot report it: neither a heartbeat nor an event finds room, and often its log
# neither.

LEAST_BYTES = 1_048_576
"""With less than this, a batch's files and a heartbeat may not find room."""


def full_disks(home: Home) -> list[str]:
    """The folders of a home whose disk is full, each disk once; only disks of this machine. Quotas are not seen."""
    stores = [home.home]
    with suppress(InvalidRequestError):  # no driver could write checkpoints there
        stores.append(home.checkpoints)
    folders = [store.root for store in stores if isinstance(store, LocalStore)]
    found: dict[int, str] = {}
    for folder in (*folders, home.launch_path("x").parent):
        with suppress(OSError):
            if _is_full(folder):
                found.setdefault(folder.stat().st_dev, str(folder))
    return list(found.values())


def _is_full(folder: Path) -> bool:
    disk = os.statvfs(folder)
    is_root = os.geteuid() == 0  # root may use the reserved blocks too
    free_blocks, free_files = (disk.f_bfree, disk.f_ffree) if is_root else (disk.f_bavail, disk.f_favail)
    has_no_room = disk.f_blocks > 0 and free_blocks * disk.f_frsize < LEAST_BYTES  # 0 blocks: not counted (FUSE)
    return has_no_room or (disk.f_files > 0 and free_files == 0)
