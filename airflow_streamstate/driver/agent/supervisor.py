"""What ``driver.spark`` and ``driver.main`` call: one attempt's claim, starts of queries, and end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.background import InBackground, in_daemon_thread
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.driver.attempt.reporting import Say, say_to_driver_log
from airflow_streamstate.driver.shutdown.finishing import ScriptFailure, end_script
from airflow_streamstate.driver.start.claiming import claim_attempt
from airflow_streamstate.driver.start.starting import Starter
from airflow_streamstate.protocol.events import Started
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.snapshot.placing import OpenPlace
from airflow_streamstate.store.base import Store


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
        self._starter = Starter(self.attempt)
        self._session_known = False

    def claim(self, launch_key: str, host: str, pid: int) -> None:
        """Become this attempt, before anything else, and read the commands that are pending.

        Raises:
            FencedError: another attempt or deployment is current, or another driver is this attempt; nothing of the
                deployment was changed.
            UnavailableError: the store did not answer for ``lost_after_seconds``.
        """
        claim_attempt(self.attempt, launch_key, host, pid)

    def session_started(self, spark_version: str, application_id: str) -> None:
        """Report the Spark session; further sessions of the script change nothing."""
        if self._session_known:
            return
        self._session_known = True
        self.attempt.note_spark(spark_version)
        self.attempt.reporter.write_soon(Started, spark_version=spark_version, application_id=application_id)

    def start_query(
        self, requested_name: str | None, own_checkpoint_location: str | None, startable: StartableQuery
    ) -> LogicalQuery:
        """The intercepted ``start()``; see ``Starter.start``."""
        return self._starter.start(requested_name, own_checkpoint_location, startable)

    def script_ended(self, failure: ScriptFailure | None) -> int:
        """The script is over: stop its queries, wait for an ending under way, report the end.

        Returns:
            The exit status of the process: the script's own; 0 after a stop or drain; 4 where it was replaced.
        """
        return end_script(self.attempt, failure)
