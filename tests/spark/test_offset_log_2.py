"""Offset log 2 and named sources on the Spark that has them: what it writes, what it forgets, and lives in it."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.checkpoint.guards import OFFSET_LOG_FORMAT
from airflow_streamstate.checkpoint.log import (
    PARTITIONS,
    SOURCES_NAMED,
    Checkpoint,
    crc_key_of,
    format_offset_entry,
    parse_offset_entry,
)
from airflow_streamstate.checkpoint.repair import repair_before_start
from airflow_streamstate.errors import StartRefusedError
from airflow_streamstate.protocol.events import Drained, QueryStarted, Stopped
from airflow_streamstate.protocol.records import StartPlan
from support.drivers import wait_until
from support.file_sink import rows_in
from support.real_queries import Collected, Feed, local_checkpoint, read_files, run_to_end, use_provider
from support.session_stream import SessionDriver, SessionStream

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
OURS = "d-0001"
START_SECONDS = 1_700_000_000


@pytest.fixture
def spark_2(spark: Any) -> Any:
    """A session that writes offset log 2."""
    spark.conf.set(OFFSET_LOG_FORMAT, "2")
    return spark


def uncommit(checkpoint: Checkpoint, batch_id: int) -> None:
    """As if its driver had died before it committed this batch."""
    for key in (checkpoint.commit_key(batch_id), crc_key_of(checkpoint.commit_key(batch_id))):
        checkpoint.store.delete(key)


def version_of(checkpoint: Checkpoint, batch_id: int) -> str:
    entry = checkpoint.read_offset(batch_id)
    assert entry is not None
    return entry.version


@pytest.mark.parametrize("planned", [1, 3])
def test_a_planned_batch_is_run_although_spark_forgot_its_partitions(spark_2: Any, folder: Path, planned: int) -> None:
    """Spark 4.2 leaves the setting out of the log's first run, and then cannot start over a batch that is planned; with
    it in that entry and the one before, the batch runs over the bounds that it was planned with (1a.6)."""
    feed, sink = Feed(folder / "in"), Collected()
    feed.add(planned + 1)
    checkpoint = local_checkpoint(folder)
    run_to_end(read_files(spark_2, folder), checkpoint, sink)
    for batch_id in checkpoint.offset_ids():
        stored = checkpoint.store.get(checkpoint.offset_key(batch_id))
        assert stored is not None
        entry = parse_offset_entry(stored.body, key="")
        assert (entry.version, entry.source_keys, PARTITIONS in entry.conf) == ("v2", ("0",), False)
        assert format_offset_entry(entry) == stored.body
    uncommit(checkpoint, planned)
    feed.add(1)
    first = dict(sink.batches)
    with pytest.raises(Exception, match=r"None\.get"):
        run_to_end(read_files(spark_2, folder), checkpoint, sink)
    report = repair_before_start(checkpoint, OURS, partitions=lambda: "2")
    assert (report.pinned_ids, report.run) == ((planned - 1, planned), "normal")
    sink.batches.clear()
    run_to_end(read_files(spark_2, folder), checkpoint, sink)
    assert sink.batches[planned] == first[planned]
    assert sorted({**first, **sink.batches}) == list(range(planned + 2))
    newest = checkpoint.read_offset(planned + 1)
    assert newest is not None
    assert newest.conf[PARTITIONS] == "2"  # from now on Spark keeps it itself


@pytest.mark.parametrize("asked", ["3"])
def test_state_keeps_its_partitions_whatever_the_session_asks_for(
    spark_2: Any, folder: Path, provider: str, asked: str
) -> None:
    """Without the setting in its log Spark would look for state in partitions that there are not."""
    use_provider(spark_2, provider)
    feed = Feed(folder / "in")
    feed.add(2, rows_per_file=9)
    checkpoint = local_checkpoint(folder)

    def totals() -> Any:
        return read_files(spark_2, folder).groupBy("k").sum("v")

    found: dict[str, int] = {}

    def keep(rows: Any, _: int) -> None:
        found.update({row[0]: row[1] for row in rows.collect()})

    run_to_end(totals(), checkpoint, keep, mode="update", availableNow=True)
    feed.add(2, rows_per_file=9)
    spark_2.conf.set(PARTITIONS, asked)
    assert repair_before_start(checkpoint, OURS, partitions=lambda: asked).pinned_ids == (1,)
    run_to_end(totals(), checkpoint, keep, mode="update", availableNow=True)
    wanted: Counter[str] = Counter()
    for row in feed.fed:
        wanted[row["k"]] += row["v"]
    assert found == dict(wanted)


def test_a_log_stays_in_the_version_that_it_began_with(spark_2: Any, folder: Path) -> None:
    """Whatever the session asks for later: what is read there is what Spark continues with."""
    for began, later in (("1", "2"), ("2", "1")):
        base = folder / f"log-{began}"
        (base / "in").mkdir(parents=True)
        feed, sink, checkpoint = Feed(base / "in"), Collected(), local_checkpoint(base)
        feed.add(1)
        for asked in (began, later):
            spark_2.conf.set(OFFSET_LOG_FORMAT, asked)
            run_to_end(read_files(spark_2, base), checkpoint, sink)
            feed.add(1)
        assert [version_of(checkpoint, batch_id) for batch_id in checkpoint.offset_ids()] == [f"v{began}"] * 2
        assert sorted(sink.batches) == [0, 1]


# lives


class Folders:
    """Input folders of which each file is one batch, a minute of event time later than the one before."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.fed: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self._number = 0

    def add(self, *folders: str) -> None:
        """One more file in each."""
        for name in folders:
            self._number += 1
            self.fed[name] += 1
            self.totals[name] += self._number
            second = START_SECONDS + 60 * self._number
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second))
            (self.base / name).mkdir(exist_ok=True)
            hidden = self.base / name / f".{self._number:05d}"
            hidden.write_text(json.dumps({"t": stamp, "k": name, "v": self._number}) + "\n")
            os.utime(hidden, (second, second))
            hidden.rename(self.base / name / f"{self._number:05d}.json")


