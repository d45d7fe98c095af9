"""A simulated driver that rehearses: its script starts its queries once, their plans are recorded, and none runs.

What the plans are is what the deployment of now recorded; a script that should be found bad shows it where it runs.
Where its record asks for that, the driver waits then, until a handover names the attempt that it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import HomeAwayError
from airflow_streamstate.plan.model import RecordedPlan
from airflow_streamstate.plan.record import record_plan, recorded_plans
from airflow_streamstate.protocol.scratch import Handover, RehearsedQuery, ScratchVerdict, Waiting

SECONDS = 0.7
POLL_SECONDS = 0.4
MAX_WAIT_SECONDS = 600.0
"""A life has an end: what waits for longer than any of its steps may take is not waited for."""
PATIENT_TRIES = 30
Result = TypeVar("Result")
Judged = Callable[[ScratchVerdict], ScratchVerdict]


class _Over:
    """A query that has ended."""

    ended = True

    def await_termination(self, _seconds: float | None = None) -> bool:
        return True

    def failure(self) -> None:
        return None


class _Pass:
    """The pass of a script in which nothing runs."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.names: list[str] = []

    def start(self, _plan: object, name: str = "counts", **_: object) -> _Over:
        self.names.append(name)
        return _Over()


def rehearse(
    control: StreamControl,
    rehearsal_id: str,
    clock: Clock,
    script: Callable[[Any], None],
    judged: Judged | None = None,
) -> Handover | None:
    """The life of a rehearsing driver, which ends by itself; or which attempt it has become.

    Args:
        judged: gives the verdict instead of the good one, which it is given.
    """
    run = _patiently(clock, lambda: control.scratch_run(rehearsal_id))
    assert run is not None
    rehearsal = run.rehearsal
    clock.sleep(SECONDS)
    seen = _Pass(clock)
    script(seen)
    known = _patiently(clock, lambda: recorded_plans(control, run.deployment_id))
    for name in seen.names:
        plan = known.get(name) or replace(next(iter(known.values())), query_name=name)
        recorded = RecordedPlan(control.stream_id, rehearsal_id, name, 1, 1, plan, clock.new_uuid(), clock.now())
        _patiently(clock, partial(record_plan, control, recorded))
    accepted = {name: RehearsedQuery("accepted", "restored", SECONDS) for name in seen.names}
    verdict = ScratchVerdict(
        stream_id=control.stream_id,
        run_id=rehearsal_id,
        outcome="done",
        queries=accepted,
        seeded={name: replace(each, start="seeded") for name, each in accepted.items() if rehearsal.seeds == "always"},
        error="",
        seconds=SECONDS,
        given_by="driver",
        given_at=clock.now(),
        write_id=clock.new_uuid(),
        spark_version="4.2.0",
    )
    given = verdict if judged is None else judged(verdict)
    _patiently(clock, lambda: control.create_verdict(given))
    if rehearsal.waits_until is None or given is not verdict:
        return None
    clock.sleep(SECONDS)
    waiting = Waiting(control.stream_id, rehearsal_id, clock.now(), clock.new_uuid())
    _patiently(clock, lambda: control.create_waiting(waiting))
    until = min(rehearsal.waits_until, clock.now() + timedelta(seconds=MAX_WAIT_SECONDS))
    while clock.now() < until:
        handover = _patiently(clock, lambda: control.handover(rehearsal_id))
        if handover is not None:
            return handover
        clock.sleep(POLL_SECONDS)
    return None


def _patiently(clock: Clock, act: Callable[[], Result]) -> Result:
    """As a real one: a home that is away is waited for."""
    for _ in range(PATIENT_TRIES):
        try:
            return act()
        except HomeAwayError:
            clock.sleep(1.0)
    return act()
