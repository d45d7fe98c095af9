"""Whole lives of rows in each sink, in one process, on any Spark.

``python -m support.sink_lab ORDERS_JSON`` works off a list of cases and writes a line of JSON for each into the file
that the orders name. Its attempt, agent, interception, Spark and sink are real; only the process lives on from one
deployment to the next. Each case reports what came of it in our hands, and if that is cheap what Spark does by itself.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import threading
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.connectors.sink import Sink, SinkConnector, SinkReach, WarmingSink
from airflow_streamstate.connectors.testing import SinkPlace, check_sink, check_warming
from airflow_streamstate.driver.agent.agent import Agent, AttemptLife
from airflow_streamstate.errors import ConflictError, InvalidRequestError
from airflow_streamstate.protocol.events import (
    BatchesSkipped,
    BatchRepeated,
    Drained,
    Event,
    QueryStarted,
    Stopped,
    Undoing,
    Undone,
)
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.protocol.settings import AgentSettings
from support.drivers import Deployments, wait_until
from support.file_sink import rows_in
from support.progress import files_read

WAIT_SECONDS = 120.0
QUERY = "rows"
ROWS_PER_FILE = 5
WRONG = 1_000_000
COMPACT_INTERVAL = "spark.sql.streaming.fileSink.log.compactInterval"


class Target(ABC):
    """One kind of sink, at its own place.

    Args:
        spark: the session that writes to it.
        settings: of the run, e.g. where the broker is.
    """

    def __init__(self, spark: Any, place: Path, settings: Mapping[str, str]) -> None:
        self.spark = spark
        self.place = place
        self.settings = settings

    @abstractmethod
    def writer(self, rows: Any) -> Any:
        """The writer of a script, whole but for its start."""

    table: str | None = None
    """For ``toTable``."""
    keeps_rows = True
    """Whether the output can be read."""
    adds_by_hand: Callable[[Any, str], None] | None = None
    """Writes rows into it in another way than a stream; None if those cannot be distinguished."""
    loses_history: Callable[[Any], None] | None = None
    """Takes away what it held before, and keeps its rows; None if there is nothing of the kind."""

    @property
    def undo_choices(self) -> Mapping[str, Any]:
        """What a user states when he goes back to an older snapshot."""
        return {}

    @abstractmethod
    def values(self) -> Counter[int]:
        """What a reader sees in it."""

    def elsewhere(self) -> Target:
        """An empty one of its kind."""
        return type(self)(self.spark, self.place.with_name(f"{self.place.name}-new"), self.settings)


class Files(Target):
    def writer(self, rows: Any) -> Any:
        return rows.writeStream.format("json").option("path", str(self.place))

    def values(self) -> Counter[int]:
        return Counter(int(row["v"]) for row in rows_in(self.place))


class FileTable(Files):
    def __init__(self, spark: Any, place: Path, settings: Mapping[str, str]) -> None:
        super().__init__(spark, place, settings)
        self.table = f"t_{place.name.replace('-', '_')}"
        spark.sql(f"CREATE TABLE IF NOT EXISTS {self.table} (v long) USING json LOCATION '{place}'")

    def writer(self, rows: Any) -> Any:
        return rows.writeStream.format("json")


def _append_to(rows: Any, target: Target) -> None:
    if target.table is None:
        rows.write.format("delta").mode("append").save(str(target.place))
    else:
        rows.writeTo(target.table).append()


def _optimize_and_vacuum(target: Target) -> None:
    target.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    target.spark.sql(f"OPTIMIZE delta.`{target.place}`")
    target.spark.sql(f"VACUUM delta.`{target.place}` RETAIN 0 HOURS")


def _expire(target: Target) -> None:
    expire = f"table => '{target.table}', older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => 1"
    target.spark.sql(f"CALL lake.system.expire_snapshots({expire})")


class Delta(Target):
    adds_by_hand = staticmethod(_append_to)
    loses_history = staticmethod(_optimize_and_vacuum)

    def writer(self, rows: Any) -> Any:
        return rows.writeStream.format("delta").option("path", str(self.place))

    def values(self) -> Counter[int]:
        return Counter(int(row["v"]) for row in self.spark.read.format("delta").load(str(self.place)).collect())


class Iceberg(Target):
    adds_by_hand = staticmethod(_append_to)
    loses_history = staticmethod(_expire)

    def __init__(self, spark: Any, place: Path, settings: Mapping[str, str]) -> None:
        super().__init__(spark, place, settings)
        self.table = f"lake.db.{place.name.replace('-', '_')}"
        spark.sql(f"CREATE TABLE IF NOT EXISTS {self.table} (v long) USING iceberg")

    def writer(self, rows: Any) -> Any:
        return rows.writeStream

    def values(self) -> Counter[int]:
        return Counter(int(row["v"]) for row in self.spark.table(self.table).collect())


class Kafka(Target):
    @property
    def undo_choices(self) -> Mapping[str, Any]:
        return {"accept_duplicates": True}

    @property
    def _options(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.settings["servers"]}

    @property
    def _topic(self) -> str:
        return self.place.name

    def writer(self, rows: Any) -> Any:
        values = rows.selectExpr("cast(v as string) as value")
        return values.writeStream.format("kafka").options(**self._options, topic=self._topic)

    def values(self) -> Counter[int]:
        reader = self.spark.read.format("kafka").options(**self._options, subscribe=self._topic)
        return Counter(int(row["v"]) for row in reader.load().selectExpr("cast(value as string) as v").collect())


class Appended(Target):
    def writer(self, rows: Any) -> Any:
        folder = self.place

        def append(batch: Any, _batch_id: int) -> None:
            batch.write.mode("append").json(str(folder))

        return rows.writeStream.foreachBatch(append)

    def values(self) -> Counter[int]:
        files = self.place.rglob("part-*.json")
        return Counter(int(json.loads(line)["v"]) for file in files for line in file.read_text().splitlines())


UNDO_FOLDERS = """
import os, pathlib, shutil, sys
for folder in pathlib.Path(sys.argv[1]).glob("batch=*"):
    if int(folder.name.partition("=")[2]) > int(os.environ["STREAMSTATE_UNDO_TO_BATCH_ID"]):
        shutil.rmtree(folder)