class NamedLife:
    """A stream whose query counts per window what it reads of named folders."""

    def __init__(self, spark: Any, base: Path) -> None:
        self.spark = spark.newSession()
        for key, value in {
            OFFSET_LOG_FORMAT: "2",
            SOURCES_NAMED: "true",
            PARTITIONS: "2",
            "spark.sql.session.timeZone": "UTC",
        }.items():
            self.spark.conf.set(key, value)
        self.input = Folders(base)
        self.stream = SessionStream(self.spark, base)

    def writer(self, **names: str) -> Any:
        """Over these folders, in this order, under these names."""
        from pyspark.sql import functions as fn

        frames = [
            self.spark.readStream.schema("t timestamp, k string, v long").name(name).json(str(self.input.base / folder))
            for name, folder in names.items()
        ]
        rows = frames[0]
        for frame in frames[1:]:
            rows = rows.union(frame)
        counted = rows.withWatermark("t", "1 day").groupBy(fn.window("t", "1 minute"), "k").agg(fn.sum("v").alias("v"))
        return counted.select("k", "v").writeStream.format("json")

    def start(self, start: StartPlan | None = None, **names: str) -> SessionDriver:
        """A new deployment over these sources."""
        return self.stream.start(self.writer(**names), path=str(self.stream.base / "out"), start=start)

    def wait_read(self, driver: SessionDriver, **names: str) -> None:
        """Until committed batches have read all that is in these folders."""
        checkpoint = Checkpoint(self.stream.home, self.stream.checkpoint_key("rows"))
        wanted = {name: self.input.fed[folder] for name, folder in names.items()}

        def read() -> dict[str, int]:
            batch_id = checkpoint.position().batch_id if checkpoint.exists() else None
            entry = checkpoint.read_offset(batch_id) if batch_id is not None else None
            lines = dict(zip(entry.source_names, entry.source_lines, strict=True)) if entry is not None else {}
            # Files that came together are one batch: by what the source's own log lists up to its offset.
            folder = self.stream.checkpoint_folder("rows") / "sources"
            return {name: _files_upto(folder / name, line) for name, line in lines.items()}

        wait_until(lambda: read() == wanted, lambda: f"{wanted}: {read()} {driver.said}", 120.0)

    def drained(self, driver: SessionDriver) -> StartPlan:
        """Drain it; how its successor starts."""
        self.stream.drain()
        assert driver.end() == 0, driver.said
        return StartPlan("seed", self.stream.events(Drained)[0].snapshot_id, self.stream.deployment_id)

    def stopped(self, driver: SessionDriver) -> StartPlan:
        """Stop it; how its successor starts."""
        self.stream.stop()
        assert driver.end() == 0, driver.said
        return StartPlan("restore", self.stream.events(Stopped)[0].snapshot_id, self.stream.deployment_id)

    def check(self) -> None:
        """Every value that was fed came out once."""
        found: Counter[str] = Counter()
        for row in rows_in(self.stream.base / "out"):
            found[row["k"]] += row["v"]
        assert found == self.input.totals


