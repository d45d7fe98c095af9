"""Upgrades by operators: pushed XComs, and a triggerer and workers that take turns."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_streamstate.control.upgrade_journal import UpgradeJournal
from airflow_streamstate.controller.request.requests import deploy_request
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.operators.declared import ApplyStreamsOperator
from airflow_streamstate.operators.upgrade import UpgradeOperatorBase
from airflow_streamstate.triggers.streamstate import StreamStateTrigger
from support import scripted_driver
from support.airflow_streams import NamedHome

Driving = UpgradeOperatorBase | ApplyStreamsOperator


class Pushed(dict[str, Any]):
    """What a task pushed."""

    def push(self, key: str, value: Any) -> None:
        """As a task instance does."""
        self[key] = value


def run_first_version(home: NamedHome, folder: Path, stream_id: str = "flights", *more: str) -> None:
    """A stream that runs, by a scripted driver; ``more`` words for its script."""
    script = scripted_driver.script(folder, "proves", *more, name="first.py")
    hook = home.hook()
    hook.client.deploy(deploy_request(stream_id, script, master="local[2]"))
    hook.client.wait(WaitCondition("healthy", stream_id, "d-0001"), timeout_seconds=30, poll_interval_seconds=0.05)


def deferral_of(task: Driving, context: Any, event: Any = None, kwargs: Any = None) -> TaskDeferred:
    """A worker takes the task, from its beginning or with an event, and lets go of it again."""
    found = turn(task, context, event, kwargs)
    assert isinstance(found, TaskDeferred), found
    return found


def turn(task: Driving, context: Any, event: Any = None, kwargs: Any = None) -> Any:
    """What a worker brings: a result, or that it was deferred."""
    try:
        if event is None:
            return task.execute(context)
        return task.execute_complete(context, event, **(kwargs or {}))
    except TaskDeferred as deferred:
        return deferred


def event_of(deferred: TaskDeferred) -> Any:
    """What a triggerer makes of it: the trigger is rebuilt from what the database keeps."""
    path, values = deferred.trigger.serialize()
    assert path.endswith("StreamStateTrigger")

    async def first() -> Any:
        async for event in StreamStateTrigger(**values).run():
            return event.payload
        raise AssertionError("it ended without an event")

    return asyncio.run(first())


def taken_by(home: NamedHome, upgrade_id: str, stream_id: str = "flights") -> set[str]:
    """The actors that took the steps of an upgrade."""
    return {step.taken_by for step in UpgradeJournal(home.home.control(stream_id)).steps(upgrade_id)}


def phases(home: NamedHome, upgrade_id: str, stream_id: str = "flights") -> list[str]:
    """The phases that an upgrade went through."""
    steps = UpgradeJournal(home.home.control(stream_id)).steps(upgrade_id)
    return list(dict.fromkeys(step.phase for step in steps))