"""


class Overwritten(Appended):
    @property
    def undo_choices(self) -> Mapping[str, Any]:
        return {"undo_command": (sys.executable, "-c", UNDO_FOLDERS, str(self.place))}

    def writer(self, rows: Any) -> Any:
        folder = self.place

        def overwrite(batch: Any, batch_id: int) -> None:
            batch.write.mode("overwrite").json(str(folder / f"batch={batch_id}"))

        return rows.writeStream.foreachBatch(overwrite)


class Memory(Target):
    def writer(self, rows: Any) -> Any:
        return rows.writeStream.format("memory")

    def values(self) -> Counter[int]:
        return Counter(int(row["v"]) for row in self.spark.table(QUERY).collect())


class Console(Target):
    keeps_rows = False

    def writer(self, rows: Any) -> Any:
        return rows.writeStream.format("console").option("numRows", "0")

    def values(self) -> Counter[int]:
        return Counter()


class Noop(Console):
    def writer(self, rows: Any) -> Any:
        return rows.writeStream.format("noop")


TARGETS: dict[str, type[Target]] = {
    "file": Files,
    "table of files": FileTable,
    "delta": Delta,
    "iceberg": Iceberg,
    "kafka": Kafka,
    "foreachBatch, append": Appended,
    "foreachBatch, overwrite per batch id": Overwritten,
    "memory": Memory,
    "console": Console,
    "noop": Noop,
}


class StartRefusedError(Exception):
    """The start was refused by us; the error is its cause."""


@dataclass
class Life:
    """One stream that writes to one sink.

    Attributes:
        base: where everything else of it is.
    """

    target: Target
    base: Path
    stream: Deployments = field(init=False)
    fed: int = 0

    def __post_init__(self) -> None:
        self.stream = Deployments(self.base)

    def feed(self, files: int) -> None:
        """Feed ``files`` more files, each value once."""
        for _ in range(files):
            self.stream.feed(*({"v": self.fed + number} for number in range(ROWS_PER_FILE)))
            self.fed += ROWS_PER_FILE

    def rows(self, files_per_batch: int = 1, folder: str = "in") -> Any:
        """The query over the files."""
        reader = self.target.spark.readStream.schema("v long").option("maxFilesPerTrigger", files_per_batch)
        return reader.json(str(self.base / folder))

    def run(
        self,
        start: StartPlan | None,
        files: int,
        order: str = "stop",
        *,
        target: Target | None = None,
        once_it_runs: Callable[[], None] | None = None,
        files_per_batch: int = 1,
        batches: int = 0,
        is_bad: bool = False,
    ) -> Event:
        """One attempt that reads this many new files and is then stopped or drained; its last event.

        Args:
            start: of a new deployment; None: the next attempt of the current one.
            order: ``stop`` or ``drain``.
            once_it_runs: done when it has read what was there, before it is fed.
            files_per_batch: how many it reads at once.
            batches: with more than one file to a batch: how many of its batches have data once all is read.
            is_bad: its code writes other values than it should.

        Raises:
            StartRefusedError: ``start()`` was refused.
        """
        from pyspark.errors import AnalysisException

        from airflow_streamstate.driver.spark.interception import Interception

        stream, target = self.stream, target or self.target
        attempt = 1
        if start is not None:
            stream.record("", start=start, settings=AgentSettings(0.1, 0.5, 60.0, 60.0))
        else:
            register = stream.control.need_register().value
            attempt = register.attempt + 1
            stream._make_current(stream.deployment_id, register.fencing_token, attempt, "run")
        spec = stream.control.spec(stream.deployment_id)
        said: list[str] = []
        root = stream.home.root
        attempt_life = AttemptLife(
            stream.control, stream.home, spec, attempt, SYSTEM_CLOCK, lambda key: f"file://{root}/{key}", said.append
        )
        attempt_life.claim(f"{stream.deployment_id}-a{attempt}", "lab", 1)
        agent = Agent(attempt_life, lambda status: said.append(f"ended with {status}"))
        agent.start()
        try:
            rows = self.rows(files_per_batch)
            rows = rows.selectExpr(f"v + {WRONG} as v") if is_bad else rows
            writer = target.writer(rows).queryName(QUERY)
            try:
                handle = Interception(attempt_life, SYSTEM_CLOCK)._start(writer, None, target.table)
            except (InvalidRequestError, ConflictError, AnalysisException) as error:
                attempt_life.script_ended(None)
                raise StartRefusedError from error
            if once_it_runs is not None:
                wait_until(lambda: self._has_read(handle), lambda: "what was there:\n" + "\n".join(said), WAIT_SECONDS)
                once_it_runs()
            self.feed(files)
            wait_until(lambda: self._has_read(handle, batches), lambda: "all:\n" + "\n".join(said), WAIT_SECONDS)
            stream.order_by_name(order)
            assert handle.awaitTermination(WAIT_SECONDS), "\n".join(said)
            assert attempt_life.script_ended(None) == 0, "\n".join(said)
        finally:
            agent.stop()
            for query in target.spark.streams.active:
                query.stop()
        return stream.events(Drained if order == "drain" else Stopped)[-1]

    def _has_read(self, handle: Any, batches: int = 0) -> bool:
        assert handle.isActive, f"the query has ended: {handle.exception()}"
        return files_read(self.checkpoint) >= (batches or self.fed // ROWS_PER_FILE)

    @property
    def checkpoint(self) -> Path:
        """Of the current deployment."""
        return self.stream.checkpoint_folder(QUERY)

    def raw(self, checkpoint: Path, *, files_per_batch: int = 1, target: Target | None = None) -> str:
        """Spark by itself, on this checkpoint: reads all there is and ends. "" or the name of what it died of."""
        target = target or self.target
        writer = target.writer(self.rows(files_per_batch)).option("checkpointLocation", str(checkpoint))
        writer = writer.trigger(availableNow=True)
        query = writer.start() if target.table is None else writer.toTable(target.table)
        try:
            query.awaitTermination(WAIT_SECONDS)
        except Exception as error:
            named = re.search(r"\b[A-Z]+(?:_[A-Z]+)*_NOT_FOUND\b", str(error))
            return named[0] if named else str(error)[:300]
        return ""

    def verdict(self, expected: Counter[int] | None = None, target: Target | None = None) -> str:
        """What a reader sees compared with what was fed, each value once."""
        if not self.target.keeps_rows:
            return "runs on"
        wanted = Counter(range(self.fed)) if expected is None else expected
        found = (target or self.target).values()
        lost, more = sum((wanted - found).values()), sum((found - wanted).values())
        if not lost and not more:
            return "exact"
        total = sum(wanted.values())
        words = [f"{count} of {total} rows {what}" for count, what in ((lost, "lost"), (more, "doubled")) if count]
        return ", ".join(words)


def after(event: Event) -> StartPlan:
    """How a deployment starts after this end."""
    mode = "seed" if isinstance(event, Drained) else "restore"
    return StartPlan(mode, event.snapshot_id, event.deployment_id)  # type: ignore[attr-defined,arg-type]


def _refused(act: Callable[[], object], life: Life) -> str:
    try:
        act()
    except StartRefusedError as refused:
        error = refused.__cause__
        if not isinstance(error, InvalidRequestError):
            return "Spark refuses to start"
        return f"refused: holds {error.context['held_batches']}"
    return life.verdict()


def _copy_checkpoint(checkpoint: Path, target: Path) -> None:
    """The checkpoint as it would be without us: our entry above the last committed batch is left out."""
    shutil.copytree(checkpoint, target)
    last = max(int(path.name) for path in (target / "commits").glob("[0-9]*"))
    for name in (f"{last + 1}", f".{last + 1}.crc"):
        (target / "offsets" / name).unlink(missing_ok=True)


def _check_connector(life: Life) -> None:
    """Run the conformance suite of sinks over the real sink's connector."""
    from airflow_streamstate.driver.spark.spark_sinks import AskedSink

    def asked(target: Target) -> tuple[SinkConnector, Sink, SinkReach]:
        sinks = AskedSink(target.spark, target.writer(life.rows())._jwrite, None, target.table)
        sink = sinks._sink()
        connector = sinks._connector(sink)
        assert connector is not None, sink
        return connector, sink, sinks._reach

    connector, sink, reach = asked(life.target)
    _, empty_sink, empty_reach = asked(life.target.elsewhere())
    newest = max(int(path.name) for path in (life.checkpoint / "commits").glob("[0-9]*"))
    query_id = json.loads((life.checkpoint / "metadata").read_text())["id"]
    keeps_batches = connector.skips in ("batch_id", "query_id_and_batch_id")
    written = SinkPlace(sink, reach, query_id, newest) if keeps_batches else None
    check_sink(connector, SinkPlace(empty_sink, empty_reach), written)
    if isinstance(connector, WarmingSink):
        row = life.target.spark.sql("SELECT CAST(NULL AS BIGINT) AS v")
        scratch = f"file://{life.base}/scratch"
        check_warming(connector, written or SinkPlace(sink, reach), row, scratch, lambda: _seen(life.target))


