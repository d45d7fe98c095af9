"""What Spark reports about changes on a fork of real state, by a rehearsal: what it refuses, and what it lets pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.driver.rehearsal.committed_batches import RehearsedAttempt
from airflow_streamstate.driver.rehearsal.rehearsal_run import Rehearsing
from airflow_streamstate.driver.spark.jvm import spark_words
from airflow_streamstate.plan.record import recorded_plans
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.records import DeploymentSpec, StartPlan
from airflow_streamstate.protocol.scratch import Rehearsal, RehearsedQuery, ScratchRun
from airflow_streamstate.protocol.terms.order import RehearsalTerms
from airflow_streamstate.store.local import LocalStore
from support.examples import example
from support.real_queries import Feed, read_files, run_to_end, use_provider
from support.recorded_specs import with_version
from support.snapshots import QUERY, STREAM, Shelf

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
KEYS = "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE"
VALUES = "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"
SOURCES = "There are [1] sources in the checkpoint offsets and now there are [2]"
OPERATORS = "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"


def _counts(rows: Any, *more: Any, keys: tuple[str, ...] = ("k",), minutes: int = 5) -> Any:
    from pyspark.sql import functions as fn

    marked = rows.withWatermark("ts", "10 seconds")
    return marked.groupBy(fn.window("ts", f"{minutes} minutes"), *keys).agg(fn.sum("v").alias("v"), *more)


def _deduplicated(rows: Any) -> Any:
    return rows.withWatermark("ts", "1 minute").dropDuplicatesWithinWatermark(["k"])


def _with_a_maximum(rows: Any) -> Any:
    from pyspark.sql import functions as fn

    return _counts(rows, fn.max("v").alias("most"))


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "the same": (_counts, ""),
    "a filter": (lambda rows: _counts(rows.where("v > 1")), ""),
    "another window": (lambda rows: _counts(rows, minutes=7), ""),
    "a key more": (lambda rows: _counts(rows, keys=("k", "v")), KEYS),
    "an aggregate more": (_with_a_maximum, VALUES),
    "another operator": (_deduplicated, OPERATORS),
    "a source more": (lambda rows: _counts(rows.union(rows)), SOURCES),
}


class Rehearsed:
    """A query whose state is in a snapshot, and rehearsals on it."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.shelf = Shelf(LocalStore(folder))
        self._rehearsals = 0
        self.rehearsal_id = ""
        self.reported: list[int] = []

    def ran(self, frame: Any) -> Rehearsed:
        """It ran to the end of its input, and was stopped."""
        run_to_end(frame, self.shelf.checkpoint())
        self.shelf.capture()
        return self

    def rehearse(self, frame: Any, sink: Any = None) -> RehearsedQuery:
        from airflow_streamstate.driver.spark.spark_query import SparkWriter

        self._rehearsals += 1
        self.rehearsal_id = f"r-0b8e3c525f0e-{self._rehearsals:04d}"
        spec = example(DeploymentSpec)
        assert isinstance(spec, DeploymentSpec)
        spec = replace(
            with_version(spec, arguments=(), conf={}, environment={}),
            stream_id=STREAM, deployment_id=self.rehearsal_id,
            start=StartPlan("restore", "d-0001-stopped-000001", "d-0001"),
        )  # fmt: skip
        control, now = self.shelf.control, SYSTEM_CLOCK.now()
        deadline_at = now + timedelta(seconds=120)
        run = ScratchRun(
            STREAM,
            self.rehearsal_id,
            "d-0001",
            Rehearsal(RehearsalTerms(rehearse_batches=0)),
            now,
            deadline_at,
            "tests",
            "r",
            "0",
            "w",
        )
        attempt = RehearsedAttempt(
            control, self.shelf.checkpoints, spec, 1, SYSTEM_CLOCK, lambda key: f"file://{self.folder}/{key}",
            lambda _line: None,
        )  # fmt: skip
        rehearsing = Rehearsing(attempt, run, spark_words)
        rehearsing.session_started(self.spark.version, "local-1")
        writer = frame.writeStream.foreachBatch(sink) if sink is not None else frame.writeStream.format("console")
        startable = SparkWriter(self.spark, frame._jdf, writer._jwrite, None, None)
        assert rehearsing.start_query(QUERY, None, startable).ended
        rehearsing.script_ended(None)
        self.reported = [report["batchId"] for report in startable.trial_reports]
        verdict = control.verdict(self.rehearsal_id)
        assert verdict is not None
        return verdict.queries[QUERY]

    def outside(self) -> dict[str, bytes]:
        """Everything that is no rehearsal's: not its folder, nor the register in which it leases what it reads."""
        own, register = self.folder / STREAM / "scratch", self.folder / layout.retention_key(STREAM)
        found = [path for path in sorted(self.folder.rglob("*")) if path.is_file() and own not in path.parents]
        found.remove(register)
        return {str(path): path.read_bytes() for path in found}


def test_spark_says_of_each_change_whether_the_state_can_be_read(spark: Any, folder: Path) -> None:
    """Its own error class where it cannot; and what it lets pass in silence, which is why plans are compared."""
    use_provider(spark, "rocksdb")
    Feed(folder / "in").add(3)
    rehearsed = Rehearsed(spark, folder).ran(_counts(read_files(spark, folder)))
    before, called = rehearsed.outside(), list[int]()
    next_id = (rehearsed.shelf.checkpoint().position().batch_id or 0) + 1
    said = {}
    for name, (change, _) in CHANGES.items():
        said[name] = rehearsed.rehearse(
            change(read_files(spark, folder)), lambda _rows, batch_id: called.append(batch_id)
        )
        assert said[name].start == "restored", said[name]
        assert rehearsed.reported == ([] if said[name].outcome == "failed" else [next_id]), name
    expected = {name: words for name, (_, words) in CHANGES.items()}
    wrong = {name: query for name, query in said.items() if expected[name] not in query.error}
    assert wrong == {}
    outcomes = {name: query.outcome for name, query in said.items()}
    assert outcomes == {name: "failed" if words else "accepted" for name, words in expected.items()}
    assert called == []
    assert rehearsed.outside() == before


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_the_variables_of_a_processor_are_known_after_its_batch(spark: Any, folder: Path) -> None:
    """No plan shows them: the fork does, once the new processor has run on it."""
    from pyspark.sql.streaming import StatefulProcessor

    class Counter(StatefulProcessor):  # type: ignore[misc]
        variables = ("count",)

        def init(self, handle: Any) -> None:
            self.states = [handle.getValueState(name, "n long") for name in self.variables]

        def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:
            for frame in rows:
                yield frame[["k"]].head(1)

        def close(self) -> None:
            """Nothing is held."""

    class Wider(Counter):
        variables = ("count", "seen")

    def told(processor: Any) -> Any:
        grouped = read_files(spark, folder).groupBy("k")
        return grouped.transformWithStateInPandas(processor, "k string", "append", "None")

    use_provider(spark, "rocksdb")
    Feed(folder / "in").add(1)
    rehearsed = Rehearsed(spark, folder).ran(told(Counter()))
    assert rehearsed.rehearse(told(Wider())).error == ""
    plan = recorded_plans(rehearsed.shelf.control, rehearsed.rehearsal_id)[QUERY]
    assert [variable.name for variable in plan.operators[0].variables or ()] == ["count", "seen"]
    assert layout.plan_key(STREAM, rehearsed.rehearsal_id, QUERY, 2) in {
        info.key for info in rehearsed.shelf.checkpoints.list_objects(STREAM)
    }
