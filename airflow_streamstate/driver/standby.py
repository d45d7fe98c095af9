"""The second pass of a rehearsed script: it waits at its first ``start()`` until a handover makes it an attempt.

After the handover the driver claims, and the held ``start()`` goes through name, checkpoint, sink and plan as in a cold
driver. If no handover comes in time, the process ends, and the stream is unchanged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from airflow_streamstate.control.objects import Bell
from airflow_streamstate.control.upgrade_journal import UpgradeJournal
from airflow_streamstate.driver.agent.agent import AttemptLife
from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.driver.rehearsal.warming import ask_again, warm, warm_with_rows
from airflow_streamstate.driver.shutdown.script_end import FENCED_STATUS, ScriptFailure
from airflow_streamstate.driver.start.query_names import NameBook
from airflow_streamstate.errors import FencedError, ObjectExistsError, StreamStateError
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.ids import upgrade_of_rehearsal
from airflow_streamstate.protocol.scratch import Handover, ScratchRun, Waiting

GIVEN_UP_STATUS = 0
FAILED_STATUS = 1
POLL_SECONDS_ON_DISK = 0.05
SHARE_ON_S3 = 0.05
"""A pause between two polls on S3, as a share of the time waited so far: it adds to the downtime of the stream."""
WARM_AGAIN_SECONDS = 30.0
"""Longest wait for warming the first query; the first pass did most of it, and a controller waits for this driver."""
LOOK_SECONDS = 60.0
"""Pause between two checks of whether the upgrade that launched this driver has ended."""
ASK_AGAIN_SECONDS = 300.0
"""Pause between two questions to the first query's sink, which keep its connector warm."""


