"""The section ``[streamstate]`` of Airflow's configuration, and our names among Airflow's own metrics."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow.providers.common.compat.sdk import conf

from airflow_streamstate.errors import InvalidRequestError

SECTION = "streamstate"
POLL_INTERVAL_SECONDS = 2.0
POKE_INTERVAL_SECONDS = 10.0
TRIGGER_THREADS = 32
PAGE_CONN_IDS = "streamstate_default"
PAGE_DAG_IDS = ""


def poll_interval_seconds() -> float:
    """Seconds between two polls of an operator that waits, if the operator sets none."""
    return float(conf.getfloat(SECTION, "poll_interval_seconds", fallback=POLL_INTERVAL_SECONDS))


def poke_interval_seconds() -> float:
    """Seconds between two polls of a sensor, if the sensor sets none."""
    return float(conf.getfloat(SECTION, "poke_interval_seconds", fallback=POKE_INTERVAL_SECONDS))


def trigger_threads() -> int:
    """How many threads of a triggerer look at homes."""
    return int(conf.getint(SECTION, "trigger_threads", fallback=TRIGGER_THREADS))


def restart_in_triggerer() -> bool:
    """Whether triggerers do what ``streamstate watch`` does."""
    return bool(conf.getboolean(SECTION, "restart_in_triggerer", fallback=False))


def page_conn_ids() -> tuple[str, ...]:
    """The connections whose homes the page of streams shows."""
    said = conf.get(SECTION, "page_conn_ids", fallback=PAGE_CONN_IDS)
    return tuple(dict.fromkeys(name.strip() for name in str(said).split(",") if name.strip()))


def page_dag_ids() -> Mapping[str, str]:
    """By connection, the DAG whose readers see the home on the page; of a home that is not in it, those see it who may
    read the connection.

    Raises:
        InvalidRequestError: an entry is no pair, or names a home that the page does not show.
    """
    found: dict[str, str] = {}
    for said in str(conf.get(SECTION, "page_dag_ids", fallback=PAGE_DAG_IDS)).split(","):
        if not said.strip():
            continue
        conn_id, _, dag_id = (part.strip() for part in said.partition("="))
        if not dag_id or conn_id not in page_conn_ids() or conn_id in found:
            raise InvalidRequestError(
                "page_dag_ids of Airflow's configuration is wrong",
                entry=said.strip()[:80],
                page_conn_ids=list(page_conn_ids()),
                next_step="Write CONN_ID=DAG_ID for each home of page_conn_ids that has one, separated by commas.",
            )
        found[conn_id] = dag_id
    return found


# What tasks, the trigger and the notifier add to Airflow's own metrics: names in docs/reference/metrics.md.

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
