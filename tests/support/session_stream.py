"""A stream whose drivers run in this process: the real driver code on an existing Spark session.

A deployment so costs seconds. What a launcher, a runner and another process add is shown by other tests.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.driver.agent.agent import Agent, AttemptLife
from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.shutdown.script_end import ScriptFailure
from airflow_streamstate.protocol.positions import QueryBeat
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.protocol.settings import AgentSettings
from support.drivers import Deployments, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter

WAIT_SECONDS = 120.0


class SessionDriver:
    """One attempt, in this process.

    Attributes:
        said: the lines that it would have printed.
        query: the one that it started; None where the start was refused.
        refusal: what ``start()`` raised.
    """

    def __init__(self, stream: SessionStream, deployment_id: str, attempt: int) -> None:
        self.said: list[str] = []
        self.query: LogicalQuery | None = None
        self.refusal: Exception | None = None
        self._stream = stream
        self._ended: list[int] = []
        home = stream.home
        spec = stream.control.spec(deployment_id)
        self._attempt_life = AttemptLife(
            stream.control,
            home,
            spec,
            attempt,
            SYSTEM_CLOCK,
            lambda key: f"file://{stream.base}/home/{key}",
            say=self.said.append,
        )
        self._attempt_life.claim(f"{deployment_id}-a{attempt}", "here", os.getpid())
        self._attempt_life.session_started("4.2.0", "local-1")
        self._agent = Agent(self._attempt_life, self._ended.append)
        self._agent.start()

    def run(self, spark: SparkSession, name: str, writer: DataStreamWriter, path: str | None) -> None:
        """Start this query as a script would."""
        from airflow_streamstate.driver.spark.spark_query import SparkWriter

        try:
            startable = SparkWriter(spark, writer._df._jdf, writer._jwrite, path, None)  # type: ignore[attr-defined]
            self.query = self._attempt_life.start_query(name, None, startable)
        except Exception as error:
            self.refusal = error
            failure = ScriptFailure(f"{type(error).__name__}: {error}", traceback.format_exc(), 1)
            self._attempt_life.script_ended(failure)
            self._agent.stop()

    def end(self, seconds: float = WAIT_SECONDS) -> int:
        """Wait until its query has ended, and let the script end as one that waited for it; its exit status."""
        query = self.query
        assert query is not None, self.refusal
        assert query.await_termination(seconds), f"the query runs on: {self.said}"
        text = query.failure()
        failure = None if text is None else ScriptFailure(f"StreamingQueryException: {text}", "", 1)
        status = self._attempt_life.script_ended(failure)
        self._agent.stop()
        return status

    def abandon(self) -> None:
        """Whatever it does, it does it no more."""
        self._agent.stop()
        for query in self._attempt_life.attempt.queries.all():
            self._attempt_life.attempt.sources.close(query.name)
            if query.run is not None and not query.run.has_ended():
                query.run.stop()


class SessionStream(Deployments):
    """One stream with one query; use as a context manager, which ends every driver."""

    def __init__(self, spark: SparkSession, base: Path) -> None:
        super().__init__(base)
        self._spark = spark
        self._here: list[SessionDriver] = []

    def __exit__(self, *_: object) -> None:
        for driver in self._here:
            driver.abandon()

    def start(
        self,
        writer: DataStreamWriter,
        *,
        name: str = "rows",
        path: str | None = None,
        start: StartPlan | None = None,
        settings: AgentSettings | None = None,
    ) -> SessionDriver:
        """A new deployment that runs this query."""
        return self._go_on(self.record("", start=start, settings=settings), 1, writer, name, path)

    def start_again(self, writer: DataStreamWriter, *, name: str = "rows", path: str | None = None) -> SessionDriver:
        """The next attempt of the current deployment."""
        register = self.control.need_register().value
        assert register.deployment_id is not None
        self._make_current(register.deployment_id, register.fencing_token, register.attempt + 1, "run")
        return self._go_on(register.deployment_id, register.attempt + 1, writer, name, path)

    def _go_on(
        self, deployment_id: str, attempt: int, writer: DataStreamWriter, name: str, path: str | None
    ) -> SessionDriver:
        driver = SessionDriver(self, deployment_id, attempt)
        self._here.append(driver)
        driver.run(self._spark, name, writer, path)
        return driver

    def beat_until(self, is_so: Callable[[QueryBeat], bool], what: str, name: str = "rows") -> QueryBeat:
        """The first sign of life that is so."""
        found: dict[str, Any] = {}

        def look() -> bool:
            beat = self.control.heartbeat(self.deployment_id)
            found["beat"] = None if beat is None else beat.queries.get(name)
            return found["beat"] is not None and is_so(found["beat"])

        wait_until(look, lambda: f"{what}: {found}", 2 * WAIT_SECONDS)  # asked at least once a minute
        beat: QueryBeat = found["beat"]
        return beat

    def end_offsets(self, name: str = "rows") -> list[Any]:
        """Per source the end of the last committed batch, by the log."""
        import json

        committed = self.committed(name)
        if not committed:
            return []
        version, _, *lines = (self.checkpoint_folder(name) / "offsets" / str(committed[-1])).read_text().splitlines()
        if version == "v2":
            lines = [line.partition(":")[2] for line in lines]
        return [json.loads(line) if line != "-" else {} for line in lines]

    def wait_read(self, topic: str, rows: int, name: str = "rows") -> None:
        """Wait until the committed batches end behind this many rows of a topic."""

        def read() -> int:
            return sum(
                sum(end[topic].values()) for end in self.end_offsets(name) if isinstance(end, dict) and topic in end
            )

        wait_until(lambda: read() >= rows, lambda: f"{rows} rows of {topic}: {self.end_offsets(name)}", WAIT_SECONDS)