def _seen(target: Target) -> object:
    """What a reader sees in a sink, and the files in which it is stored."""
    folders = (target.place, Path(target.spark.conf.get("spark.sql.catalog.lake.warehouse", str(target.place))))
    files = {path: path.stat().st_mtime_ns for folder in folders for path in folder.rglob("*") if path.is_file()}
    return files, target.values()


# cases: each gives what came of it in our hands, and what Spark does by itself


def restore(life: Life) -> dict[str, str]:
    """Stopped, and restored; what the connector reports of the sink then is what a connector must report."""
    stopped = life.run(StartPlan("fresh"), 2)
    outcome = _refused(lambda: life.run(after(stopped), 2), life)
    if outcome == "exact":
        _check_connector(life)
    return {"outcome": outcome}


def seed(life: Life) -> dict[str, str]:
    """Drained, and seeded: fresh state, the same query id, batch ids that continue."""
    drained = life.run(StartPlan("fresh"), 2, "drain")
    life.run(after(drained), 2)
    return {"outcome": life.verdict()}


def from_zero(life: Life) -> dict[str, str]:
    """New ids over the same query id, by Spark itself; and a fresh start into the same place, in our hands."""
    life.run(StartPlan("fresh"), 2)
    outcome = _refused(lambda: life.run(StartPlan("fresh"), 0), life)
    life.target = life.target.elsewhere()
    shutil.rmtree(life.base / "home")
    life.__post_init__()
    life.stream.count_fed(2)
    raw = life.base / "raw"
    life.raw(raw / "first")
    shutil.copytree(raw / "first", raw / "again")
    for name in ("offsets", "commits", "sources", "state"):
        shutil.rmtree(raw / "again" / name, ignore_errors=True)
    assert (raw / "again" / "metadata").is_file()
    for file in (life.base / "in").glob("[0-9]*.json"):
        file.rename(file.with_name(f".{file.name}"))  # what was read before is not read again
    life.feed(2)
    died = life.raw(raw / "again")
    return {"outcome": outcome, "by_itself": died or life.verdict()}


