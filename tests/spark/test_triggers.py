"""A job that reads what there is and ends: its runs are attempts, and an upgrade is judged by one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.protocol.events import Finished
from airflow_streamstate.store.local import LocalStore
from support.launches import wait_until
from support.s3_stream import SCRIPT, S3Stream
from support.shell import Desk, desk_with, shell

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

ENDS_BY_ITSELF = SCRIPT.replace('trigger(processingTime="100 milliseconds")', "trigger(availableNow=True)")
TIDIES_UP = f"{ENDS_BY_ITSELF}\nimport time\ntime.sleep(4)\n"
"""Runs on for some signs of life after its query has ended."""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home in a folder; no driver left afterwards."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_")) as made:
        yield made


def finished(attempt: int) -> bool:
    """Whether the stream has come to the end of this attempt."""
    status = shell("status", "flights", "--json").json
    assert status["state"] in ("launching", "running", "finished"), status
    return (status["state"], status["attempt"]) == ("finished", attempt)


@pytest.mark.named
def test_each_run_is_an_attempt_and_one_run_is_enough_for_an_upgrade(desk: Desk) -> None:
    """From version to version and through a last drain each row is counted once, however many batches were wanted of
    the new version (Laws 2, 5, 9)."""
    stream = S3Stream(desk.base)
    stream.app.write_text(TIDIES_UP)
    stream.feed(2)
    stream.deploy("--setting", "heartbeat_seconds=1")
    wait_until(lambda: finished(1), "the end of the first run", 120)
    stream.feed(1, rows=5)
    stream.done("resume")
    wait_until(lambda: finished(2), "the end of the second run", 120)
    control = StreamControl(LocalStore(desk.home), "flights", SYSTEM_CLOCK)
    beat = control.heartbeat("d-0001")
    assert beat is not None
    assert [query.run_has_ended for query in beat.queries.values()] == [True]

    stream.feed(1)
    second = desk.base / "job_v2.py"
    second.write_text(ENDS_BY_ITSELF)
    answer = stream.done("upgrade", "--app", second, "--healthy-batches", "50").json
    assert (answer["outcome"], answer["mode"], answer["audit_ok"]) == ("upgraded", "restore", True)
    assert answer["warnings"] == []
    assert [type(entry.event) for entry in control.journal("d-0002").events()][-1] is Finished
    assert stream.done("drain").json["queries"]["counts"]["state_rows_left"] == 0
    assert stream.written() == stream.expected()
    assert shell("audit", "flights", "--json").json["ok"]
