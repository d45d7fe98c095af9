"""A simulated driver that rehearses: its script begins its queries once, their plans are recorded, and none runs.

What the plans are is what the deployment of now recorded; a script that is to be found bad shows it where it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import HomeAwayError
from airflow_streamstate.plan.model import RecordedPlan
from airflow_streamstate.plan.recorded import record_plan, recorded_plans
from airflow_streamstate.protocol.rehearsals import RehearsalVerdict, RehearsedQuery

SECONDS = 0.7
PATIENT_TRIES = 30
Result = TypeVar("Result")


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


def rehearse(control: StreamControl, rehearsal_id: str, clock: Clock, script: Callable[[Any], None]) -> int:
    """The life of a rehearsing driver; its exit status."""
    rehearsal = _patiently(clock, lambda: control.rehearsal(rehearsal_id))
    assert rehearsal is not None
    clock.sleep(SECONDS)
    seen = _Pass(clock)
    script(seen)
    known = _patiently(clock, lambda: recorded_plans(control, rehearsal.deployment_id))
    for name in seen.names:
        plan = known.get(name) or replace(next(iter(known.values())), query_name=name)
        recorded = RecordedPlan(control.stream_id, rehearsal_id, name, 1, 1, plan, clock.new_uuid(), clock.now())
        _patiently(clock, partial(record_plan, control, recorded))
    verdict = RehearsalVerdict(
        stream_id=control.stream_id,
        rehearsal_id=rehearsal_id,
        outcome="done",
        queries={name: RehearsedQuery("accepted", "restored", SECONDS) for name in seen.names},
        error="",
        seconds=SECONDS,
        given_by="driver",
        given_at=clock.now(),
        write_id=clock.new_uuid(),
        spark_version="4.2.0",
    )
    _patiently(clock, lambda: control.create_verdict(verdict))
    return 0


def _patiently(clock: Clock, act: Callable[[], Result]) -> Result:
    """As a real one: a home that is away is waited for."""
    for _ in range(PATIENT_TRIES):
        try:
            return act()
        except HomeAwayError:
            clock.sleep(1.0)
    return act()
