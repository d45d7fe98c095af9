"""The client: the verbs that the shell, the hook and the sensors call. It keeps no state of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_streamstate.clock import SYSTEM_CLOCK, Clock
from airflow_streamstate.control.journal import NumberedEvent
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.home import of_one_stream
from airflow_streamstate.controller.observe.logs import FileLog, Log, LogReader, TailedLog
from airflow_streamstate.controller.observe.observation import ALIVE, Observation, is_between_runs
from airflow_streamstate.controller.stream_guards import request_id_or_new
from airflow_streamstate.controller.wait.condition import WaitCondition, WaitResult
from airflow_streamstate.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    StillReadingError,
    StreamNotFoundError,
    UnavailableError,
    UntrustedRecordError,
)
from airflow_streamstate.launch.interface import LOCAL
from airflow_streamstate.launch.launchers import Launchers
from airflow_streamstate.protocol.terms.order import DEFAULT_DRAIN, DEFAULT_SNAPSHOT, DrainTerms, SnapshotTerms

if TYPE_CHECKING:  # each part is imported when it is first used
    from airflow_streamstate.controller.adopt.adoptions import Adoptions
    from airflow_streamstate.controller.commands.forced_stop import ForcedStops
    from airflow_streamstate.controller.commands.recorded_orders import Orders
    from airflow_streamstate.controller.commands.snapshot_requests import SnapshotRequests
    from airflow_streamstate.controller.deploy.attempts import Attempts
    from airflow_streamstate.controller.deploy.deployment import Deployer, OnStart
    from airflow_streamstate.controller.deploy.skips import Skips
    from airflow_streamstate.controller.drivers.driver_launch import SparkConnections
    from airflow_streamstate.controller.drivers.secret_lookup import LookUp
    from airflow_streamstate.controller.home import Home
    from airflow_streamstate.controller.mirrors import Mirrors
    from airflow_streamstate.controller.observe.pending_orders import OrderVerb
    from airflow_streamstate.controller.observe.views import CommandView, DeploymentView, StreamStatus
    from airflow_streamstate.controller.request.requests import DeployRequest
    from airflow_streamstate.controller.retention.kept_snapshots import KeptSnapshot
    from airflow_streamstate.controller.retention.pruning import Retaining
    from airflow_streamstate.controller.scratch.readings import Readings
    from airflow_streamstate.controller.scratch.rehearsal import Rehearsals
    from airflow_streamstate.controller.scratch.replays import Replays
    from airflow_streamstate.controller.snapshot_list import Snapshots
    from airflow_streamstate.controller.stream_details import StreamDetails
    from airflow_streamstate.controller.stream_events import StreamEvents
    from airflow_streamstate.controller.supervise.supervision import Supervision
    from airflow_streamstate.controller.supervise.watcher import Line, Watcher
    from airflow_streamstate.controller.upgrade.upgrades import Upgrades
    from airflow_streamstate.controller.wait.completing import Completing
    from airflow_streamstate.controller.wait.waiting import Notifications, Report, Waits
    from airflow_streamstate.controller.wait.watching import Watching
    from airflow_streamstate.launch.interface import Launcher, LaunchHandle

LOG_TAIL_BYTES = 65_536
_TERMS: Mapping[str, type] = {"drain": DrainTerms, "snapshot": SnapshotTerms}
"""The terms of the orders that have some."""


class Controller:
    """Deploys, observes and commands the streams of one home.

    Args:
        requested_by: the caller's name, for records.
        spark_connections: resolves ``spark_conn_id``; None if there is no Airflow to ask.
        look_up: resolves references to secrets; None for this process's environment alone.
    """

    def __init__(
        self,
        home: Home,
        launcher: Launcher,
        clock: Clock = SYSTEM_CLOCK,
        requested_by: str = "unknown",
        spark_connections: SparkConnections | None = None,
        look_up: LookUp | None = None,
    ) -> None:
        self.home = home
        self.clock = clock
        self.requested_by = requested_by
        self._context = ControllerContext.of(home, launcher, clock, requested_by, spark_connections, look_up)
        self._observer = self._context.observer

    # the parts

    @cached_property
    def adoptions(self) -> Adoptions:
        """Queries that ran without streamstate."""
        from airflow_streamstate.controller.adopt.adoptions import Adoptions

        return Adoptions(
            self._context,
            self._deployer,
            lambda stream_id: self.retention.retire(stream_id, reason="it never ran a query", deletes=True),
        )

    @cached_property
    def completing(self) -> Completing:
        """Whether all input up to a moment is committed."""
        from airflow_streamstate.controller.wait.completing import Completing

        return Completing(self._context)

    @cached_property
    def details(self) -> StreamDetails:
        """Owner, labels and alert rules of a stream."""
        from airflow_streamstate.controller.stream_details import StreamDetails

        return StreamDetails(self._context)

    @cached_property
    def forced_stops(self) -> ForcedStops:
        """Stops with a deadline."""
        from airflow_streamstate.controller.commands.forced_stop import ForcedStops

        return ForcedStops(self._context, self._attempts, self._orders, self._watching, self._waits)

    @cached_property
    def mirrors(self) -> Mirrors:
        """Copies of snapshots in other stores."""
        from airflow_streamstate.controller.mirrors import Mirrors

        return Mirrors(self._context)

    @cached_property
    def notifications(self) -> Notifications:
        """Orders that were written for drivers."""
        from airflow_streamstate.controller.wait.waiting import Notifications

        return Notifications(self._context)

    @cached_property
    def plans(self) -> Rehearsals:
        """Plans of changes, and rehearsals."""
        from airflow_streamstate.controller.scratch.rehearsal import Rehearsals

        return Rehearsals(self._context)

    @cached_property
    def readings(self) -> Readings:
        """Reading the state in snapshots."""
        from airflow_streamstate.controller.scratch.readings import Readings

        return Readings(self._context)

    @cached_property
    def replays(self) -> Replays:
        """Runs of recorded batches, into files."""
        from airflow_streamstate.controller.scratch.replays import Replays

        return Replays(self._context)

    @cached_property
    def retention(self) -> Retaining:
        """Which snapshots stay, and the end of a stream."""
        from airflow_streamstate.controller.retention.pruning import Retaining

        return Retaining(self._context)

    @cached_property
    def skips(self) -> Skips:
        """Commits of batches without their rows."""
        from airflow_streamstate.controller.deploy.skips import Skips

        return Skips(self._context, self._attempts, self._watching)

    @cached_property
    def snapshot_requests(self) -> SnapshotRequests:
        """Orders of snapshots."""
        from airflow_streamstate.controller.commands.snapshot_requests import SnapshotRequests

        return SnapshotRequests(self._context, self._attempts, self._watching, self._waits)

    @cached_property
    def snapshots(self) -> Snapshots:
        """The snapshots of a stream."""
        from airflow_streamstate.controller.snapshot_list import Snapshots

        return Snapshots(self._context)

    @cached_property
    def stream_events(self) -> StreamEvents:
        """The events of streams, for whoever acts on them."""
        from airflow_streamstate.controller.stream_events import StreamEvents

        return StreamEvents(self._context)

    @cached_property
    def supervision(self) -> Supervision:
        """What restarts a stream that failed."""
        from airflow_streamstate.controller.supervise.supervision import Supervision

        return Supervision(self._context, self._attempts, lambda: self.upgrades)

    @cached_property
    def upgrades(self) -> Upgrades:
        """Upgrades and rollbacks."""
        from airflow_streamstate.controller.upgrade.steps import UpgradeVerbs
        from airflow_streamstate.controller.upgrade.upgrades import Upgrades

        return Upgrades(
            self._context, UpgradeVerbs(self._attempts, self._deployer, self._orders, self._waits, self.plans)
        )

    @cached_property
    def _attempts(self) -> Attempts:
        from airflow_streamstate.controller.deploy.attempts import Attempts

        return Attempts(self._context)

    @cached_property
    def _deployer(self) -> Deployer:
        from airflow_streamstate.controller.deploy.deployment import Deployer

        return Deployer(self._context, self._attempts)

    @cached_property
    def _orders(self) -> Orders:
        from airflow_streamstate.controller.commands.recorded_orders import Orders

        return Orders(self._context, self._attempts, self._watching)

    @cached_property
    def _watching(self) -> Watching:
        from airflow_streamstate.controller.wait.watching import Watching

        return Watching(self._context)

    @cached_property
    def _waits(self) -> Waits:
        from airflow_streamstate.controller.wait.waiting import Waits

        return Waits(
            self._context,
            self._watching,
            {
                "snapshot request": lambda condition: self.snapshot_requests.look(condition),
                "rehearsed": self._look_at_rehearsal,
                "upgrade": lambda condition: self.upgrades.look_for_work(condition),
                "free": lambda condition: self.upgrades.look_for_none(condition),
                "complete": lambda condition: self.completing.look(condition),
                "unwell": self._look_for_trouble,
            },
        )

    @classmethod
    def local(
        cls,
        home: Home,
        *,
        clock: Clock = SYSTEM_CLOCK,
        requested_by: str = "unknown",
        spark_connections: SparkConnections | None = None,
    ) -> Controller:
        """A controller whose drivers run on this machine, or where their version's launcher starts them."""
        return cls(home, Launchers(clock), clock, requested_by, spark_connections)

    # deploy and resume

    def deploy(
        self, request: DeployRequest, on_start: OnStart = lambda _: None, *, until_finished: bool = False
    ) -> DeploymentView:
        """Make a script the current deployment of its stream, and launch it; does not wait for it.

        The same request id finds the same deployment, and continues with it where the first call was cut short. Where
        that deployment failed before its first commit, the call launches its next attempt.

        Args:
            on_start: called with how the deployment starts, before the register moves and anything is launched.
            until_finished: a call with the same request id launches the next attempt of a failed one also where it had
                committed batches, until an attempt has finished.

        Raises:
            InvalidRequestError: the request is wrong.
            IncompatibleUpgradeError: the script cannot start from what the current deployment left.
            ConflictError: the stream runs, is lost, or was just moved; the request id belongs to another request.
            SnapshotIncompleteError, SnapshotCorruptError: the snapshot at the end is incomplete.
            DataError: a checkpoint of the current deployment is damaged.
        """
        return self._deployer.deploy(
            request,
            request_id_or_new(request.request_id, self.clock),
            on_start,
            until_finished=until_finished,
        )

    def resume(
        self,
        stream_id: str,
        *,
        request_id: str | None = None,
        assume_dead: bool = False,
        reason: str = "",
        until_finished: bool = False,
        accept_hazards: bool = False,
    ) -> DeploymentView:
        """Start the next attempt of the current deployment: its recorded code, on its own checkpoints.

        Args:
            request_id: the same for every retry of this request; None for a new request.
            assume_dead: treat a driver of unknown state as dead.
            reason: kept in the register, and in the attempt's ``Claimed`` event.
            until_finished: as for ``deploy``.
            accept_hazards: continue the state by a hazardous plan; see ``DeployRequest``.

        Raises:
            StreamNotFoundError: there is no such stream.
            ConflictError: the stream runs, is drained, or is being deployed.
        """
        return self._attempts.resume(
            stream_id,
            request_id_or_new(request_id, self.clock),
            assume_dead=assume_dead,
            reason=reason,
            until_finished=until_finished,
            accept_hazards=accept_hazards,
        )

    def running_same_code(self, request: DeployRequest) -> bool:
        """Whether the stream runs the same files, arguments, configuration, packages and master, or is between two of
        its runs (``availableNow``, ``once``)."""
        if not self.home.is_there():
            return False
        try:
            seen = self._observer.observe(request.stream_id)
        except StreamNotFoundError:
            return False
        runs = seen.state in ALIVE or is_between_runs(seen)
        return runs and seen.spec.version.code_digest == request.version.code_digest

    def deployment_current_at(self, stream_id: str, moment: datetime | None) -> str:
        """The deployment that was current at a moment (None: now); the first one for an earlier moment.

        Follows the predecessors in the specs: a deploy that died before the register moved left a spec as well, and
        was never current. Raises StreamNotFoundError.
        """
        control = self.home.need_stream(stream_id)
        found = str(control.need_register().value.deployment_id)
        while moment is not None:
            spec = control.spec(found)
            if spec.created_at <= moment or spec.start.predecessor_id is None:
                break
            found = spec.start.predecessor_id
        return found

    def watcher(self, say: Callable[[Line], None], *, host: str | None = None, trusts_clocks: bool = False) -> Watcher:
        """A watcher of the streams of this home; arguments as ``Watcher``."""
        from airflow_streamstate.controller.supervise.watcher import Watcher

        return Watcher(self._context, self.supervision, self.retention, say, host=host, trusts_clocks=trusts_clocks)

    # commands

    def order(
        self,
        verb: OrderVerb,
        stream_id: str,
        *,
        deployment_id: str | None = None,
        request_id: str | None = None,
        terms: DrainTerms | SnapshotTerms | None = None,
        reason: str = "",
        expires_in_seconds: float | None = None,
    ) -> CommandView:
        """Record an order to a deployment; does not wait for its end. Answered at once if its end is known already.

        * ``stop``: end after the batch in flight, with the state in a snapshot.
        * ``drain``: flush all state, then end. A deployment that is stopped, finished or failed is launched for the
          flush alone.
        * ``cancel``: withdraw every earlier drain; the stream continues.
        * ``snapshot``: take a snapshot; of a deployment that has ended, the one at its end answers. The same request id
          goes to the attempt that is current then, until there is one snapshot.

        Args:
            deployment_id: None for the current deployment; not for a snapshot.
            request_id: the same for every retry of this request; None for a new request.
            terms: of a drain or a snapshot; None for the defaults.
            reason: kept with the command.
            expires_in_seconds: a command that has not started by then never starts; None: it does not expire.

        Raises:
            InvalidRequestError: the terms are of another verb; or a snapshot is asked of a deployment.
            StreamNotFoundError, DeploymentNotFoundError: it does not exist.
            ConflictError: no driver would take the command; there is no drain to cancel, or its flush has started.
        """
        if terms is not None and not isinstance(terms, _TERMS.get(verb, ())):
            raise InvalidRequestError(
                "these are not the terms of this order",
                verb=verb,
                terms=type(terms).__name__,
                next_step="A drain has DrainTerms, a snapshot SnapshotTerms; the other orders have none.",
            )
        if verb == "snapshot" and deployment_id is not None:
            raise InvalidRequestError(
                "a snapshot is asked of a stream, not of a deployment",
                deployment_id=deployment_id,
                next_step="Leave out the deployment: the current one takes it.",
            )
        request_id = request_id_or_new(request_id, self.clock)
        if verb == "snapshot":
            return self.snapshot_requests.ask(
                stream_id,
                request_id=request_id,
                terms=terms if isinstance(terms, SnapshotTerms) else DEFAULT_SNAPSHOT,
                reason=reason,
                expires_in_seconds=expires_in_seconds,
            )
        return self._orders.order(
            stream_id,
            verb,
            deployment_id=deployment_id,
            request_id=request_id,
            reason=reason,
            expires_in_seconds=expires_in_seconds,
            terms=terms if isinstance(terms, DrainTerms) else DEFAULT_DRAIN,
        )

    def kill(self, stream_id: str, *, grace_seconds: float = 10.0) -> DeploymentView:
        """Kill the driver of the current attempt, or close an attempt that never got a driver. Idempotent.

        Raises StreamNotFoundError, and ConflictError where another machine's launcher has the driver.
        """
        return self._attempts.kill(stream_id, grace_seconds)

    # observe

    def status(self, stream_id: str, deployment_id: str | None = None) -> StreamStatus:
        """The status of a stream, or of one deployment. Raises StreamNotFoundError, DeploymentNotFoundError."""
        return self._watching.status(self._observer.observe(stream_id, deployment_id, to_be_shown=True))

    def statuses(self) -> list[StreamStatus]:
        """The status of every stream of the home; an unreadable stream does not hide the others."""
        found = []
        for stream_id in self.home.stream_ids():
            with suppress(StreamNotFoundError):  # its first deployment has not started yet
                found.append(self.observed(stream_id)[1])
        return found

    def observed(self, stream_id: str) -> tuple[Observation | None, StreamStatus]:
        """What is seen of the current deployment, and the status that follows; a stream whose control objects cannot be
        read has the status alone.

        Raises:
            StreamNotFoundError: there is no such stream, or no deployment of it has started yet.
            StillReadingError: this is one poll of many, and has read a part of a long list.
            StreamStateError: the home is not there, or does not answer.
        """
        try:
            return self._observed(stream_id)
        except (StreamNotFoundError, StillReadingError):
            raise
        except Exception as error:  # one stream hides no other one
            return None, self.unreadable(stream_id, error)

    def _observed(self, stream_id: str) -> tuple[Observation, StreamStatus]:
        try:
            return self._observed_once(stream_id)
        except StillReadingError:
            raise
        except UnavailableError:
            self.home.presence.need()
            # The home answers. It may have been silent for a moment; else it is an object of this stream.
            return self._observed_once(stream_id)

    def _observed_once(self, stream_id: str) -> tuple[Observation, StreamStatus]:
        seen = self._observer.observe(stream_id, to_be_shown=True)
        return seen, self._watching.status(seen)

    def unreadable(self, stream_id: str, error: Exception) -> StreamStatus:
        """The status of a stream whose poll failed with this error.

        Raises:
            StreamStateError: it is the home that is not there, or does not answer.
        """
        return self._watching.unreadable(stream_id, of_one_stream(self.home, error))

    def observed_again(self, seen: Observation, status: StreamStatus) -> tuple[Observation, StreamStatus] | None:
        """As ``observed``, by one read at most, while the feed of the home has no news of the stream; None where
        that is not enough.

        Args:
            seen, status: as of the last poll.
        """
        again = self._observer.look_again(seen)
        return None if again is None else (again, self._watching.status_again(again, status, seen.observed_at))

    def events(self, stream_id: str, deployment_id: str | None = None) -> list[NumberedEvent]:
        """The events of a deployment, oldest first, secrets hidden. Raises as ``status``."""
        from airflow_streamstate.controller.wait.watching import redacted_event

        seen = self._observer.observe(stream_id, deployment_id)
        return [
            entry if entry.event is None else NumberedEvent(entry.number, redacted_event(seen, entry.event))
            for entry in seen.events
        ]

    def logs(
        self,
        stream_id: str,
        deployment_id: str | None = None,
        attempt: int | None = None,
        tail_bytes: int = LOG_TAIL_BYTES,
    ) -> str:
        """The last bytes of a driver's log, secrets hidden. Raises as ``status`` and ``LogReader.read_new``.

        Raises:
            DataError: there is a log, but which secrets to hide in it is unknown.
        """
        return self.log_reader(stream_id, deployment_id, attempt, tail_bytes=tail_bytes).read_new()

    def log_reader(
        self,
        stream_id: str,
        deployment_id: str | None = None,
        attempt: int | None = None,
        *,
        tail_bytes: int = LOG_TAIL_BYTES,
    ) -> LogReader:
        """A reader of a driver's log, piece by piece. Raises as ``status``."""
        seen = self._observer.observe(stream_id, deployment_id)
        control = self.home.control(stream_id)
        number = seen.attempt if attempt is None else attempt
        handle = self._observer.handle(control, seen.deployment_id, number)

        def has_ended() -> bool:
            found = self._observer.handle(control, seen.deployment_id, number)
            return found is None or self._observer.status(found).state not in ("running", "pending")

        from airflow_streamstate.controller.wait.watching import secrets_in_log

        return LogReader(
            self._log_of(handle, tail_bytes),
            lambda: secrets_in_log(self._context, seen.spec, handle),
            has_ended,
        )

    def opened_page(self, stream_id: str, page: str, deployment_id: str | None = None) -> str:
        """The URL of a page about a driver for which ``StreamStatus.links`` has none, made for this caller alone: it
        lets in whoever has it. Raises as ``status`` and ``OpensPages.opened``.
        """
        handle = self._observer.observe(stream_id, deployment_id).handle
        if handle is None:
            raise InvalidRequestError(
                "this stream has no driver", stream=stream_id, next_step="See `streamstate status`."
            )
        return self._context.launcher.opened(handle, page)

    def _log_of(self, handle: LaunchHandle | None, tail_bytes: int) -> Log:
        if handle is None:
            return FileLog(None, tail_bytes)
        if handle.refused:
            raise UntrustedRecordError(
                "the log of this driver cannot be shown: it is unknown where it is",
                launch_key=handle.launch_key,
                reason=handle.refused,
            )
        if handle.launcher != LOCAL:
            return TailedLog(lambda count: self._context.launcher.logs(handle, count), tail_bytes)
        path, top = (handle.data.get(name) for name in ("log_path", "work_dir"))
        return FileLog(
            Path(path) if isinstance(path, str) else None, tail_bytes, Path(top) if isinstance(top, str) else None
        )

    def kept_snapshots(self, stream_id: str) -> list[KeptSnapshot]:
        """The complete snapshots of a stream, oldest first, with what keeps them. Raises StreamNotFoundError."""
        from airflow_streamstate.controller.retention.kept_snapshots import kept_snapshots

        return kept_snapshots(self._context, stream_id)

    def mirrors_of(self, stream_id: str) -> dict[str, list[str]]:
        """By snapshot, the mirrors that have it according to the drivers' events. Raises StreamNotFoundError."""
        from airflow_streamstate.controller.retention.kept_snapshots import mirrors_of

        return mirrors_of(self._context, stream_id)

    # wait

    def look(self, condition: WaitCondition) -> WaitResult:
        """Check a condition once; writes nothing. Raises as ``Waits.look``."""
        return self._waits.look(condition)

    def advance(self, condition: WaitCondition) -> WaitResult:
        """Check a condition once, and make the write that is due. Raises as ``look``."""
        return self._waits.advance(condition)

    def wait(
        self,
        condition: WaitCondition,
        timeout_seconds: float,
        on_progress: Report | None = None,
        *,
        poll_interval_seconds: float | None = None,
    ) -> WaitResult:
        """Wait for a condition. Arguments and errors as ``Waits.wait``."""
        return self._waits.wait(condition, timeout_seconds, on_progress, poll_interval_seconds=poll_interval_seconds)

    def out_of_time(self, condition: WaitCondition, deadline_at: str) -> DeadlineExceededError:
        """The error of a wait that ended at its deadline, with what was last seen (Law 6)."""
        return self._waits.out_of_time(condition, deadline_at=deadline_at)

    def time_to_look(self, condition: WaitCondition, looks_until: str) -> DeadlineExceededError:
        """The error of a triggerer whose part of a wait has ended: a worker polls, and the wait continues."""
        return self._waits.time_to_look(condition, looks_until)

    def _look_at_rehearsal(self, condition: WaitCondition) -> WaitResult:
        if not self.plans.is_over(condition.stream_id, condition.deployment_id):
            return WaitResult("pending", last_seen="the rehearsal is not over")
        return WaitResult("done", {"rehearsal_id": condition.deployment_id}, last_seen="the rehearsal has ended")

    def _look_for_trouble(self, condition: WaitCondition) -> WaitResult:
        """Whether the stream, with whatever deployment is current, neither runs nor has come to its end."""
        from airflow_streamstate.controller.wait.waiting import MAX_POLL_SECONDS

        seen, status = self.observed(condition.stream_id)
        last_seen = f"{status.state} ({status.why})"
        if status.state == "running" or (seen is not None and seen.has_come_to_its_end):
            return WaitResult("pending", last_seen=last_seen, pause_seconds=MAX_POLL_SECONDS)
        return WaitResult("done", status.to_json(), found=status, last_seen=last_seen)