def replay(life: Life) -> dict[str, str]:
    """From the snapshot before a bad version, over what that version wrote: other bounds under the same ids."""
    stopped = life.run(StartPlan("fresh"), 2)
    before = life.base / "before"
    _copy_checkpoint(life.checkpoint, before)
    life.run(after(stopped), 3)
    life.feed(1)
    outcome = _refused(lambda: life.run(after(stopped), 0, files_per_batch=2, batches=4), life)
    if not outcome.startswith("refused"):
        return {"outcome": outcome, "by_itself": outcome}
    died = life.raw(before, files_per_batch=2)
    return {"outcome": outcome, "by_itself": died or life.verdict()}


def died(life: Life) -> dict[str, str]:
    """The driver died between the sink and the commit: the planned batch, which the sink holds, runs again."""
    life.run(StartPlan("fresh"), 2)
    commits = life.checkpoint / "commits"
    last = max(int(path.name) for path in commits.glob("[0-9]*"))
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink()
    life.run(None, 1)
    started = life.stream.events(QueryStarted)[-1]
    assert started.planned_batch_id == last, started
    assert life.stream.events(BatchesSkipped) == []
    outcome = life.verdict()
    (told,) = life.stream.events(BatchRepeated)
    assert (told.batch_id, told.attempt) == (last, started.attempt), told
    assert [(move.passed_over, move.unit) for move in told.moves] == [(1, "files")], told
    assert told.means in ({"unknown", "skipped"} if outcome == "exact" else {"unknown", "doubled"}), (told, outcome)
    return {"outcome": outcome}