class WaitingDriver:
    """The second pass.

    Args:
        become: makes this process the attempt that a handover names, with its agent running; raises StreamStateError.
        end_process: ends the process with a status, from any thread; in a real driver it does not return.
        bell: rung once a handover is written; None if not set.
    """

    def __init__(
        self,
        attempt: Attempt,
        run: ScratchRun,
        become: Callable[[Handover], AttemptLife],
        end_process: Callable[[int], None],
        bell: Bell | None = None,
    ) -> None:
        self.attempt = attempt
        self._bell = bell or Bell(None)
        self._scratch = run
        self._rehearsal_id = run.run_id
        self._upgrade_id = upgrade_of_rehearsal(run.request_id)
        self._until = run.rehearsal.waits_until or attempt.clock.now()
        self._become = become
        self._end_process = end_process
        on_disk = not attempt.control.home.uri.startswith("s3:")
        self._max_poll_seconds = POLL_SECONDS_ON_DISK if on_disk else attempt.spec.version.settings.command_poll_seconds
        self._waits_since_seconds = self._asked_at_seconds = attempt.clock.monotonic_seconds()
        self._looked_at_seconds = -LOOK_SECONDS
        self._session: tuple[str, str, Sequence[str]] | None = None
        self._successor: AttemptLife | None = None
        self._fate: Literal["handed over", "given up"] | None = None
        self._fate_guard = threading.Lock()
        self._first_start = threading.Lock()
        self._ask_again: Callable[[], None] | None = None

    # what the script does

    def session_started(self, spark_version: str, application_id: str, notes: Sequence[str] = ()) -> None:
        """Keep the session's facts for the successor."""
        self._session = (spark_version, application_id, notes)

    def start_query(
        self, requested_name: str | None, own_checkpoint_location: str | None, startable: StartableQuery
    ) -> LogicalQuery:
        """The intercepted ``start()``; each waits until this driver has become an attempt."""
        with self._first_start:
            if self._successor is None:
                self._warm(requested_name, own_checkpoint_location, startable)
                self._successor = self._waited(requested_name or "")
        return self._successor.start_query(requested_name, own_checkpoint_location, startable)

    def script_ended(self, failure: ScriptFailure | None) -> int:
        """The script has ended; the exit status of the process."""
        if self._successor is not None:
            return self._successor.script_ended(failure)
        self._decide("given up")
        return GIVEN_UP_STATUS if failure is None else failure.exit_status

    # waiting

    @property
    def is_over(self) -> bool:
        """Whether this driver took over or stopped waiting: its deadline is not watched any more."""
        return self._fate is not None

    def end_if_overdue(self) -> int | None:
        """The exit status where no handover came in time; None before, and after a handover."""
        if self.attempt.clock.now() < self._until or not self._decide("given up"):
            return None
        self.attempt.reporter.say(f"nothing was handed over until {format_time(self._until)}; this driver ends")
        return GIVEN_UP_STATUS

    def _warm(self, requested_name: str | None, own_checkpoint_location: str | None, startable: StartableQuery) -> None:
        """Warm the first query in this new session, before the old version gets its barrier."""
        try:
            names = NameBook(self.attempt.spec.start.rename_queries)
            name = names.name_of(requested_name, own_checkpoint_location, startable.facts.plan_fingerprint)
        except StreamStateError:
            return  # its start will be refused for the same reason
        warm(self.attempt, name, startable, WARM_AGAIN_SECONDS)
        warm_with_rows(self.attempt, name, startable, self._scratch)
        self._ask_again = partial(ask_again, self.attempt, name, startable)

    def _waited(self, query_name: str) -> AttemptLife:
        self._say_waiting(query_name)
        self._waits_since_seconds = self._asked_at_seconds = self.attempt.clock.monotonic_seconds()
        handover = self._handover()
        while handover is None or not self._decide("handed over"):
            self._pause()
            handover = self._handover()
        self.attempt.reporter.say(f"takes over as {handover.deployment_id} attempt {handover.attempt}")
        try:
            successor = self._become(handover)
        except StreamStateError as error:
            # Not raised into the script alone: it could take this for the refusal of one query, and continue.
            self.attempt.reporter.say(str(error))
            self._end_process(FENCED_STATUS if isinstance(error, FencedError) else FAILED_STATUS)
            raise
        if self._session is not None:
            successor.session_started(*self._session)
        return successor

    def _say_waiting(self, query_name: str) -> None:
        clock = self.attempt.clock
        waiting = Waiting(
            stream_id=self.attempt.stream_id,
            rehearsal_id=self._rehearsal_id,
            at=clock.now(),
            write_id=clock.new_uuid(),
            query_name=query_name,
        )
        while True:
            try:
                self.attempt.control.create_waiting(waiting)
                break
            except ObjectExistsError:
                break
            except StreamStateError as error:
                self.attempt.reporter.outage("that it waits", error)
            self._pause()
        self.attempt.reporter.say(f"waits at its first start(), until {format_time(self._until)}")

    def _handover(self) -> Handover | None:
        try:
            return self.attempt.control.handover(self._rehearsal_id)
        except StreamStateError as error:
            self.attempt.reporter.outage("the handover", error)
            return None

    def _pause(self) -> None:
        status = self.end_if_overdue()
        if status is None:
            status = self._end_if_left()
        if status is not None:
            self._end_process(status)
        self._keep_warm()
        clock = self.attempt.clock
        share_seconds = SHARE_ON_S3 * (clock.monotonic_seconds() - self._waits_since_seconds)
        self._bell.pause(clock, min(max(share_seconds, POLL_SECONDS_ON_DISK), self._max_poll_seconds))

    def _end_if_left(self) -> int | None:
        """The exit status where the upgrade that launched this driver has ended without a handover; else None."""
        now = self.attempt.clock.monotonic_seconds()
        if self._upgrade_id is None or now < self._looked_at_seconds + LOOK_SECONDS:
            return None
        self._looked_at_seconds = now
        try:
            state = UpgradeJournal(self.attempt.control).state(self._upgrade_id)
        except StreamStateError as error:
            self.attempt.reporter.outage("its upgrade", error)
            return None
        if state is None or not state.is_over or self._handover() is not None or not self._decide("given up"):
            return None
        self.attempt.reporter.say(f"upgrade {self._upgrade_id} has ended without a handover; this driver ends")
        return GIVEN_UP_STATUS

    def _keep_warm(self) -> None:
        """An approval may take an hour."""
        now = self.attempt.clock.monotonic_seconds()
        if self._ask_again is not None and now - self._asked_at_seconds >= ASK_AGAIN_SECONDS:
            self._asked_at_seconds = now
            self._ask_again()

    def _decide(self, fate: Literal["handed over", "given up"]) -> bool:
        """Decide once; False where the other thread has decided otherwise."""
        with self._fate_guard:
            if self._fate is None:
                self._fate = fate
            return self._fate == fate
