"""Going back to an older snapshot with the sink undone, by real drivers: each row once, by the good code (Law 14)."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_streamstate.driver.spark.spark_sinks import HadoopReach
from airflow_streamstate.protocol.events import Drained, Failed, QueryStarted, Stopped, Undoing, Undone
from airflow_streamstate.protocol.records import StartPlan
from support.drivers import WINDOWED_COUNTS, Deployments, Driver, wait_until
from support.window_rows import WindowRows, Windows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

HEAD = (
    """
import os
from pathlib import Path
"""
    + WINDOWED_COUNTS
    + """
from airflow_streamstate.driver.spark.spark_sinks import HadoopReach

def dying(act):
    def act_or_die(*arguments):
        deadly = Path(base + "/deadly")
        if deadly.exists() and deadly.read_text() in str(arguments[1]):
            os.kill(os.getpid(), 9)
        return act(*arguments)
    return act_or_die

HadoopReach.delete = dying(HadoopReach.delete)
HadoopReach.move = dying(HadoopReach.move)
spark.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "3")
"""
)
BAD = """
counts = counts.withColumn("n", -F.col("n")).withColumn("s", -F.col("s"))
"""
INTO_FILES = """
counts.writeStream.queryName("counts").format("json").start(base + "/out").awaitTermination()
"""
INTO_BATCHES = """
def write(batch, batch_id):
    batch.write.mode("append").json(base + f"/out/{batch_id}-" + os.urandom(4).hex())

counts.writeStream.queryName("counts").foreachBatch(write).start().awaitTermination()
"""
UNDO = """
import os, pathlib, shutil, sys
base = pathlib.Path(sys.argv[1])
to = int(os.environ["STREAMSTATE_UNDO_TO_BATCH_ID"])
for folder in sorted((base / "out").glob("*-*"), reverse=True):
    if int(folder.name.partition("-")[0]) > to:
        shutil.rmtree(folder)
named = [os.environ["STREAMSTATE_UNDO_" + name] for name in ("STREAM_ID", "QUERY_NAME", "LAST_BATCH_ID")]
(base / "asked").open("a").write(" ".join(named) + "\\n")
print("removed what came after", to)
"""


class Life:
    """A good version, stopped; then a bad one, which wrote on; all of it in real drivers."""

    def __init__(self, base: Path, tail: str) -> None:
        self.base, self.tail = base, tail
        self.stream = Deployments(base)
        self.rows = WindowRows(base)

    def feed(self, driver: Driver, files: int) -> None:
        """Feed ``files`` more files, each a batch."""
        for _ in range(files):
            batch_id = max(self.stream.committed("counts"), default=-1) + 1
            self.rows.feed()
            self.stream.wait_committed("counts", batch_id, driver)

    def stop(self, driver: Driver) -> Stopped:
        self.stream.stop()
        assert driver.exit_status() == 0, driver.log
        return self.stream.events(Stopped)[-1]

    def good_then_bad(self) -> tuple[Stopped, int]:
        """The end of the good version, and the last batch of the bad one."""
        self.rows.feed()
        first = self.stream.deploy(HEAD + self.tail, str(self.base))
        self.stream.wait_committed("counts", 0, first)
        self.feed(first, 2)
        good = self.stop(first)
        start = StartPlan("restore", good.snapshot_id, "d-0001")
        second = self.stream.deploy(HEAD + BAD + self.tail, str(self.base), start=start)
        self.stream.wait_event(QueryStarted, second)
        self.feed(second, 3)
        bad = self.stop(second).queries["counts"].batch_id
        assert bad is not None
        return good, bad

    def back(self, good: Stopped, **choices: object) -> Driver:
        """A third version, the good code with other bounds of its batches, from the end of the first one."""
        script = (HEAD + self.tail).replace('"maxFilesPerTrigger", 1', '"maxFilesPerTrigger", 3')
        start = StartPlan("restore", good.snapshot_id, "d-0002", undoes="d-0002", **choices)  # type: ignore[arg-type]
        return self.stream.deploy(script, str(self.base), start=start)

    def drain(self, driver: Driver) -> None:
        """Once it has read all there is."""
        wait_until(lambda: self._files_read() >= self.rows.files, lambda: f"all of the input:\n{driver.log}", 90)
        self.stream.drain()
        assert driver.exit_status() == 0, driver.log
        assert self.stream.events(Drained), driver.log

    def _files_read(self) -> int:
        """However many there were in a batch: by the source's own log, up to the last committed offset."""
        folder = self.stream.checkpoint_folder("counts")
        committed = self.stream.committed("counts")
        if not committed:
            return 0
        upto = json.loads((folder / "offsets" / str(committed[-1])).read_text().splitlines()[2])["logOffset"]
        read = set()
        for entry in (folder / "sources" / "0").glob("[0-9]*"):
            files = [json.loads(line) for line in entry.read_text().splitlines()[1:]]
            read |= {file["path"] for file in files if file["batchId"] <= upto}
        return len(read)


