"""Reads of a deployment, behind every decision; what cannot change is read once."""

from __future__ import annotations

import threading
from dataclasses import replace

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.journal import NumberedEvent
from airflow_streamstate.control.objects import Remembered, Stored
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.drivers.warm import awaits_handover, handle_of
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.errors import DeploymentNotFoundError, MalformedMessageError, StreamStateError
from airflow_streamstate.launch.interface import Launcher, LaunchHandle, LaunchStatus
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.ids import launch_key_for
from airflow_streamstate.protocol.records import Claim, DeploymentSpec
from airflow_streamstate.protocol.register import StreamRegister

MAX_REMEMBERED = 4096


class Observer:
    """Reads deployments. Specs, claims, launches and events never change once written, so each is read once.

    A stream may be deleted and created anew under its name, with deployments of the same ids. So a spec is read again
    where the register has changed; where it is another spec, the cache of that deployment is dropped.
    """

    def __init__(self, home: Home, launcher: Launcher, clock: Clock) -> None:
        self._home = home
        self._launcher = launcher
        self._clock = clock
        self._guard = threading.Lock()
        self._registers: Remembered[tuple[str, str], str] = Remembered(MAX_REMEMBERED)
        self._specs: Remembered[tuple[str, str], tuple[str, DeploymentSpec]] = Remembered(MAX_REMEMBERED)
        self._events: Remembered[tuple[str, str], tuple[NumberedEvent, ...]] = Remembered(MAX_REMEMBERED)
        self._claims: Remembered[tuple[str, str], Claim] = Remembered(MAX_REMEMBERED)
        self._handles: Remembered[tuple[str, str], LaunchHandle] = Remembered(MAX_REMEMBERED)

    def observe(self, stream_id: str, deployment_id: str | None = None) -> Observation:
        """Look at a deployment, by default the current one; raises StreamNotFoundError, DeploymentNotFoundError."""
        control = self._home.control(stream_id)
        stored = control.need_register()
        return self.look(control, stored, deployment_id or str(stored.value.deployment_id))

    def look(self, control: StreamControl, stored: Stored[StreamRegister], deployment_id: str) -> Observation:
        """Look at a deployment beside a register that was just read.

        Raises:
            DeploymentNotFoundError: there is none.
            MalformedMessageError: the register names it, and its record is gone.
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
                next_step="Put it back from a copy of the home: it says what runs, and nothing else does.",
            ) from None
        events: tuple[NumberedEvent, ...] | None = None
        attempt = stored.value.attempt
        if not is_current:
            events = self.events(control, deployment_id)
            attempt = max((entry.event.attempt for entry in events if entry.event is not None), default=1)
        handle = self.handle(control, deployment_id, attempt)
        status = None if handle is None else self.status(handle)
        claim = self.claim(control, deployment_id, attempt)
        if handle is not None and status is not None and status.state == "running" and claim is None:
            # A warm driver that waits for its order: a launch by its key gives it, so it counts as pending.
            status = replace(status, state="pending") if awaits_handover(control, handle) else status
        heartbeat = control.heartbeat(deployment_id)
        # Events are read last: a driver that had ended when the launcher was asked has written its terminal event.
        events = self.events(control, deployment_id)
        return Observation(
            register=stored.value,
            register_version=stored.version,
            spec=spec,
            attempt=attempt,
            events=events,
            handle=handle,
            launch_status=status,
            claim=claim,
            heartbeat=heartbeat,
            observed_at=self._clock.now(),
        )

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

    def _forget(self, stream_id: str, deployment_id: str) -> None:
        """Drop the cache of a deployment; the caller holds the lock."""
        self._events.pop((stream_id, deployment_id), None)
        for memory in (self._claims, self._handles):
            for key in [key for key in memory if key[0] == stream_id and key[1].startswith(f"{deployment_id}-a")]:
                del memory[key]

    def events(self, control: StreamControl, deployment_id: str) -> tuple[NumberedEvent, ...]:
        """Every event of the deployment."""
        key = (control.stream_id, deployment_id)
        with self._guard:
            known = self._events.get(key, ())
        # A number below the highest is missing only for a moment, while two writers race; numbers are never reused.
        after = known[-1].number if known else 0
        found = (*known, *control.journal(deployment_id).events(after))
        with self._guard:
            if len(found) >= len(self._events.get(key, ())):
                self._events[key] = found
        return found

    def claim(self, control: StreamControl, deployment_id: str, attempt: int) -> Claim | None:
        """The claim of the driver that is the attempt; None for none yet."""
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
        launch_key = launch_key_for(deployment_id, attempt)
        key = (control.stream_id, launch_key)
        with self._guard:
            known = self._handles.get(key)
        if known is not None:
            return known
        record = control.launch(deployment_id, launch_key)
        if record is not None:
            handle = handle_of(record)
            with self._guard:
                self._handles[key] = handle
            return handle
        folder = self._home.launch_path(layout.launch_folder(control.stream_id, deployment_id, launch_key))
        return self._launcher.find(str(folder), launch_key)

    def status(self, handle: LaunchHandle) -> LaunchStatus:
        """How a driver is; ``unknown`` for what this launcher cannot be asked."""
        reason = f"it was launched by {handle.launcher}, not by {self._launcher.name}"
        if handle.launcher == self._launcher.name:
            try:
                return self._launcher.status(handle)
            except StreamStateError as error:
                reason = str(error)
        return LaunchStatus(state="unknown", exit_code=None, reason=reason, observed_at=self._clock.now())
