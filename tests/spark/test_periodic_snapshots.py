"""Snapshots that the agent takes by itself, and those that are asked for, of real queries that run on."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.protocol.commands import SnapshotRequest
from airflow_streamstate.protocol.events import Ignored, SnapshotReady
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.snapshot.verify import verify
from support.drivers import WINDOWED_COUNTS, Deployments, seconds_of, wait_until
from support.real_queries import PROVIDERS

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

TWO_QUERIES = """
one = counts.writeStream.queryName("counts").format("json").start(base + "/out")
two = rows.writeStream.queryName("rows").format("json").start(base + "/rows")
one.awaitTermination()
two.awaitTermination()
"""
# Some seconds after a batch Spark's maintenance writes a full state next to the changes of its version.
MAINTAINED = {
    "spark.sql.streaming.stateStore.providerClass": PROVIDERS["hdfs"],
    "spark.sql.streaming.stateStore.maintenanceInterval": "4s",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "1",
}
SETTINGS = AgentSettings(command_poll_seconds=0.1, heartbeat_seconds=1.0, snapshot_every_seconds=1.0)
QUIET_SECONDS = 3.0


@pytest.mark.named
def test_they_come_by_themselves_and_two_of_one_position_are_equal(tmp_path: Path) -> None:
    """Each query at its own committed batch; none where nothing is new; what is asked for at the same position holds
    the same items under the same digest, although Spark has rewritten its state; one request is one snapshot; and a
    new version continues from a periodic one as from any other."""
    with Deployments(tmp_path) as stream:

        def batches() -> list[dict[str, int | None]]:
            return [
                {name: position.batch_id for name, position in event.queries.items()}
                for event in stream.events(SnapshotReady)
            ]

        def ask(request_id: str, **more: object) -> str:
            return stream.order(SnapshotRequest, request_id=request_id, ttl_seconds=60.0, **more)

        def committed() -> dict[str, int | None]:
            return {name: max(stream.committed(name), default=None) for name in ("counts", "rows")}

        driver = stream.deploy(WINDOWED_COUNTS + TWO_QUERIES, str(tmp_path), settings=SETTINGS, conf=MAINTAINED)
        for minute in range(3):
            stream.feed({"t": seconds_of(minute, 1), "k": "a", "v": minute})
            stream.wait_committed("rows", minute, driver)
            stream.wait_committed("counts", 2 * minute, driver)  # a batch without input follows each, and moves windows
            wait_until(
                lambda: bool(batches()) and batches()[-1] == committed(),
                lambda: f"a snapshot of {committed()}, {batches()}:\n{driver.log}",
                30,
            )
        state = stream.checkpoint_folder("counts") / "state" / "0"
        wait_until(lambda: all(any((state / one).glob("*.snapshot")) for one in "01"), lambda: driver.log, 30)
        SYSTEM_CLOCK.sleep(QUIET_SECONDS)
        taken = len(batches())
        SYSTEM_CLOCK.sleep(QUIET_SECONDS)
        assert len(batches()) == taken
        assert batches()[-1] == committed()
        assert batches()[-1]["counts"] != batches()[-1]["rows"]
        assert all_ids(stream) == [f"d-0001-live-a0001-{number:06d}" for number in range(1, taken + 1)]

        ids = [ask("r-1"), ask("r-2"), ask("r-1")]
        late = ask("r-3", requested_at=SYSTEM_CLOCK.now() - timedelta(seconds=61))
        wait_until(lambda: len(stream.events(Ignored)) == 2, lambda: driver.log, 30)
        assert [event.command_id for event in stream.events(Ignored)] == [ids[2], late]
        assert batches()[taken:] == [batches()[taken - 1]] * 2

        manifests = [stream.manifest(snapshot_id) for snapshot_id in all_ids(stream)[taken - 1 :]]
        assert len({manifest.content_digest for manifest in manifests}) == 1
        items = [{name: query.files for name, query in manifest.queries.items()} for manifest in manifests]
        assert items[0] == items[1] == items[2]
        assert len({manifest.content_digest for manifest in map(stream.manifest, all_ids(stream))}) == taken
        assert [verify(stream.control, stream.home, one) for one in all_ids(stream)] == [[]] * (taken + 2)

        stream.stop()
        assert driver.exit_status() == 0, driver.log
        second = stream.deploy(
            WINDOWED_COUNTS + TWO_QUERIES,
            str(tmp_path),
            start=StartPlan("restore", all_ids(stream)[taken - 1], "d-0001"),
        )
        stream.feed({"t": seconds_of(9, 1), "k": "b", "v": 9})
        stream.wait_committed("rows", 3, second)
        stream.stop()
        assert second.exit_status() == 0, second.log
        assert sorted(str(row["k"]) for row in stream.output("rows")) == ["a", "a", "a", "b"]


def all_ids(stream: Deployments) -> list[str]:
    """The snapshots that the first deployment reported, in order."""
    return [event.snapshot_id for event in stream.events(SnapshotReady, "d-0001")]