def _files_upto(folder: Path, line: str) -> int:
    last = -1 if line == "-" else int(json.loads(line)["logOffset"])
    entries = [path for path in folder.glob("[0-9]*") if int(path.name.partition(".")[0]) <= last]
    return len({text for path in entries for text in path.read_text().splitlines()[1:]})


@pytest.fixture
def life(shared_spark: Any, folder: Path) -> Iterator[NamedLife]:
    """A stream of its own."""
    made = NamedLife(shared_spark, folder)
    with made.stream:
        yield made


def test_named_sources_are_swapped_added_renamed_and_removed_over_seeds_and_a_restore(life: NamedLife) -> None:
    """Each continues where it was, in any order and under any name: every row once (1a.6, 1a.10, Laws 5, 9)."""
    life.input.add("a", "b")
    driver = life.start(first="a", second="b")
    life.wait_read(driver, first="a", second="b")
    seed = life.drained(driver)  # of a log whose only batch may be 0: the flush is then batch 1
    life.check()
    life.input.add("a", "b", "c")
    driver = life.start(seed, zweite="b", third="c", first="a")  # swapped, one more, one under another name
    life.wait_read(driver, zweite="b", third="c", first="a")
    (started,) = life.stream.events(QueryStarted)
    assert started.how == "seeded"
    assert any("third" in remark or "/c" in remark for remark in started.repairs)
    restore = life.stopped(driver)
    life.input.add("a", "b", "c")
    driver = life.start(restore, zweite="b", third="c", first="a")
    life.wait_read(driver, zweite="b", third="c", first="a")
    (started,) = life.stream.events(QueryStarted)
    assert started.how == "restored"
    seed = life.drained(driver)
    life.check()
    life.input.add("c", "a")
    driver = life.start(seed, first="a", third="c")  # one less
    life.wait_read(driver, first="a", third="c")
    life.drained(driver)
    life.check()


def test_a_restore_under_another_name_is_refused_where_spark_would_read_anew(life: NamedLife) -> None:
    """Before anything is built; under the old names the stream continues (Law 5)."""
    life.input.add("a", "b")
    driver = life.start(first="a", second="b")
    life.wait_read(driver, first="a", second="b")
    restore = life.stopped(driver)
    refused = life.start(restore, first="a", renamed="b")
    assert isinstance(refused.refusal, StartRefusedError)
    assert "was named second, and is named renamed" in str(refused.refusal)
    life.input.add("b")
    driver = life.start(restore, first="a", second="b")
    life.wait_read(driver, first="a", second="b")
    life.drained(driver)
    life.check()


def test_the_next_attempt_goes_on_over_a_batch_that_failed_in_the_first_run(life: NamedLife) -> None:
    """The batch that was planned runs over its bounds, and what was written into the log is reported (1a.6, 1a.7)."""

    def rows(sink: Collected) -> Any:
        reader = life.spark.readStream.schema("t timestamp, k string, v long").option("maxFilesPerTrigger", 1)
        return reader.name("one").json(str(life.input.base / "a")).writeStream.foreachBatch(sink)

    life.input.add("a", "a", "a")
    failing, sink = Collected(fail_at=1), Collected()
    driver = life.stream.start(rows(failing))
    assert driver.end() == 1, driver.said
    again = life.stream.start_again(rows(sink))
    life.wait_read(again, one="a")
    life.stopped(again)
    assert (failing.batches, sink.batches) == ({0: [1]}, {1: [2], 2: [3]})
    started = life.stream.events(QueryStarted)[-1]
    assert any("partitions" in repair for repair in started.repairs)


def test_spark_reads_a_source_of_another_name_anew(spark_2: Any, folder: Path) -> None:
    """The fact that the refusal rests on."""
    spark_2.conf.set(SOURCES_NAMED, "true")
    feed = Feed(folder / "in")
    feed.add(2)

    def read(name: str) -> Any:
        reader = spark_2.readStream.schema("ts timestamp, k string, v long").option("maxFilesPerTrigger", 1)
        return reader.name(name).json(str(folder / "in"))

    checkpoint, sink = local_checkpoint(folder), Collected()
    run_to_end(read("one"), checkpoint, sink)
    run_to_end(read("other"), checkpoint, sink)
    assert sink.values == sorted(row["v"] for row in feed.fed * 2)
    entry = checkpoint.read_offset(3)
    assert entry is not None
    assert entry.source_names == ("other",)