def new_output(life: Life) -> dict[str, str]:
    """A restored query that writes to an empty place, past two merges of a file sink's log."""
    life.target.spark.conf.set(COMPACT_INTERVAL, "3")
    stopped = life.run(StartPlan("fresh"), 4)
    before = life.base / "before"
    _copy_checkpoint(life.checkpoint, before)
    elsewhere = life.target.elsewhere()
    old = life.target.values()
    life.run(replace(after(stopped), accept_hazards=True), 5, target=elsewhere)  # the old rows stay where they are
    wanted = Counter(range(life.fed)) - old
    outcome = life.verdict(wanted, elsewhere)
    third = elsewhere.elsewhere()
    died_of = life.raw(before, target=third)
    return {"outcome": outcome, "by_itself": died_of or life.verdict(wanted, third)}


def alarm(life: Life) -> dict[str, str]:
    """Another writer puts ids into the sink while the query runs: the next batches are skipped, which is reported."""
    life.feed(1)
    log = life.target.place / "_spark_metadata"

    def strike() -> None:
        for batch_id in (1, 2):
            (log / str(batch_id)).write_text("v1")

    life.run(StartPlan("fresh"), 3, once_it_runs=strike)
    told = life.stream.events(BatchesSkipped)
    assert told, "it was not reported"
    return {"outcome": f"reported: batches {list(told[-1].batch_ids)}; {life.verdict()}"}


