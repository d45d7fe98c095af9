"""The agent in the driver: one daemon thread for commands, one for heartbeats; the life of one attempt."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.driver.agent.command_loop import CommandHandler
from airflow_streamstate.driver.agent.heartbeats import HeartbeatWriter
from airflow_streamstate.driver.agent.lag import GroupCommits
from airflow_streamstate.driver.agent.own_snapshots import ROUND_SECONDS, Mirroring, OpenMirror, PeriodicSnapshots
from airflow_streamstate.driver.attempt.answers import call_off_drain, tell_failed_queries
from airflow_streamstate.driver.attempt.attempt import Attempt, InBackground, in_daemon_thread
from airflow_streamstate.driver.attempt.attempt_snapshots import (
    SEAL_OLDER_AFTER_SECONDS,
    retry_until_fenced,
    seal_older,
)
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.driver.attempt.reports import Say, say_to_driver_log
from airflow_streamstate.driver.shutdown.drain import SelfDrain
from airflow_streamstate.driver.shutdown.script_end import (
    FENCED_STATUS,
    ScriptFailure,
    end_overdue_script,
    end_script,
    fail_with_query,
)
from airflow_streamstate.driver.shutdown.stopping import MachineStop
from airflow_streamstate.driver.start.claim import check_spark, claim_attempt
from airflow_streamstate.driver.start.query_names import (
    NameBook,
    ThisStart,
    describe_changing,
    find_changing,
    last_part,
)
from airflow_streamstate.driver.start.query_start import Runs, check_state_format
from airflow_streamstate.driver.start.start_checks import check_sink_before_flush
from airflow_streamstate.errors import FencedError, InvalidRequestError, StreamStateError
from airflow_streamstate.protocol.events import Draining, Started
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.snapshot.location import OpenPlace
from airflow_streamstate.store.base import Store

# One attempt of a deployment: its claim, the intercepted starts of its queries, its end.

LATE_START_SECONDS = 0.2


class AttemptLife:
    """The life of one attempt: its claim, the starts of its queries, its end. Arguments as ``Attempt``."""

    def __init__(
        self,
        control: StreamControl,
        checkpoints: Store,
        spec: DeploymentSpec,
        attempt: int,
        clock: Clock,
        checkpoint_uri_of: Callable[[str], str],
        say: Say = say_to_driver_log,
        in_background: InBackground = in_daemon_thread,
        looked_up: Sequence[str] = (),
        open_place: OpenPlace | None = None,
    ) -> None:
        self.attempt = Attempt(
            control, checkpoints, spec, attempt, clock, checkpoint_uri_of, say, in_background, looked_up, open_place
        )
        self._names = NameBook(spec.start.rename_queries)
        self._this_start = ThisStart(clock.now())
        self._runs = Runs(self.attempt)
        self._session_known = False

    def claim(self, launch_key: str, host: str, pid: int) -> None:
        """Become this attempt, before anything else, and read the commands that are pending.

        Raises:
            FencedError: another attempt or deployment is current, or another driver is this attempt; nothing of the
                deployment was changed.
            UnavailableError: the store did not answer for ``lost_after_seconds``.
        """
        claim_attempt(self.attempt, launch_key, host, pid)
        self._this_start = replace(self._this_start, launch_key=launch_key, process_id=pid)

    def session_started(self, spark_version: str, application_id: str, notes: Sequence[str] = ()) -> None:
        """Report the Spark session, with sentences on it; further sessions of the script change nothing."""
        if self._session_known:
            return
        self._session_known = True
        self.attempt.note_spark(spark_version)
        self._this_start = replace(self._this_start, application_id=application_id)
        self.attempt.reporter.write_soon(Started, spark_version=spark_version, application_id=application_id)
        for note in notes:
            self.attempt.reporter.note(note)

    def start_query(
        self, requested_name: str | None, own_checkpoint_location: str | None, startable: StartableQuery
    ) -> LogicalQuery:
        """The intercepted ``start()``: start a query, or return one that has ended because the latch is closed.

        Everything happens under the latch's lock: a query either runs, and gets its barrier when the latch closes, or
        is not started.

        Args:
            own_checkpoint_location: the script's ``checkpointLocation``, used as a name only.

        Raises:
            InvalidRequestError: its name is not certain, a query of this name runs, or the snapshot that the
                deployment starts from does not know it (Law 5).
            UnsupportedCheckpointError: its trigger, settings or checkpoint are not known (Law 10).
            FencedError: this attempt was replaced.
        """
        attempt = self.attempt
        if attempt.latch.is_released:
            attempt.clock.sleep(LATE_START_SECONDS)  # a script's loop around start() must not spin
        with attempt.latch.held():
            attempt.fence.check()
            name = self._names.name_of(requested_name, own_checkpoint_location, startable.facts.plan_fingerprint)
            self._refuse_twice(name)
            logical = LogicalQuery(attempt, name, startable, attempt.checkpoint_of(name))
            check_spark(attempt, name, logical.checkpoint)
            before = attempt.queries.get(name)
            if before is not None:
                tell_failed_queries(attempt, is_last_look=True)
                # Before the start: an error of Spark after it would leave a run without supervision.
                logical.continue_from(before)
            self._call_off_if_impossible(startable)
            if attempt.latch.is_open:
                logical.remarks = self._remarks_on_name(name, requested_name, own_checkpoint_location)
                self._runs.begin(logical)
                attempt.expect_checkpoints()
                for remark in logical.remarks:
                    attempt.reporter.note(remark, query=name)
            else:
                self._start_late(logical)
            attempt.queries.add(logical)
            attempt.queries.note_start(attempt.clock.monotonic_seconds())
            return logical

    def script_ended(self, failure: ScriptFailure | None) -> int:
        """The script has ended: stop its queries, wait for an ending under way, report the end.

        Returns:
            The exit status of the process: the script's own; 0 after a stop or drain; 4 where it was replaced.
        """
        return end_script(self.attempt, failure)

    def _remarks_on_name(self, name: str, requested_name: str | None, location: str | None) -> tuple[str, ...]:
        """Sentences on a name that is another one in the script, or at each start."""
        attempt = self.attempt
        given = attempt.spec.start.rename_queries.get(name)
        if given is not None and given == (requested_name or last_part(location)):
            return (f"the script calls query {name} {given}: its state continues under the name that it started with",)
        is_own = bool(requested_name)
        changing = find_changing(name, self._this_start, is_own=is_own)
        manifest = attempt.start.manifest()
        if changing is None or attempt.checkpoint_of(name).exists() or (manifest and name in manifest.queries):
            return ()
        return (describe_changing(attempt.stream_id, name, changing, location, is_own=is_own, known_as=name),)

    def _call_off_if_impossible(self, startable: StartableQuery) -> None:
        attempt = self.attempt
        if attempt.latch.state != "drain" or attempt.latch.is_released or attempt.queries:
            return
        if _flush_has_begun(attempt):
            return  # an earlier attempt started it, and it cannot be called off
        reason = startable.cannot_flush_reason()
        if reason is not None:
            call_off_drain(attempt, reason)

    def _refuse_twice(self, name: str) -> None:
        before = self.attempt.queries.get(name)
        if before is not None and not before.ended and self.attempt.latch.is_open:
            raise InvalidRequestError(
                "a query of this name runs already in this script",
                query_name=name,
                next_step="Give each query its own .queryName(…), or stop the first one before starting it again.",
            )

    def _start_late(self, logical: LogicalQuery) -> None:
        attempt = self.attempt
        if attempt.latch.is_released:
            logical.end()
        elif attempt.latch.state == "drain" and not attempt.latch.flush_has_begun:
            startable = logical.startable
            self._runs.continuing.hold(logical.name, startable)
            retry_until_fenced(
                attempt, "the checkpoint", lambda: self._runs.builder.ensure_for_drain(logical.name, startable)
            )
            retry_until_fenced(attempt, "the checkpoint", lambda: check_state_format(logical))
            check_sink_before_flush(attempt, logical)
        elif attempt.latch.state == "drain":
            attempt.reporter.note("a query was started when the flush had started; it is not run", query=logical.name)


def _flush_has_begun(attempt: Attempt) -> bool:
    command_id = attempt.latch.order.command_id
    return any(isinstance(event, Draining) and event.command_id == command_id for event in attempt.reporter.events)


EndProcess = Callable[[int], None]
AFTER_DEFECT_SECONDS = 5.0


class Agent:
    """Polls commands, obeys them, and reports.

    Args:
        end_process: ends the process with a status, from any thread; in a real driver it does not return.
        open_mirror: opens the mirrors of the deployment; None for no mirroring.
        launch_folder: in which the machine asks the driver to end; "" if not set.
    """

    def __init__(
        self,
        attempt_life: AttemptLife,
        end_process: EndProcess,
        open_mirror: OpenMirror | None = None,
        launch_folder: str = "",
    ) -> None:
        self._attempt: Attempt = attempt_life.attempt
        self._mirroring = None if open_mirror is None else Mirroring(self._attempt, open_mirror)
        self._end_process = end_process
        self._desk = CommandHandler(self._attempt)
        self._periodic = PeriodicSnapshots(self._attempt, self._desk.give_way)
        self._self_drain = SelfDrain(self._attempt)
        self._machine_stop = MachineStop(self._attempt, launch_folder)
        self._heart = HeartbeatWriter(self._attempt)
        self._groups = GroupCommits(self._attempt)
        self._stopped = threading.Event()
        self._is_polling = False
        self._is_ended = False
        self._quiet_until = 0.0

    # threads

    def start(self) -> None:
        """Start both loops as daemon threads, a third one that seals older snapshots, and mirroring."""
        settings = self._attempt.spec.version.settings
        for name, step, seconds in (
            ("streamstate-commands", self.poll_commands_once, settings.command_poll_seconds),
            ("streamstate-heartbeat", self.beat_once, settings.heartbeat_seconds),
        ):
            threading.Thread(target=self._loop, args=(step, seconds), name=name, daemon=True).start()
        threading.Thread(target=self._seal_later, name="streamstate-seals", daemon=True).start()
        if self._mirroring is not None and self._attempt.spec.version.mirrors:
            self._attempt.in_background(self._mirror)

    def stop(self) -> None:
        """Let both loops end; does not wait for them."""
        self._stopped.set()

    def _loop(self, step: Callable[[], None], seconds: float) -> None:
        while not self._stopped.is_set():
            step()
            self._attempt.clock.sleep(seconds)

    def _mirror(self) -> None:
        while not self._stopped.is_set() and self._mirroring is not None:
            try:
                self._mirroring.round()
            except Exception:
                self._attempt.reporter.say(f"unexpected, the job continues (the mirrors): {traceback.format_exc()}")
            self._attempt.clock.sleep(ROUND_SECONDS)

    def _seal_later(self) -> None:
        self._attempt.clock.sleep(SEAL_OLDER_AFTER_SECONDS)
        if not self._stopped.is_set():
            self._attempt.in_background(lambda: seal_older(self._attempt))

    # steps

    def poll_commands_once(self) -> None:
        """Obey the commands, to their end; report a first commit at once; end an overdue script."""
        # A simulation has one thread: a step inside a step, or inside a start(), waits for the next round.
        if self._is_polling or self._attempt.latch.is_held_here:
            return
        self._is_polling = True
        try:
            self._guarded("a poll of the commands", self._poll)
        finally:
            self._is_polling = False

    def beat_once(self) -> None:
        """Write a heartbeat, and check whether this attempt was replaced."""
        if not self._attempt.latch.is_held_here:
            self._guarded("a sign of life", self._beat)

    def _poll(self) -> None:
        attempt = self._attempt
        attempt.fence.check()
        self._machine_stop.order_if_asked()
        self._desk.poll()
        self._self_drain.order_if_finished()
        tell_failed_queries(attempt)
        if attempt.spec.version.on_query_failure == "fail" and attempt.queries.first_failed is not None:
            fail_with_query(attempt, attempt.queries.first_failed)
        if not self._desk.is_trying_a_drain:
            self._periodic.take_if_due()
        self._groups.commit_new()
        if self._heart.has_news():
            self._beat()
            attempt.control.cells.tell(attempt.stream_id)
        attempt.reporter.flush()
        status = end_overdue_script(attempt)
        if status is not None:
            self._end(status)

    def _beat(self) -> None:
        if self._attempt.is_over:
            # Ended, not replaced: the last batch is reported while no other attempt is current.
            stored = self._attempt.control.register()
            if stored is not None and self._attempt.fence.names_this(stored.value):
                self._heart.beat()
            return
        self._attempt.fence.check_current()
        self._heart.beat()
        self._attempt.reporter.answered("the register")

    def _guarded(self, doing: str, step: Callable[[], None]) -> None:
        if self._is_ended or self._attempt.clock.monotonic_seconds() < self._quiet_until:
            return
        try:
            step()
        except FencedError:
            self._leave()
        except StreamStateError as error:
            self._attempt.reporter.outage(doing, error)
        except Exception:
            # Law 7: no object in the store, and no defect of this package, ends the job.
            self._quiet_until = self._attempt.clock.monotonic_seconds() + AFTER_DEFECT_SECONDS
            self._attempt.reporter.say(f"unexpected, the job continues ({doing}): {traceback.format_exc()}")
        else:
            self._attempt.reporter.answered(doing)

    def _leave(self) -> None:
        """Replaced: stop the queries without writing to any log, then end the process (Law 4)."""
        for query in self._attempt.queries.all():
            try:
                if query.run is not None and not query.run.has_ended():
                    query.run.stop()
            except Exception:
                self._attempt.reporter.say(f"query {query.name} could not be stopped: {traceback.format_exc()}")
        self._end(FENCED_STATUS)

    def _end(self, status: int) -> None:
        self._is_ended = True
        self._end_process(status)