def _read(spark: SparkSession, folder: Path) -> Windows:
    """What a reader finds."""
    rows = spark.read.schema("k string, n long, s long").json(str(folder)).collect()
    return Counter((row["k"], row["n"], row["s"]) for row in rows)


def test_law_14_files_go_back_and_hold_each_row_of_the_good_code_once(tmp_path: Path, spark: SparkSession) -> None:
    """Over merged entries of the log; readers that know no log see the same, and what was taken out is named."""
    life = Life(tmp_path, INTO_FILES)
    with life.stream:
        good, last = life.good_then_bad()
        at = good.queries["counts"].batch_id
        assert at is not None
        assert any(key[1] < 0 for key in _read(spark, tmp_path / "out"))
        third = life.back(good)
        life.stream.wait_event(QueryStarted, third)
        life.rows.feed()
        life.drain(third)
        (undone,) = life.stream.events(Undone)
        assert (undone.means, undone.to_batch_id) == ("undo", at)
        assert (undone.first_batch_id, undone.last_batch_id) == (at + 1, last)
        assert undone.removed_count == len(list((tmp_path / "out" / "_undone").rglob("part-*.json")))
        assert undone.removed_count > 0
        assert _read(spark, tmp_path / "out") == life.rows.found() == life.rows.expected()
        for_all = [path for path in (tmp_path / "out").glob("part-*.json") if '"n":-' in path.read_text()]
        assert for_all == []
        assert life.stream.events(QueryStarted)[0].batch_id == at


@pytest.mark.named
@pytest.mark.parametrize("act", ["_spark_metadata/{entry}", "/part-"], ids=["an-entry", "a-data-file"])
def test_law_14_a_driver_that_dies_in_the_undo_is_carried_on(tmp_path: Path, spark: SparkSession, act: str) -> None:
    """SIGKILL before a log entry goes or a data file is moved; the next attempt continues from there (Law 2)."""
    life = Life(tmp_path, INTO_FILES)
    with life.stream:
        good, last = life.good_then_bad()
        at = good.queries["counts"].batch_id
        assert at is not None
        (tmp_path / "deadly").write_text(act.format(entry=at + 2))
        third = life.back(good)
        third.exit_status()
        assert life.stream.events(Undoing)
        assert life.stream.events(Undone) == []
        assert life.stream.events(QueryStarted) == []
        (tmp_path / "deadly").unlink()
        fourth = life.stream.resume()
        life.stream.wait_event(QueryStarted, fourth)
        life.drain(fourth)
        (undone,) = life.stream.events(Undone)
        assert (undone.first_batch_id, undone.last_batch_id) == (at + 1, last)
        assert _read(spark, tmp_path / "out") == life.rows.found() == life.rows.expected()


def test_law_14_a_foreach_batch_is_undone_by_the_users_command_or_not_at_all(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Refused without it, and with one that fails; then each row of the good code once, and never undone again."""
    life = Life(tmp_path, INTO_BATCHES)
    with life.stream:
        good, last = life.good_then_bad()
        at = good.queries["counts"].batch_id
        assert at is not None
        (tmp_path / "undo.py").write_text(UNDO)
        before = _read(spark, tmp_path / "out" / "*")
        for choices, said in (
            ({}, "only you can undo this sink"),
            ({"accept_duplicates": True}, "only you can undo this sink"),
            ({"undo_command": (sys.executable, "-c", "print('no way'); raise SystemExit(3)")}, "did not succeed"),
        ):
            refused = life.back(good, **choices)
            assert refused.exit_status() == 1, refused.log
            assert said in life.stream.events(Failed)[0].error
            if "undo_command" in choices:
                assert "undo command: no way" in refused.log
        assert _read(spark, tmp_path / "out" / "*") == before
        third = life.back(good, undo_command=(sys.executable, str(tmp_path / "undo.py"), str(tmp_path)))
        life.stream.wait_event(QueryStarted, third)
        life.rows.feed()
        life.stream.wait_committed("counts", at + 1, third)
        third.kill()
        fourth = life.stream.resume()
        life.stream.wait_event(QueryStarted, fourth, 2)
        life.drain(fourth)
        assert (tmp_path / "asked").read_text() == f"orders counts {last}\n"
        assert _read(spark, tmp_path / "out" / "*") == life.rows.expected()


def test_the_names_in_a_folder_are_read_as_they_are(tmp_path: Path, spark: SparkSession) -> None:
    """Whatever they hold; an empty folder has none, and a missing one is distinguished from it."""
    writer = spark.readStream.format("rate").load().writeStream._jwrite
    reach = HadoopReach(spark, writer)
    names = {"a, b", "List(c)", "d\ne", "f\n", " g", "ü", "%20", "h"}
    folder = tmp_path / "out of, it"
    folder.mkdir()
    assert reach.names_in(str(folder)) == ()
    assert reach.names_in(str(tmp_path / "missing")) is None
    for name in names:
        (folder / name).touch()
    found = reach.names_in(str(folder))
    assert found is not None
    assert (set(found), len(found)) == (names, len(names))
    assert reach.names_in(f"file://{folder}/") == found
