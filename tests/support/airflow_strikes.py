"""A component of a real Airflow that is killed while it has a task, and the task that is under way again afterwards."""

from __future__ import annotations

import os
import signal
from typing import Any, Literal

import psutil

from support.airflow_site import AirflowSite, eventually

Component = Literal["worker", "triggerer", "scheduler"]
NOTICED_SOON = {
    "AIRFLOW__CORE__PARALLELISM": "8",  # the slot of a worker that was killed comes back late
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
}
"""Settings of an Airflow that misses a killed component within half a minute, and not after five."""
AGAIN_SECONDS = 300.0


class Striker:
    """Kills a component in the middle of one task.

    Args:
        component: ``worker`` is the executor's process with the supervisor of the task, and the task's own.
    """

    def __init__(self, site: AirflowSite, component: Component, dag_id: str, run_id: str, task_id: str) -> None:
        self._site, self._component = site, component
        self._path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        self._ids = (dag_id, run_id, task_id)

    def strike(self) -> None:
        """Once the component has the task: kill it, have it started again, and wait until the task is under way again.

        Raises:
            NotInTimeError: the component never had the task, or the task is not under way again.
        """
        what = " ".join(self._ids)
        before = eventually(self._had, f"{what} in the {self._component}", AGAIN_SECONDS, every=0.1)
        if self._component == "worker":
            _kill_worker(before["pid"])
        else:
            self._site.kill(self._component)
        eventually(lambda: self._goes_on(before), f"{what} after the {self._component} was killed", AGAIN_SECONDS)

    def _task(self) -> dict[str, Any]:
        found: dict[str, Any] = self._site.call("GET", self._path)
        return found

    def _had(self) -> dict[str, Any] | None:
        """The task instance while the component has it."""
        task = self._task()
        if self._component != "triggerer":
            return task if task["state"] == "running" and task["pid"] else None
        # Before the scheduler knows of the deferral, a wake-up would end the try.
        return task if _triggerer_of(task) and self._site.has_let_go(*self._ids) else None

    def _goes_on(self, before: dict[str, Any]) -> bool:
        task = self._task()
        if self._component == "triggerer":
            return _triggerer_of(task) not in (None, _triggerer_of(before)) or task["state"] in ("running", "success")
        return task["state"] == "running" and bool(task["pid"]) and task["try_number"] > before["try_number"]


def _triggerer_of(task: dict[str, Any]) -> int | None:
    if task["state"] != "deferred" or task["trigger"] is None:
        return None
    found: int | None = task["trigger"]["triggerer_id"]
    return found


def _kill_worker(pid: int) -> None:
    # The supervisor first: one that lives reports to the scheduler at once how its task has ended.
    supervisor = psutil.Process(pid).ppid()
    for each in (supervisor, pid):
        os.kill(each, signal.SIGKILL)
