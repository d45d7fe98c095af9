"""A simulated driver that rehearses: its script begins its queries once, their plans are recorded, and none runs.

What the plans are is what the deployment of now recorded; a script that is to be found bad shows it where it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from airflow_streamstate.clock import Clock
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.plan.model import RecordedPlan
from airflow_streamstate.plan.recorded import record_plan, recorded_plans
from airflow_streamstate.protocol.rehearsals import RehearsalVerdict, RehearsedQuery

SECONDS = 0.7


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
    rehearsal = control.rehearsal(rehearsal_id)
    assert rehearsal is not None
    clock.sleep(SECONDS)
    seen = _Pass(clock)
    script(seen)
    known = recorded_plans(control, rehearsal.deployment_id)
    for name in seen.names:
        plan = known.get(name) or replace(next(iter(known.values())), query_name=name)
        record_plan(
            control, RecordedPlan(control.stream_id, rehearsal_id, name, 1, 1, plan, clock.new_uuid(), clock.now())
        )
    control.create_verdict(
        RehearsalVerdict(
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
    )
    return 0
