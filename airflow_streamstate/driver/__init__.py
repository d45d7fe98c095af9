"""Inside the Spark driver: runs an unmodified script, and obeys the commands of its deployment.

Only ``spark`` imports pyspark. The other packages use ``attempt.ports``, which a simulation implements, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_streamstate.driver.attaching import attach as attach
    from airflow_streamstate.driver.attempt.callbacks import JobEnd as JobEnd
    from airflow_streamstate.driver.attempt.callbacks import on_drain as on_drain
    from airflow_streamstate.driver.attempt.callbacks import on_stop as on_stop

_MODULES = {
    "attach": "attaching",
    "JobEnd": "attempt.callbacks",
    "on_drain": "attempt.callbacks",
    "on_stop": "attempt.callbacks",
}
"""Public name -> its module, which is imported on first use."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
