"""A home of a checkout before the first release is refused by all that runs in Airflow, and left as it is. (Law 7)"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import HomeFormatError
from airflow_streamstate.operators.deploy import DeployStreamOperator
from airflow_streamstate.operators.stop import DrainStreamOperator
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.sensors.streamstate import StreamHealthSensor
from airflow_streamstate.triggers.streamstate import StreamStateTrigger, read_event
from support.airflow_fixtures import MakeContext
from support.airflow_streams import CONN_ID, NamedHome
from support.earlier_home import STREAM_THERE, WORDS, earlier_home


@pytest.mark.parametrize("deferrable", [False, True])
def test_no_task_waits_for_it_or_writes_to_it(named: NamedHome, context: MakeContext, deferrable: bool) -> None:
    """A task fails at once: a retry would find the same home."""
    script = named.base / "job.py"
    script.write_text("runs\n")
    tasks = (
        DeployStreamOperator(task_id="deploy", stream_id="flights", application=str(script), deferrable=deferrable),
        DrainStreamOperator(task_id="drain", stream_id=STREAM_THERE, deferrable=deferrable),
        StreamHealthSensor(task_id="healthy", stream_id=STREAM_THERE, deferrable=deferrable),
    )
    with earlier_home(Path(named.config.home_uri)):
        for task in tasks:
            with pytest.raises(AirflowFailException, match=WORDS):
                task.execute(context())


def test_a_trigger_ends_with_the_refusal(named: NamedHome) -> None:
    """It does not poll a home that it cannot read until its deadline."""
    watch = WaitCondition("drained", STREAM_THERE, "d-0001")
    deadline_at = format_time(SYSTEM_CLOCK.now() + timedelta(seconds=30))
    waiting = StreamStateTrigger(
        watch=watch.to_json(), streamstate_conn_id=CONN_ID, deadline_at=deadline_at, poll_interval_seconds=0.02
    )

    async def first() -> object:
        async for event in waiting.run():
            return event.payload
        raise AssertionError("it ended without an event")

    with earlier_home(Path(named.config.home_uri)):
        assert isinstance(read_event(asyncio.run(first())).error, HomeFormatError)  # type: ignore[arg-type]
