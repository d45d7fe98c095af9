"""Scripts that speak for themselves, on real Spark: ``attach()`` with ``foreach``, ``on_drain`` and ``on_stop``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_streamstate.protocol.events import Drained, DrainFailed, Finished, FunctionCalled, QueryStarted, Stopped
from support.drivers import WINDOWED_COUNTS, Deployments, seconds_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

SPEAKS = (
    WINDOWED_COUNTS.replace("base = sys.argv[1]", "").replace(
        "import sys\n",
        """
import json, os, sys
from airflow_streamstate.driver import attach, on_drain, on_stop

base = sys.argv[1]
attach()

@on_drain
def close(end):
    if os.path.exists(base + "/locked"):
        raise OSError("the index is locked")
    with open(base + "/closed", "a") as target:
        print(end.occasion, end.queries["counts"].batch_id, file=target)

@on_stop(within_seconds=20)
def rest(end):
    with open(base + "/rests", "a") as target:
        print(end.snapshot_id, file=target)
""",
        1,
    )
    + """
class Keep:
    def open(self, partition_id, epoch_id):
        self.path = f"{base}/kept-{epoch_id}-{partition_id}.json"
        self.rows = []
        return True
    def process(self, row):
        self.rows.append([row.k, row.n, row.s])
    def close(self, error):
        with open(self.path, "w") as target:
            json.dump(self.rows, target)

counts.writeStream.queryName("counts").foreach(Keep()).start().awaitTermination()
print("the script comes to its end")
"""
)


def kept(base: Path) -> list[list[object]]:
    """The rows that ``foreach`` was given; a batch that ran twice was written to the same files."""
    return sorted(row for path in base.glob("kept-*.json") for row in json.loads(path.read_text()))


def test_an_attached_script_is_stopped_resumed_and_drained_with_its_own_part(tmp_path: Path) -> None:
    """The low-level way: no runner, ``foreach``, functions of the job's own. What fails at the drain is done by the
    next one, and nothing is flushed twice."""
    with Deployments(tmp_path, attaches=True) as stream:
        stream.feed({"t": seconds_of(0, 1), "k": "a", "v": 1}, {"t": seconds_of(0, 2), "k": "b", "v": 2})
        first = stream.deploy(SPEAKS, str(tmp_path))
        stream.wait_committed("counts", 0, first)
        stream.stop()
        assert first.exit_status() == 0, first.log
        assert "the script comes to its end" in first.log
        (stopped,) = stream.events(Stopped)
        assert (tmp_path / "rests").read_text() == f"{stopped.snapshot_id}\n"

        second = stream.resume()
        stream.feed({"t": seconds_of(0, 3), "k": "a", "v": 3})
        stream.wait_committed("counts", (stopped.queries["counts"].batch_id or 0) + 1, second)
        (tmp_path / "locked").touch()
        stream.drain()
        assert second.exit_status() == 1, second.log
        assert "the index is locked" in stream.events(DrainFailed)[0].error
        flushed = kept(tmp_path)
        assert flushed == [["a", 2, 4], ["b", 1, 2]]

        (tmp_path / "locked").unlink()
        third = stream.resume(to_drain=True)
        assert third.exit_status() == 0, third.log
        (drained,) = stream.events(Drained)
        assert (tmp_path / "closed").read_text() == f"drain {drained.queries['counts'].batch_id}\n"
        assert [event.name for event in stream.events(FunctionCalled)] == ["rest", "close", "close"]
        assert kept(tmp_path) == flushed
        assert len(stream.events(QueryStarted)) == 2


def test_a_drain_from_before_the_start_is_obeyed_by_an_attached_script(tmp_path: Path) -> None:
    """Published before it started: its query reads nothing, and the job's own part is done (1a.11)."""
    with Deployments(tmp_path, attaches=True) as stream:
        stream.feed({"t": seconds_of(0, 1), "k": "unread", "v": 1})
        deployment_id = stream.record(SPEAKS, str(tmp_path))
        stream.drain()
        driver = stream.launch(deployment_id)
        assert driver.exit_status() == 0, driver.log
        assert stream.events(QueryStarted) == []
        assert kept(tmp_path) == []
        assert (tmp_path / "closed").read_text() == "drain None\n"
        assert len(stream.events(Drained)) == 1


def test_an_attached_script_that_ends_by_itself_leaves_its_snapshot(tmp_path: Path) -> None:
    """After its last line, while there still are threads: a final snapshot, and the event (1a.11)."""
    with Deployments(tmp_path, attaches=True) as stream:
        stream.feed({"t": seconds_of(0, 1), "k": "a", "v": 1})
        script = SPEAKS.replace(".foreach(Keep())", ".trigger(availableNow=True).foreach(Keep())")
        driver = stream.deploy(script, str(tmp_path))
        assert driver.exit_status() == 0, driver.log
        (finished,) = stream.events(Finished)
        assert finished.snapshot_id is not None
        assert stream.manifest(finished.snapshot_id).files_count > 5
