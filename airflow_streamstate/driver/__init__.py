"""Inside the Spark driver: runs an unmodified script, and obeys the commands of its deployment.

``attempt``, ``starting``, ``ending`` and ``agent`` decide; ``spark`` is the only room that touches pyspark. What the
first need of the second is ``attempt.ports``, so that the deciding half runs against simulated queries too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_streamstate.driver.attaching import attach as attach
    from airflow_streamstate.driver.job import JobEnd as JobEnd
    from airflow_streamstate.driver.job import on_drain as on_drain
    from airflow_streamstate.driver.job import on_stop as on_stop

_ROOMS = {"attach": "attaching", "JobEnd": "job", "on_drain": "job", "on_stop": "job"}
"""What a script may import from here: looked up when it is asked for, so that no driver pays for it."""


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_ROOMS[name]}"), name)
