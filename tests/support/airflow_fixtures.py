"""Fixtures for everything that is built on Airflow; conftest files import them, before anything of Airflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support import airflow_home, scripted_driver
from support.airflow_streams import NamedHome, named_home

assert airflow_home.HOME.is_dir()

MakeContext = Callable[..., Any]


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NamedHome]:
    """A home on disk that the default connection names; drivers are scripted."""
    for name, value in scripted_driver.install(tmp_path / "tools").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("airflow_streamstate.triggers.streamstate.HEARD_SECONDS", 0.0)  # there is no scheduler
    with named_home(tmp_path, monkeypatch) as home:
        yield home


@pytest.fixture
def context() -> MakeContext:
    """Makes the part of a task's context that is read here."""

    def make(task_id: str = "task", run_id: str = "manual__1", try_number: int = 1, **more: Any) -> Any:
        ti = SimpleNamespace(dag_id="dag", run_id=run_id, task_id=task_id, map_index=-1, try_number=try_number)
        now = datetime.now(timezone.utc)  # noqa: TID251 - as Airflow does
        ti.get_first_reschedule_date = lambda _context: now
        ti.xcom_push = lambda **_xcom: None
        for name, value in more.items():
            setattr(ti, name, value)
        return {"ti": ti, "dag_run": SimpleNamespace(start_date=now)}

    return make
