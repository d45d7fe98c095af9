"""A real Airflow and its home, for tests of its components: with drivers that need no Spark, or with Spark's."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.plan.record import recorded_plans
from support import scripted_driver
from support.airflow_site import AirflowSite, eventually
from support.airflow_streams import NamedHome, named_home
from support.postgres import Postgres, postgres


class Place:
    """One Airflow for all tests of a file, and the home that it names."""

    def __init__(self, site: AirflowSite, home: NamedHome, scripts: Path) -> None:
        self.site = site
        self.home = home
        self.scripts = scripts

    def unused(self, name: str) -> str:
        """A stream that was never deployed: a try after one that was cut short finds nothing of that."""
        names = (name, *(f"{name}-{number}" for number in range(2, 10)))
        return next(each for each in names if self.home.home.control(each).register() is None)

    def start(self, dag_id: str, stream_id: str, word: str, **conf: Any) -> str:
        """Trigger a run, with a script that behaves like this; gives its id."""
        script = scripted_driver.script(self.scripts, word, name=f"{word}.py")
        return self.site.trigger(dag_id, {"stream_id": stream_id, "application": str(script), **conf})

    def wait_task(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Until a task is in that state."""
        found: list[str] = []

        def is_so() -> bool:
            path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
            found.append(str(self.site.call("GET", path)["state"]))
            return found[-1] == state

        eventually(is_so, f"{task_id} of {dag_id} is {state}; it was {found[-1:]}", 120)

    def wait_triggerer(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Until a triggerer has taken a deferred task."""

        def is_taken() -> bool:
            task = self.site.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}")
            return task["trigger"] is not None and task["trigger"]["triggerer_id"] is not None

        eventually(is_taken, f"{task_id} of {dag_id} has a triggerer", 120)

    def wait_put_off(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Until a task is deferred, and the scheduler knows that its worker has ended."""
        self.wait_task(dag_id, run_id, task_id, "deferred")
        eventually(lambda: self.site.has_let_go(dag_id, run_id, task_id), f"the end of {task_id}'s worker", 120)

    def wait_state(self, stream_id: str, *states: str) -> None:
        """Until a stream is in one of these states."""
        hook = self.home.hook()

        def is_known() -> bool:
            return any(one.stream_id == stream_id and one.state in states for one in hook.client.statuses())

        eventually(is_known, f"{stream_id} is {states}", 120)

    def wait_plans(self, stream_id: str, deployment_id: str) -> None:
        """Until the driver of a deployment has recorded the plan of a query."""
        control = self.home.home.control(stream_id)
        eventually(lambda: recorded_plans(control, deployment_id) or None, f"a plan of {deployment_id}", 120, every=0.1)

    def mark_failed(self, dag_id: str, run_id: str, task_id: str) -> None:
        """As a user does."""
        self.site.call("PATCH", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}", {"new_state": "failed"})

    def clear(self, dag_id: str, run_id: str, task_id: str) -> None:
        """As a user does."""
        body = {"dry_run": False, "dag_run_id": run_id, "only_failed": False, "task_ids": [task_id]}
        self.site.call("POST", f"/dags/{dag_id}/clearTaskInstances", body)


@contextmanager
def spark_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dags: Mapping[str, str], *dag_ids: str
) -> Iterator[tuple[Place, Postgres]]:
    """An Airflow whose streams run on Spark and whose metadata is in PostgreSQL.

    Args:
        dags: text by file name.
        dag_ids: of the DAGs in them; each is active.
    """
    (folder / "dags").mkdir()
    for name, text in dags.items():
        (folder / "dags" / name).write_text(text)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    with postgres() as database, named_home(folder, monkeypatch) as home:
        environment = {
            "AIRFLOW_CONN_STREAMSTATE_DEFAULT": home.connection,
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database.url.replace("+pg8000", "+psycopg2"),
        }
        with AirflowSite(folder / "airflow", folder / "dags", environment) as site:
            site.wait_for_dags(*dag_ids)
            for dag_id in dag_ids:
                site.unpause(dag_id)
            yield Place(site, home, folder), database
