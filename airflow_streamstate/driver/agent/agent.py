"""The agent in the driver: one daemon thread for commands, one for heartbeats.

Both loop around single steps, ``poll_commands_once`` and ``beat_once``, which a simulation calls directly.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

from airflow_streamstate.driver.agent.group_commits import GroupCommits
from airflow_streamstate.driver.agent.heartbeats import HeartbeatWriter
from airflow_streamstate.driver.agent.live_snapshots import PeriodicSnapshots
from airflow_streamstate.driver.agent.mirroring import ROUND_SECONDS, Mirroring, OpenMirror
from airflow_streamstate.driver.agent.obeying import CommandHandler
from airflow_streamstate.driver.agent.supervisor import Supervisor
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.query_failures import tell_failed_queries
from airflow_streamstate.driver.attempt.sealing import SEAL_OLDER_AFTER_SECONDS, seal_older
from airflow_streamstate.driver.shutdown.finishing import FENCED_STATUS, end_overdue_script, fail_with_query
from airflow_streamstate.driver.shutdown.machine_stops import MachineStop
from airflow_streamstate.driver.shutdown.self_drains import SelfDrain
from airflow_streamstate.errors import FencedError, StreamStateError

EndProcess = Callable[[int], None]
AFTER_DEFECT_SECONDS = 5.0


class Agent:
    """Polls commands, obeys them, and reports.

    Args:
        end_process: ends the process with a status, from any thread; in a real driver it does not return.
        open_mirror: opens the mirrors of the deployment; None for no mirroring.
        launch_folder: in which the machine asks the driver to end; "" for none.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        end_process: EndProcess,
        open_mirror: OpenMirror | None = None,
        launch_folder: str = "",
    ) -> None:
        self._attempt: Attempt = supervisor.attempt
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
                self._attempt.reporter.say(f"unexpected, the job goes on (the mirrors): {traceback.format_exc()}")
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
            self._guarded("a look at the commands", self._poll)
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
            self._attempt.reporter.say(f"unexpected, the job goes on ({doing}): {traceback.format_exc()}")
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
