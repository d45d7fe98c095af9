"""``StreamStateHook``: the lifecycle of streams, with the home from an Airflow connection."""

from __future__ import annotations

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.connectors.moving import in_words
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.deploy.skips import SkipOrder, SkipView
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.views import CommandView, DeploymentView, StreamStatus
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.controller.retention.deciding import RetentionPolicy
from airflow_streamstate.controller.state_reader.choosing import ReadingRequest
from airflow_streamstate.controller.state_reader.verifying import verify_snapshot
from airflow_streamstate.controller.wait.waiting import poll
from airflow_streamstate.errors import InvalidRequestError, StreamStateError
from airflow_streamstate.hooks.connection import CONNECTION_TYPE, Fetched, aws_conn_id_of, home_config
from airflow_streamstate.hooks.ending import end_as_asked
from airflow_streamstate.hooks.observing import WaitCondition, WaitResult, look, out_of_time
from airflow_streamstate.hooks.refusals import is_retryable
from airflow_streamstate.hooks.secrets import airflow_secrets
from airflow_streamstate.hooks.spark_connection import spark_submission
from airflow_streamstate.launch.local import LocalLauncher
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.commands import (
    DEFAULT_SNAPSHOT_TERMS,
    DEFAULT_TERMS,
    Command,
    DrainTerms,
    SnapshotTerms,
)

# What the hook does with what is kept of a stream: read it, copy it elsewhere, hold it, let go of it.

Say = Callable[[str], None]


class RetentionMixin(ABC):
    """A part of ``StreamStateHook``, which has the controller; not for use by itself."""

    @abstractmethod
    def get_conn(self) -> Controller:
        """The controller."""

    def prune(
        self,
        stream_id: str,
        *,
        keep: int | None = None,
        older_than_seconds: float | None = None,
        dry_run: bool = False,
        at_mirrors: bool = False,
    ) -> dict[str, Any]:
        """Remove the snapshots that nothing needs, and what deployments left; what went, what stays, and why.

        :param at_mirrors: at the stream's mirrors, too.
        """
        policy = RetentionPolicy(keep, older_than_seconds)
        pruned = self.get_conn().retention.prune(stream_id, policy, is_dry=dry_run, at_mirrors=at_mirrors)
        return pruned.to_json()

    def pin(self, stream_id: str, snapshot_id: str) -> None:
        """Keep a snapshot whatever is pruned; twice is once."""
        self.get_conn().retention.pin(stream_id, snapshot_id)

    def unpin(self, stream_id: str, snapshot_id: str) -> None:
        """Let go of a snapshot; where it is not pinned nothing is changed."""
        self.get_conn().retention.unpin(stream_id, snapshot_id)

    def retire(self, stream_id: str, *, reason: str = "", deletes: bool = False) -> dict[str, object]:
        """Mark a stream that has ended as one that is not to run any more; twice is once.

        :param deletes: remove everything of it, too. There is no way back.
        """
        return self.get_conn().retention.retire(stream_id, reason=reason, deletes=deletes).to_json()

    def mirror(
        self,
        stream_id: str,
        *,
        mirrors: Sequence[str] = (),
        batch_bytes: int | None = None,
        timeout_seconds: float | None = None,
        on_progress: Say = lambda _line: None,
    ) -> list[dict[str, Any]]:
        """Copy every complete snapshot to these mirrors, or to those of the deployment; what was copied where.

        :param batch_bytes: how much is fetched at a time; None: as the deployment is set.
        :param timeout_seconds: a store that does not answer for so long is left; None: as the deployment is set.
        """
        verbs = self.get_conn().mirrors
        copied = verbs.copy(
            stream_id,
            verbs.chosen(stream_id, mirrors),
            batch_bytes=batch_bytes,
            timeout_seconds=timeout_seconds,
            on_progress=lambda uri, snapshot_id, progress: on_progress(f"{snapshot_id} to {uri}: {progress.in_words}"),
        )
        return [
            {"snapshot_id": done.snapshot_id, "mirror": uri, "files": done.files, "bytes": done.size_bytes}
            for uri, done in copied
        ]

    def verify(
        self, request: ReadingRequest, *, deep: bool = False, on_progress: Say = lambda _line: None
    ) -> dict[str, Any]:
        """Read every byte of a snapshot: ``{snapshot_id, ok, problems, loaded}``.

        :param deep: have a Spark driver on this machine load its state, too.
        """
        controller = self.get_conn()
        return verify_snapshot(controller.snapshots, controller.readings, request, deep=deep, on_progress=on_progress)

    def read_state(self, request: ReadingRequest, *, on_progress: Say = lambda _line: None) -> dict[str, Any]:
        """What the state of a snapshot holds, read by a Spark driver on this machine; ``out`` gets it as tables."""
        return self.get_conn().readings.look(request, on_progress)