def _back_to(stopped: Event, life: Life) -> StartPlan:
    """How a deployment starts that goes back to this end, from whatever came after it."""
    choices, before = life.target.undo_choices, life.stream.deployment_id
    return replace(after(stopped), predecessor_id=before, undoes=before, **choices)


def undo(life: Life) -> dict[str, str]:
    """Back to the snapshot before a bad version, with other bounds; and once more from there, to the same snapshot."""
    stopped = life.run(StartPlan("fresh"), 2)
    life.run(after(stopped), 3, is_bad=True)
    life.feed(1)
    life.run(_back_to(stopped, life), 0, files_per_batch=2, batches=4)
    once = life.verdict()
    events = life.stream.events(Undone)
    assert [(event.to_batch_id, event.last_batch_id) for event in events] == [(1, 4)], events
    life.run(_back_to(stopped, life), 1)
    twice = life.verdict()
    return {"outcome": once if once == twice else f"{once}; a second time: {twice}"}


def undo_foreign(life: Life) -> dict[str, str]:
    """The same after another writer's commit to the table: nothing is touched."""
    assert life.target.adds_by_hand is not None
    rows, add = life.target.spark.sql("SELECT CAST(-1 AS BIGINT) AS v"), life.target.adds_by_hand
    said = _refused_to_go_back(life, lambda: add(rows, life.target))
    assert life.stream.events(Undoing) == []
    return {"outcome": "refused" if "another writer changed the table" in said else said}


def undo_lost(life: Life) -> dict[str, str]:
    """The same where what the table held at that batch is not there any more."""
    assert life.target.loses_history is not None
    lose = life.target.loses_history
    said = _refused_to_go_back(life, lambda: lose(life.target))
    assert life.stream.events(Undone) == []
    words = ("could not be undone", "does not reach back")
    return {"outcome": "refused" if any(word in said for word in words) else said}


def _refused_to_go_back(life: Life, meanwhile: Callable[[], None]) -> str:
    """Why a start that goes back was refused; nothing of the sink was changed."""
    stopped = life.run(StartPlan("fresh"), 2)
    life.run(after(stopped), 3, is_bad=True)
    meanwhile()
    held = life.target.values()
    said = "not refused"
    try:
        life.run(_back_to(stopped, life), 0)
    except StartRefusedError as refused:
        said = str(refused.__cause__)
    assert life.target.values() == held
    return said


CASES: dict[str, Callable[[Life], dict[str, str]]] = {
    function.__name__: function
    for function in (restore, seed, from_zero, replay, died, new_output, alarm, undo, undo_foreign, undo_lost)
}


def session(scratch: Path) -> Any:
    """The Spark of this process; what its sink needs was set in ``PYSPARK_SUBMIT_ARGS``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyspark.sql import SparkSession
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "OFF",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.streaming.pollingDelay": "50ms",
    }
    builder = SparkSession.builder.master("local[2]").appName("streamstate-sinks")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main(path: Path) -> None:
    """Work off the orders of a file."""
    raw = json.loads(path.read_text())
    spark = session(path.parent)
    with Path(raw["results"]).open("a") as results:
        for number, order in enumerate(raw["orders"]):
            began = time.monotonic()  # noqa: TID251 - only reported
            base = path.parent / f"c{number}"
            try:
                target = TARGETS[order["sink"]](spark.newSession(), base / f"out-{number}", raw["settings"])
                answer = CASES[order["case"]](Life(target, base / "life"))
            except Exception as error:
                answer = {"outcome": f"error: {error}"[:3000], "traceback": traceback.format_exc()[-4000:]}
            seconds = round(time.monotonic() - began, 1)  # noqa: TID251
            results.write(json.dumps({**order, "spark": spark.version, **answer, "seconds": seconds}) + "\n")
            results.flush()
    threading.Thread(target=spark.stop, daemon=True).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
