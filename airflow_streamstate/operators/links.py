"""The links beside a task instance: the stream's page, the driver's log, Spark's UI, the plan, the snapshot.

The api-server shows the XCom under a link's key. An operator pushes it as soon as it knows it, so that a link works
while the task runs; Airflow pushes what ``get_link`` returns once more when the process of the task ends or defers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom, conf

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, TaskInstanceKey

PAGE = "/plugin/streamstate/streamstate/streams"
"""The stream's page below Airflow's address, by the routes of the plugin: the view, the app, the app's own path."""


def page_url(conn_id: str, stream_id: str, part: str = "") -> str:
    """The address of a stream's page within Airflow.

    Args:
        part: the tab to open; "" for the first.
    """
    base = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")
    page = f"{base}{PAGE}/{quote(conn_id, safe='')}/{quote(stream_id, safe='')}"
    return f"{page}#{part}" if part else page


class StreamLink(BaseOperatorLink):
    """Base of the links; not for use by itself."""

    name = ""

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """What the task has pushed: in this process, or before it was deferred; "" for nothing."""
        pushed: Mapping[str, str] = getattr(operator, "pushed_links", {})
        return pushed.get(self.xcom_key) or XCom.get_value(ti_key=ti_key, key=self.xcom_key) or ""


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


def links_of(conn_id: str, stream_id: str, pages: Mapping[str, str]) -> dict[str, str]:
    """The links of a stream, by the keys of their XComs.

    Args:
        pages: the launcher's pages about the driver, as ``StreamStatus.links``.
    """
    found = {
        StreamPageLink().xcom_key: page_url(conn_id, stream_id),
        DriverLogLink().xcom_key: page_url(conn_id, stream_id, "log"),
        PlanReportLink().xcom_key: page_url(conn_id, stream_id, "plan"),
        SnapshotLink().xcom_key: page_url(conn_id, stream_id, "snapshots"),
    }
    spark_ui = pages.get(SparkUILink.name)
    return found if spark_ui is None else {**found, SparkUILink().xcom_key: spark_ui}
