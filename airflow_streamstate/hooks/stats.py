"""What tasks, the trigger and the notifier add to Airflow's own metrics: names in docs/reference/metrics.md."""

from __future__ import annotations

import logging
from typing import Any

_LOG = logging.getLogger(__name__)


def count(name: str, **tags: str) -> None:
    """Count one in Airflow's metrics; a backend that does not take it stops nothing."""
    try:
        _stats().incr(name, tags=tags)
    except Exception:
        _LOG.debug("this metric was not sent: %s", name, exc_info=True)


def gauge(name: str, value: float, **tags: str) -> None:
    """Set a value in Airflow's metrics; as ``count``."""
    try:
        _stats().gauge(name, value, tags=tags)
    except Exception:
        _LOG.debug("this metric was not sent: %s", name, exc_info=True)


def count_task(task: object, error: BaseException | None = None) -> None:
    """Count the end of a task of an operator."""
    tags = {"operator": type(task).__name__, "stream_id": str(getattr(task, "stream_id", ""))}
    if error is None:
        count("streamstate.task.success", **tags)
    else:
        count("streamstate.task.failure", **tags, error=type(error).__name__)


def _stats() -> Any:
    from airflow.providers.common.compat.sdk import Stats  # on use: each import of an operator would pay for it

    return Stats
