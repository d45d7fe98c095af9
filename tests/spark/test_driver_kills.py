"""Drivers that die by SIGKILL at chosen moments: whatever was half done is carried on, and each row comes out once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.lineage import lineage_of
from airflow_streamstate.protocol.events import Claimed, Drained, Draining, QueryStarted, SnapshotReady, Stopped
from support.drivers import STREAM, WINDOWED_COUNTS, Deployments, Driver, wait_until
from support.held_disk import HELD_DRIVER, Gate
from support.launches import end_processes, living_processes
from support.progress import files_read
from support.window_rows import WindowRows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

COUNTS = (
    WINDOWED_COUNTS
    + HELD_DRIVER
    + """
@F.udf("int")
def slowly(v):
    while os.path.exists(base + "/hold"):
        open(base + "/inside", "a").close()
        time.sleep(0.05)
    return v

windows = rows.withColumn("v", slowly("v")).withWatermark("t", "10 seconds").groupBy(F.window("t", "10 seconds"), "k")
counts = windows.agg(F.count("*").alias("n"), F.sum("v").alias("s")).select("window.start", "k", "n", "s")
counts.writeStream.queryName("counts").format("json").start(base + "/out").awaitTermination()
"""
)


class Stage:
    """One deployment of ``COUNTS``, what it is fed, and the moments at which it can be held.

    Attributes:
        rows: input and output.
        spark: holds Spark's renames.
        agent: holds what the agent links and renames.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.stream = Deployments(base)
        self.spark = Gate(base / "gate")
        self.agent = Gate(base / "agent-gate")
        self.rows = WindowRows(base)

    def is_snapshot(self, part: str) -> bool:
        """Whether a snapshot of such an id exists, by its manifest (Law 3)."""
        return any((self.base / "home" / "orders" / "snapshots").glob(f"*{part}*/manifest.json"))

    def feed_and_wait(self, driver: Driver) -> None:
        """One more file, and wait until the driver has committed a batch."""
        batch_id = self.next_batch()
        self.rows.feed()
        self.stream.wait_committed("counts", batch_id, driver)

    # moments

    def hold_batches(self) -> None:
        """From now on batches with input do not come to their end."""
        (self.base / "inside").unlink(missing_ok=True)
        (self.base / "hold").touch()

    def let_batches_go(self) -> None:
        (self.base / "hold").unlink()

    def wait_inside(self, driver: Driver) -> None:
        """Wait until a batch is held."""
        wait_until((self.base / "inside").exists, lambda: f"a batch under way:\n{driver.log}", 240)

    def wait_at(self, gate: Gate, driver: Driver) -> None:
        """Wait until something is held at this gate."""
        wait_until(lambda: gate.is_reached, lambda: f"{gate.path.name}:\n{driver.log}", 240)

    def next_batch(self) -> int:
        """The batch after the last committed one."""
        return max(self.stream.committed("counts"), default=-1) + 1

    def wait_barrier(self, batch_id: int, driver: Driver) -> None:
        """Wait until an entry of ours is at this place."""
        entry = self.stream.checkpoint_folder("counts") / "offsets" / str(batch_id)
        wait_until(
            lambda: entry.exists() and "streamstate.barrier" in entry.read_text(),
            lambda: f"a barrier at {batch_id}:\n{driver.log}",
            60,
        )

    def kill(self, driver: Driver) -> None:
        """SIGKILL to every process of the driver's session, its leading shell included; then open every gate."""
        folder = str(driver.log_path.parent)
        end_processes(folder)
        assert living_processes(folder) == []
        self.spark.open()
        self.agent.open()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A stage with two files of input; its drivers are ended afterwards."""
    made = Stage(tmp_path)
    with made.stream:
        made.rows.feed()
        made.rows.feed()
        yield made


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.fast
def test_a_driver_killed_in_a_batch_is_carried_on_and_drained(stage: Stage) -> None:
    """The next attempt runs the batch that was planned, and a drain flushes each window once and whole (1a.5, 1a.7)."""
    stream = stage.stream
    stage.hold_batches()
    first = stream.deploy(COUNTS, str(stage.base))
    stage.wait_inside(first)
    stage.kill(first)
    assert stream.committed("counts") == []
    stage.let_batches_go()
    second = stream.resume()
    stage.rows.feed()
    checkpoint = stream.checkpoint_folder("counts")
    wait_until(lambda: files_read(checkpoint) == stage.rows.files, lambda: f"each file read:\n{second.log}", 240)
    stream.drain()
    assert second.exit_status() == 0, second.log
    assert stream.events(Drained)[0].queries["counts"].state_rows_left == 0
    assert stage.rows.found() == stage.rows.expected()


@pytest.mark.named
def test_a_driver_killed_at_any_moment_loses_nothing(stage: Stage) -> None:
    """Killed while a batch runs, between barrier and commit, between sink and commit, between barrier and end, while a
    live and while the final snapshot is taken, and in its flush: the next attempt carries on (1a.6, 1a.7, Law 3)."""
    stream = stage.stream
    stage.hold_batches()
    first = stream.deploy(COUNTS, str(stage.base))
    stage.wait_inside(first)
    python = stream.events(Claimed)[0].pid
    os.kill(_parent_of(python), signal.SIGKILL)  # java alone: while a batch runs
    assert first.exit_status() == 128 + signal.SIGKILL
    assert not _lives(python)
    assert stream.committed("counts") == []

    stage.hold_batches()
    second = stream.resume()
    stage.wait_inside(second)
    stream.stop()
    stage.wait_barrier(1, second)
    stage.kill(second)  # between barrier and commit
    assert stream.committed("counts") == []

    stage.let_batches_go()
    stage.spark.hold("rename", "/commits/1")
    third = stream.resume()
    stage.wait_at(stage.spark, third)
    assert (stage.base / "out" / "_spark_metadata" / "1").exists()
    stream.stop()
    stage.wait_barrier(2, third)
    stage.kill(third)  # between sink and commit, and under a barrier
    assert stream.committed("counts") == [0]

    fourth = stream.resume()
    stream.wait_committed("counts", 1, fourth)
    stage.hold_batches()
    stage.rows.feed()
    stage.wait_inside(fourth)
    running = stage.next_batch()
    stage.spark.hold("rename", f"/commits/{running}")
    stage.let_batches_go()
    stage.wait_at(stage.spark, fourth)
    stream.stop()
    stage.wait_barrier(running + 1, fourth)
    os.kill(stream.events(Claimed)[-1].pid, signal.SIGSTOP)  # the agent sees nothing of what comes now
    stage.spark.open()
    wait_until(lambda: running in stream.committed("counts"), lambda: fourth.log, 60)
    stage.kill(fourth)  # between barrier and end
    assert stream.committed("counts")[-1] == running
    assert stream.events(Stopped) == []

    fifth = stream.resume()
    stage.feed_and_wait(fifth)
    stage.agent.hold("link", "/data/counts/metadata")
    stream.snapshot()
    stage.wait_at(stage.agent, fifth)
    stage.kill(fifth)  # while a live snapshot is taken
    assert not stage.is_snapshot("live")

    sixth = stream.resume()
    stage.feed_and_wait(sixth)
    stream.snapshot()
    assert stream.wait_event(SnapshotReady, sixth).attempt == 6
    stage.agent.hold("link", "-stopped-000006/manifest.json")
    stream.stop()
    stage.wait_at(stage.agent, sixth)
    stage.kill(sixth)  # while the final snapshot is taken
    assert not stage.is_snapshot("stopped")

    seventh = stream.resume()
    stage.feed_and_wait(seventh)
    stage.agent.hold("link", "-pre-drain-000007/manifest.json")
    stream.drain()
    stage.wait_at(stage.agent, seventh)
    flush_id = stage.next_batch()
    stage.wait_barrier(flush_id, seventh)
    stage.spark.hold("rename", f"/commits/{flush_id}")
    stage.agent.open()
    stage.wait_at(stage.spark, seventh)
    assert stream.events(Draining)[0].flush_batch_ids == {"counts": flush_id}
    assert (stage.base / "out" / "_spark_metadata" / str(flush_id)).exists()
    stage.kill(seventh)  # in the flush: the sink has it, the log does not
    assert flush_id not in stream.committed("counts")

    eighth = stream.resume(to_drain=True)
    assert eighth.exit_status() == 0, eighth.log
    drained = stream.events(Drained)[0]
    assert drained.queries["counts"].state_rows_left == 0
    assert stage.rows.found() == stage.rows.expected()
    assert len(stream.events(QueryStarted)) == 7
    _assert_repeats_are_named(stage, flush_id)


def _assert_repeats_are_named(stage: Stage, flush_id: int) -> None:
    """An audit names each batch that ran again, the flush too; a file sink has none of them twice."""
    stream = stage.stream
    home = Home.of(stream.home, stream.home, stage.base / "launches", SYSTEM_CLOCK)
    found = lineage_of(home, STREAM)
    began = [(event.attempt, event.planned_batch_id) for event in stream.events(QueryStarted)]
    named = [(one.attempt, one.batch_id) for one in found.repeats if not one.is_flush]
    assert named == [(attempt, planned) for attempt, planned in began if planned is not None]
    assert [(one.attempt, one.batch_id) for one in found.repeats if one.is_flush] == [(8, flush_id)]
    assert not any(one.may_be_doubled for one in found.repeats), found.repeats
    assert all(one.moves for one in found.repeats if not one.is_flush), found.repeats
