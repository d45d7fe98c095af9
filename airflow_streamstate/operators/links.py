"""The links of a task instance: the stream's page, the driver's log, Spark's UI, the plan, the snapshot.

Each leads to what the task has acted on: the deployment, upgrade, plan and snapshot of its run, also when the stream
has moved on. The api-server shows the XCom under a link's key. An operator pushes it as soon as it knows it, so that a
link works while the task runs; Airflow pushes what ``get_link`` returns once more when the process of the task ends or
defers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom, conf

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, TaskInstanceKey

PAGE = "/plugin/streamstate/streamstate/streams"
"""The stream's page below Airflow's address, by the routes of the plugin: the view, the app, the app's own path."""


OPEN = "/streamstate/api/open"
"""What leads to a page about a driver whose address is made for the user who asks (``page.app``)."""

QUERY_NAMES: Mapping[str, str] = {
    "deployment_id": "deployment",
    "upgrade_id": "upgrade",
    "rehearsal_id": "plan",
    "snapshot_id": "snapshot",
}
"""What an address of the page may ask for (``static/stream.js``), by the name of the id in results and XComs."""


def page_url(conn_id: str, stream_id: str, part: str = "", ids: Mapping[str, str] | None = None) -> str:
    """The address of a stream's page within Airflow.

    Args:
        part: the tab to open; "" for the first.
        ids: of what to show, by the names of ``QUERY_NAMES``; what is not named is the current one.
    """
    page = f"{_base()}{PAGE}/{quote(conn_id, safe='')}/{quote(stream_id, safe='')}"
    asked = {word: (ids or {})[name] for name, word in QUERY_NAMES.items() if (ids or {}).get(name)}
    query = f"?{urlencode(asked)}" if asked else ""
    return f"{page}{query}#{part}" if part else f"{page}{query}"


def _base() -> str:
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")


def _open_url(conn_id: str, stream_id: str, page: str, ids: Mapping[str, str] | None) -> str:
    """Without what lets anybody in: an XCom is read by every user who may see the DAG."""
    asked = {"conn_id": conn_id, "stream_id": stream_id, "page": page}
    deployment_id = (ids or {}).get("deployment_id")
    return f"{_base()}{OPEN}?{urlencode({**asked, **({'deployment_id': deployment_id} if deployment_id else {})})}"


class StreamLink(BaseOperatorLink):
    """Base of the links; not for use by itself."""

    name = ""

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """What the task has pushed: in this process, or before it was deferred; "" for nothing."""
        pushed: Mapping[str, str] | None = getattr(operator, "pushed_links", None)
        if pushed is not None:  # Airflow writes an error to the task's log where it is asked for what is not there
            return pushed.get(self.xcom_key, "")
        return XCom.get_value(ti_key=ti_key, key=self.xcom_key) or ""


class StreamPageLink(StreamLink):
    """The page of the stream."""

    name = "Stream page"


class DriverLogLink(StreamLink):
    """The end of the driver's log, secrets hidden."""

    name = "Driver log"


class SparkUILink(StreamLink):
    """Spark's UI, or its history, where the launcher knows its address."""

    name = "Spark UI"


class PlanReportLink(StreamLink):
    """The plan of the stream, with its difference to the version before."""

    name = "Plan report"


class SnapshotLink(StreamLink):
    """The snapshots of the stream."""

    name = "Snapshot"


LINKS = (StreamPageLink(), DriverLogLink(), SparkUILink(), PlanReportLink(), SnapshotLink())


def links_of(
    conn_id: str, stream_id: str, pages: Mapping[str, str], ids: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The links of a task, by the keys of their XComs.

    Args:
        pages: the launcher's pages about the driver, as ``StreamStatus.links``; "" for one that is made on a click.
        ids: of what the task has acted on, by the names of ``QUERY_NAMES``.
    """
    first = "upgrades" if (ids or {}).get("upgrade_id") else ""
    found = {
        StreamPageLink().xcom_key: page_url(conn_id, stream_id, first, ids),
        DriverLogLink().xcom_key: page_url(conn_id, stream_id, "log", ids),
        PlanReportLink().xcom_key: page_url(conn_id, stream_id, "plan", ids),
        SnapshotLink().xcom_key: page_url(conn_id, stream_id, "snapshots", ids),
    }
    spark_ui = pages.get(SparkUILink.name)
    if spark_ui is None:
        return found
    return {**found, SparkUILink().xcom_key: spark_ui or _open_url(conn_id, stream_id, SparkUILink.name, ids)}