# A driver inherits the worker's environment, but for what is Airflow's own: connections and settings hold secrets.
_AIRFLOWS_OWN = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "_AIRFLOW_", "__AIRFLOW_")


@dataclass(frozen=True)
class NotificationPlace:
    """Where a drain notification lies.

    Attributes:
        key: relative to the home; None where it was answered without being written (drained already).
    """

    stream_id: str
    deployment_id: str
    command_id: str
    key: str | None


class StreamStateHook(RetentionMixin, BaseHook):
    """Deploys, stops, drains, snapshots and watches streams, and keeps what is kept of them.

    Everything that changes something takes a ``request_id`` of 1 to 63 characters of a-z, 0-9 and ``-``: the same id
    again is the same request. Errors are those of ``airflow_streamstate.errors``.

    :param streamstate_conn_id: the connection that names the home.
    :param requested_by: who asks, as records and commands say it.
    :param clock: for waits and times.
    """

    conn_name_attr = "streamstate_conn_id"
    default_conn_name = "streamstate_default"
    conn_type = CONNECTION_TYPE
    hook_name = "Stream State"

    def __init__(
        self,
        streamstate_conn_id: str = default_conn_name,
        *,
        requested_by: str = "airflow",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__()
        self.streamstate_conn_id = streamstate_conn_id
        self.requested_by = requested_by
        self.clock = clock

    @functools.cached_property
    def home(self) -> Home:
        """The home that the connection names."""
        fetched = _fetched(self.streamstate_conn_id)
        aws_conn_id = aws_conn_id_of(fetched)
        return Home(home_config(fetched, _fetched(aws_conn_id) if aws_conn_id else None), self.clock)

    @functools.cached_property
    def controller(self) -> Controller:
        """The verbs, with drivers on this machine."""
        return controller_on_this_machine(self.home, self.clock, self.requested_by)

    def get_conn(self) -> Controller:
        """The controller."""
        return self.controller

    def test_connection(self) -> tuple[bool, str]:
        """Create, replace and delete an object in the home, with conditions; what Airflow's test button does."""
        try:
            return True, self.home.check()
        except StreamStateError as error:
            return False, str(error)

    # notifications

    def write_drain_notification(
        self,
        stream_id: str,
        *,
        deployment_id: str | None = None,
        terms: DrainTerms = DEFAULT_TERMS,
        reason: str = "",
        expires_in_seconds: float | None = None,
        request_id: str | None = None,
    ) -> NotificationPlace:
        """Write a drain notification, create-if-absent, and say where it lies.

        :param deployment_id: whom it names, and who alone obeys it; None: the current one.
        :param terms: how it is to be done; by default all is flushed, and the flush is tried on a fork before.
        :param expires_in_seconds: read later than this, it is not begun; None: any time.
        """
        order = self.drain(
            stream_id,
            deployment_id=deployment_id,
            terms=terms,
            reason=reason,
            expires_in_seconds=expires_in_seconds,
            request_id=request_id,
        )
        return NotificationPlace(order.stream_id, order.deployment_id, order.command_id, order.key)

    def read_notification(self, stream_id: str, command_id: str, deployment_id: str | None = None) -> Command | None:
        """A notification, also after it was obeyed and cleaned up; None where nobody knows it."""
        return self.controller.notifications.read(stream_id, command_id, deployment_id)

    def cleanup_notifications(self, stream_id: str, deployment_id: str | None = None) -> list[str]:
        """Delete what is answered, or what nobody will ever obey; the keys of the deleted. Events keep the content."""
        return self.controller.notifications.clean_up(stream_id, deployment_id)

    # orders

    def deploy(self, request: DeployRequest) -> DeploymentView:
        """Make a script the current deployment of its stream, and launch it; does not wait for it.

        How it starts, and what a person should know of that, is in the log of the task before anything runs.
        """
        return self.controller.deploy(request, self._say_how_it_starts)

    def _say_how_it_starts(self, view: DeploymentView) -> None:
        snapshot = f" from {view.start.snapshot_id}" if view.start.snapshot_id else ""
        self.log.info("%s %s starts: %s%s", view.stream_id, view.deployment_id, view.start.mode, snapshot)
        for note in view.notes:
            self.log.warning("%s %s: %s", view.stream_id, view.deployment_id, note)

    def resume(
        self, stream_id: str, *, request_id: str | None = None, assume_dead: bool = False, reason: str = ""
    ) -> DeploymentView:
        """Start the current deployment again: its recorded code, on its own checkpoints."""
        return self.controller.resume(stream_id, request_id=request_id, assume_dead=assume_dead, reason=reason)

    def stop(
        self,
        stream_id: str,
        *,
        deployment_id: str | None = None,
        reason: str = "",
        expires_in_seconds: float | None = None,
        request_id: str | None = None,
    ) -> CommandView:
        """Order the end after the batch in flight, state kept."""
        return self.controller.stop(
            stream_id,
            deployment_id=deployment_id,
            request_id=request_id,
            reason=reason,
            expires_in_seconds=expires_in_seconds,
        )

    def drain(
        self,
        stream_id: str,
        *,
        deployment_id: str | None = None,
        terms: DrainTerms = DEFAULT_TERMS,
        reason: str = "",
        expires_in_seconds: float | None = None,
        request_id: str | None = None,
    ) -> CommandView:
        """Write a drain notification; what is dead is launched once more, for the flush alone."""
        return self.controller.drain(
            stream_id,
            deployment_id=deployment_id,
            request_id=request_id,
            terms=terms,
            reason=reason,
            expires_in_seconds=expires_in_seconds,
        )

    def cancel_drain(
        self,
        stream_id: str,
        *,
        deployment_id: str | None = None,
        reason: str = "",
        request_id: str | None = None,
    ) -> CommandView:
        """Take back every drain that was ordered before this and has not begun to flush; the stream runs on."""
        return self.controller.cancel_drain(
            stream_id, deployment_id=deployment_id, request_id=request_id, reason=reason
        )

    def snapshot(
        self,
        stream_id: str,
        *,
        terms: SnapshotTerms = DEFAULT_SNAPSHOT_TERMS,
        reason: str = "",
        expires_in_seconds: float | None = None,
        request_id: str | None = None,
    ) -> CommandView:
        """Ask for a snapshot of what runs; whoever waits for its ``request_id`` asks again while nobody answers."""
        return self.controller.snapshot(
            stream_id, request_id=request_id, terms=terms, reason=reason, expires_in_seconds=expires_in_seconds
        )

    def what_skip_passes_over(self, wish: SkipOrder) -> SkipView:
        """The input that a skip would pass over; changes nothing."""
        return self.controller.starts.what_skip_passes_over(wish)

    def skip(self, wish: SkipOrder, *, request_id: str | None = None) -> CommandView:
        """Have a batch that always fails committed without its rows by the next attempt, and start that.

        What is passed over is in the log of the task before anything is recorded.
        """
        return self.controller.starts.skip(wish, request_id, self._say_what_is_passed_over)

    def _say_what_is_passed_over(self, view: SkipView) -> None:
        for move in in_words(view.moves):
            self.log.warning("Batch %s of query %s is passed over: %s", view.batch_id, view.query_name, move)

    def kill(self, stream_id: str, *, grace_seconds: float = 10.0) -> DeploymentView:
        """End the driver at once, batch in flight or not."""
        return self.controller.kill(stream_id, grace_seconds=grace_seconds)

    def end_as_asked(self, action: str, stream_id: str, deployment_id: str) -> None:
        """Leave, stop, drain or kill a deployment whose task Airflow ends."""
        end_as_asked(self.controller, action, stream_id, deployment_id)

    # looking and waiting

    def status(self, stream_id: str, deployment_id: str | None = None) -> StreamStatus:
        """Where a stream, or one deployment of it, stands."""
        return self.controller.status(stream_id, deployment_id)

    def streams(self) -> list[StreamStatus]:
        """Where every stream of the home stands."""
        return self.controller.statuses()

    def is_running(
        self,
        stream_id: str,
        *,
        application: str | Path,
        arguments: Sequence[str] = (),
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        **more: Any,
    ) -> bool:
        """Whether the stream runs just this: the same bytes, arguments, configuration and master.

        :param more: whatever else ``DeployRequest`` takes.
        """
        request = DeployRequest(
            stream_id=stream_id,
            application=Path(application),
            arguments=tuple(arguments),
            master=master,
            conf=dict(conf or {}),
            **more,
        )
        return self.controller.running_same_code(request)

    def deployment_current_at(self, stream_id: str, moment: datetime | None) -> str:
        """The deployment that was current at a moment; the first one where the moment was before it.

        Goes from each deployment to the one before it, as their specs say: a deploy that died before the register
        moved has left a spec, too, and was never current.

        :param moment: None: now.
        """
        control = self.home.need_stream(stream_id)
        found = str(control.need_register().value.deployment_id)
        while moment is not None:
            spec = control.spec(found)
            if spec.created_at <= moment or spec.start.predecessor_id is None:
                break
            found = spec.start.predecessor_id
        return found

    def look(self, watch: WaitCondition) -> WaitResult:
        """One look at what is waited for."""
        return look(self.controller, watch)

    def wait_for(
        self, watch: WaitCondition, *, timeout_seconds: float, poll_interval_seconds: float = 2.0
    ) -> dict[str, Any]:
        """Wait until it is there, and return what it is.

        Raises what says why it cannot come any more, or ``DeadlineExceededError``; the stream goes on either way.
        """

        def sight() -> WaitResult | None:
            try:
                seen = self.look(watch)
            except StreamStateError as error:
                if not is_retryable(error):
                    raise
                self.log.warning("This look went wrong, which says nothing about the stream: %s", error)
                return None
            return None if seen.outcome == "pending" else seen

        seen = poll(self.clock, sight, timeout_seconds=timeout_seconds, pause_seconds=lambda: poll_interval_seconds)
        if seen is None:
            raise out_of_time(self.controller, watch, f"{timeout_seconds} s")
        return seen.need_result()

    def deadline_text(self, seconds: float) -> str:
        """So many seconds from now, as a trigger wants it."""
        return format_time(self.clock.now() + timedelta(seconds=seconds))


def controller_on_this_machine(home: Home, clock: Clock, requested_by: str) -> Controller:
    """The verbs as a process of Airflow has them, worker or triggerer: drivers on this machine, without its secrets."""
    environ = driver_environment(os.environ)
    launcher = LocalLauncher(clock, environ)
    return Controller(home, launcher, clock, requested_by, spark_submission, airflow_secrets(environ))


def driver_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a driver inherits of a worker's environment."""
    return {name: value for name, value in environ.items() if not name.startswith(_AIRFLOWS_OWN)}


def _fetched(conn_id: str) -> Fetched:
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise InvalidRequestError(
            "there is no such connection", conn_id=conn_id, next_step="Create it: type streamstate, with a home."
        ) from None
    return Fetched(connection, connection.extra_dejson)
