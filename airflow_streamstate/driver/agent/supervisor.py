"""One attempt of a deployment: its claim, the intercepted starts of its queries, its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.driver.attempt.answering import call_off_drain
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.background import InBackground, in_daemon_thread
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.driver.attempt.query_failures import tell_failed_queries
from airflow_streamstate.driver.attempt.reporting import Say, say_to_driver_log
from airflow_streamstate.driver.attempt.snapshotting import retry_until_fenced
from airflow_streamstate.driver.shutdown.finishing import ScriptFailure, end_script
from airflow_streamstate.driver.start.changing_names import ThisStart, describe_changing, find_changing
from airflow_streamstate.driver.start.claiming import claim_attempt
from airflow_streamstate.driver.start.naming import NameBook, last_part
from airflow_streamstate.driver.start.running import Runs, check_state_format
from airflow_streamstate.driver.start.sinks import check_sink_before_flush
from airflow_streamstate.driver.start.spark_check import check_spark
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.events import Draining, Started
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.snapshot.placing import OpenPlace
from airflow_streamstate.store.base import Store

LATE_START_SECONDS = 0.2


class Supervisor:
    """Supervises the queries of one script as one attempt of a deployment. Arguments as ``Attempt``."""

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
        """The intercepted ``start()``: start a query, or return one that is over because the latch is closed.

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
        """The script is over: stop its queries, wait for an ending under way, report the end.

        Returns:
            The exit status of the process: the script's own; 0 after a stop or drain; 4 where it was replaced.
        """
        return end_script(self.attempt, failure)

    def _remarks_on_name(self, name: str, requested_name: str | None, location: str | None) -> tuple[str, ...]:
        """Sentences on a name that is another one in the script, or at each start."""
        attempt = self.attempt
        given = attempt.spec.start.rename_queries.get(name)
        if given is not None and given == (requested_name or last_part(location)):
            return (f"the script calls query {name} {given}: its state goes on under the name that it began with",)
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
            return  # an earlier attempt began it, and it cannot be called off
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
            attempt.reporter.note("a query was started when the flush had begun; it is not run", query=logical.name)


def _flush_has_begun(attempt: Attempt) -> bool:
    command_id = attempt.latch.order.command_id
    return any(isinstance(event, Draining) and event.command_id == command_id for event in attempt.reporter.events)
