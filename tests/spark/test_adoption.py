"""Adopting a real PySpark query: one that is stopped, one that runs, one whose batch fails, one that is idle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from support.foreign_query import ForeignQuery
from support.launches import wait_until
from support.shell import Answer, Desk, desk_with, shell

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home in a folder; no driver left afterwards."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_")) as made:
        yield made


@pytest.fixture
def foreign(desk: Desk) -> Iterator[ForeignQuery]:
    """Somebody's query, that was never ours."""
    made = ForeignQuery(desk.base)
    yield made
    made.kill()


@contextmanager
def in_background(act: Callable[[], Answer]) -> Iterator[Future[Answer]]:
    """Run this during the block, which waits for its end."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(act)


@pytest.mark.named
def test_a_query_that_was_killed_in_a_batch_goes_on(desk: Desk, foreign: ForeignQuery) -> None:
    """The planned batch runs again over its own bounds, with the query id and the batch ids that the sink knows
    (Laws 9 and 14; 1a.6). The original is as it was but for the barrier, and Spark refuses to start over that."""
    foreign.feed(3)
    foreign.start()
    foreign.wait_committed(2)
    foreign.hold.touch()
    foreign.feed(1)
    wait_until(lambda: 3 in foreign.entries("offsets"), "batch 3 to be planned", 60)
    foreign.kill()
    foreign.hold.unlink()
    before = foreign.files()

    answer = foreign.adopt("--stopped", "--timeout", 200)
    assert answer.status == 0, (answer, shell("logs", "totals").out[-4000:])
    found = answer.json
    assert (found["deployment_id"], found["start"]["mode"], found["start"]["snapshot_id"]) == (
        "d-0002", "restore", found["adopted"]["snapshot_id"],
    )  # fmt: skip
    query = found["adopted"]["queries"]["counts"]
    assert (query["batch_id"], query["planned_batch_id"]) == (2, 3)
    assert query["query_id"] in foreign.files()["metadata"].decode()
    foreign.finish()
    assert {path: body for path, body in foreign.files().items() if path != "offsets/4"} == before

    foreign.start()
    wait_until(foreign.has_ended, lambda: foreign.log, 60)
    assert "There are [0] sources" in foreign.log
    assert foreign.entries("commits") == [0, 1, 2]


def test_a_running_query_meets_its_barrier_behind_its_batch(desk: Desk, foreign: ForeignQuery) -> None:
    """No batch is cut: the one in flight is committed by its own driver, which then ends; the next one is ours."""
    foreign.feed(2)
    foreign.start()
    foreign.wait_committed(1)
    with in_background(lambda: foreign.adopt("--deadline", 100, "--timeout", 200)) as answer:
        wait_until(lambda: (desk.home / "totals" / "adoption.json").exists(), "the adoption to be recorded", 60)
        for _ in range(3):
            foreign.feed(1)
            SYSTEM_CLOCK.sleep(1.5)
    found = answer.result()
    assert found.status == 0, (found, shell("logs", "totals").out[-4000:])
    query = found.json["adopted"]["queries"]["counts"]
    assert query["planned_batch_id"] is None
    assert foreign.entries("commits")[-1] == query["batch_id"]
    assert foreign.entries("offsets")[-1] == query["batch_id"] + 1, "the barrier"
    wait_until(foreign.has_ended, lambda: foreign.log, 60)
    foreign.finish()


def test_the_barrier_is_taken_back_when_its_batch_fails(desk: Desk, foreign: ForeignQuery) -> None:
    """The batch under the barrier fails: nothing of ours is left, and started again the query runs that batch as if
    nobody had been there. (Law 12)"""
    foreign.feed(2)
    foreign.start()
    foreign.wait_committed(1)
    foreign.hold.touch()
    with in_background(lambda: foreign.adopt("--deadline", 14)) as answer:
        wait_until(lambda: (desk.home / "totals" / "adoption.json").exists(), "the adoption to be recorded", 60)
        foreign.feed(1)
        wait_until(lambda: 3 in foreign.entries("offsets"), "the barrier to be after batch 2", 60)
        foreign.fail.touch()
        foreign.hold.unlink()
        wait_until(foreign.has_ended, lambda: foreign.log, 60)
        assert 3 in foreign.entries("offsets"), "it is there until it is known that the batch failed"
    found = answer.result()
    assert (found.status, found.error["type"]) == (3, "DeadlineExceededError")
    assert "not committed" in found.error["message"]
    assert [path for path in foreign.files() if path.startswith("offsets/") and "3" in path] == []
    assert not (desk.home / "totals" / "stream.json").exists()

    foreign.fail.unlink()
    foreign.feed(1)
    foreign.start()
    foreign.wait_committed(3)
    assert foreign.written() == foreign.expected()
    assert foreign.batches() == [0, 1, 2, 3]


def test_an_idle_query_is_left_as_it_is(desk: Desk, foreign: ForeignQuery) -> None:
    """It would not notice a barrier, so none is put; that is reported, and the query runs on."""
    foreign.feed(2)
    foreign.start()
    foreign.wait_committed(1)
    SYSTEM_CLOCK.sleep(1.0)
    before = foreign.files()
    found = foreign.adopt("--deadline", 3)
    assert (found.status, found.error["type"]) == (3, "DeadlineExceededError")
    assert "idle" in found.error["message"]
    assert foreign.files() == before
    foreign.feed(1)
    foreign.wait_committed(2)
    assert foreign.written() == foreign.expected()
