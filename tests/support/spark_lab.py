"""Whole lives of a stream in one process on the Spark of its python, run by ``support.sparks``.

``python -m support.spark_lab ORDERS_JSON`` works off a list of orders, and writes a line of JSON for each into the file
that they name. Attempt, agent, interception and Spark are real; only the process lives on from one deployment to the
next, so that a life takes seconds. Nothing here needs more than pyspark and the package.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

from airflow_streamstate.checkpoint.guards import MERGE_OPERATOR
from airflow_streamstate.checkpoint.log import Checkpoint, unmarked
from airflow_streamstate.checkpoint.seed import PINNED_BY_ALL, PINNED_CONF_KEYS
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.driver.agent.agent import Agent, AttemptLife
from airflow_streamstate.plan.comparison import states_of
from airflow_streamstate.plan.model import QueryPlan
from airflow_streamstate.plan.record import recorded_plans
from airflow_streamstate.protocol.events import Drained, Event, Stopped
from airflow_streamstate.protocol.records import StartPlan, StateRewrite
from airflow_streamstate.protocol.settings import AgentSettings
from support import clock_story, joins_story, kept_story, quick_jvm, shared_story, spark_story
from support.drivers import Deployments, wait_until
from support.file_sink import rows_in
from support.progress import files_read
from support.real_queries import PROVIDERS

WAIT_SECONDS = 120.0


def _story(module: ModuleType) -> Any:
    """What a module says of its story, and for the rest what ``spark_story`` has."""
    return SimpleNamespace(
        **{name: value for name, value in {**vars(spark_story), **vars(module)}.items() if name[0] != "_"}
    )


STORIES: dict[str, Any] = {
    "rows": _story(spark_story),
    "clocks": _story(clock_story),
    "shared": _story(shared_story),
    "joins": _story(joins_story),
    "kept": _story(kept_story),
}
PINS = {
    "provider": "spark.sql.streaming.stateStore.providerClass",
    "changelog": "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
    "state_format": "spark.sql.streaming.stateStore.checkpointFormatVersion",
    "offset_log": "spark.sql.streaming.offsetLog.formatVersion",
    "lists": MERGE_OPERATOR,
}


@dataclass(frozen=True)
class Cell:
    """In which formats a checkpoint is written: what is chosen in the session's settings.

    Attributes:
        lists: 1 for those that Spark 4.2 keeps where an older one has begun the checkpoint.
    """

    provider: str = "rocksdb"
    changelog: bool = False
    state_format: int = 1
    offset_log: int = 1
    lists: int = 2
    story: str = "rows"

    @property
    def settings(self) -> dict[str, str]:
        """For the session."""
        found = {PINS["provider"]: PROVIDERS[self.provider], **self.same}
        if self.changelog:
            found[PINS["changelog"]] = "true"
        if self.state_format != 1:
            found[PINS["state_format"]] = str(self.state_format)
        if self.offset_log != 1:
            found[PINS["offset_log"]] = str(self.offset_log)
        if self.lists != 2:
            found[PINS["lists"]] = str(self.lists)
        return found

    @property
    def same(self) -> dict[str, str]:
        """What every Spark of its lives is set to, apart from the formats."""
        return dict(STORIES[self.story].SETTINGS)

    @property
    def queries(self) -> tuple[str, ...]:
        """The queries that live in it."""
        return tuple(STORIES[self.story].queries(self.provider))

    @property
    def states(self) -> tuple[str, ...]:
        """The states of its queries, each once."""
        return tuple(dict.fromkeys(STORIES[self.story].STATES[name] for name in self.queries))

    @property
    def drains(self) -> bool:
        """Whether a drain leaves no state in it."""
        return bool(STORIES[self.story].DRAINS)

    @property
    def store(self) -> str:
        """Its state store and formats, as ``plan.comparison`` names them."""
        parts = [
            self.provider,
            "older lists" if self.lists == 1 else "",
            f"format {self.state_format}" if self.state_format != 1 else "",
            "changelog" if self.changelog else "",
            f"offset log {self.offset_log}" if self.offset_log != 1 else "",
        ]
        return ", ".join(filter(None, parts))


class Lab:
    """One Spark, and the lives on it.

    Args:
        base: where the stream of a cell lives: its input, its outputs and its home. The same path in every process,
            since Spark writes absolute ones.
    """

    def __init__(self, spark: Any, cell: Cell, base: Path) -> None:
        self.cell = cell
        self.base = base
        self.story = STORIES[cell.story]
        self.spark = spark.newSession()
        for key, value in cell.settings.items():
            self.spark.conf.set(key, value)
        self.stream = Deployments(base)
        self.stream.count_fed(len(list((base / "in").glob("[0-9]*.json"))))

    def attempt(self, start: StartPlan, chapter: int, order: str) -> Event:
        """One deployment that reads a chapter and is then stopped or drained; its last event."""
        from airflow_streamstate.driver.spark.interception import Interception

        deployment_id = self.stream.record("", start=start, settings=AgentSettings(0.1, 1.0, 60.0, 60.0))
        control, home = self.stream.control, self.stream.home
        said: list[str] = []
        attempt_life = AttemptLife(
            control,
            home,
            control.spec(deployment_id),
            1,
            SYSTEM_CLOCK,
            lambda key: f"file://{home.root}/{key}",
            said.append,
        )
        attempt_life.claim(f"{deployment_id}-a1", "lab", 1)
        agent = Agent(attempt_life, lambda status: said.append(f"ended with {status}"))
        agent.start()
        interception = Interception(attempt_life, SYSTEM_CLOCK)
        try:
            handles = {}
            for name in self.cell.queries:
                handles[name] = interception._start(self._writer(name), None, None)
            SYSTEM_CLOCK.sleep(self.story.PAUSE_SECONDS)
            for rows in self.story.CHAPTERS[chapter]:
                self.stream.feed(*rows)
            self._wait_read(handles, said)
            wait_until(
                lambda: self.story.is_settled(self.rows, chapter + 1),
                lambda: f"what the clock brings: {self.rows('ticking')}\n" + "\n".join(said),
                WAIT_SECONDS,
            )
            self.stream.order_by_name(order)
            for name, handle in handles.items():
                assert handle.awaitTermination(WAIT_SECONDS), f"{name} was not ended:\n" + "\n".join(said)
            status = attempt_life.script_ended(None)
            assert status == 0, f"status {status}:\n" + "\n".join(said)
        except BaseException as error:
            raise AssertionError(f"{type(error).__name__}: {error}\nthe driver said:\n" + "\n".join(said)) from error
        finally:
            agent.stop()
            for query in self.spark.streams.active:
                query.stop()
        self._check_pins()
        self._check_states(recorded_plans(control, deployment_id))
        kind: type[Event] = Drained if order == "drain" else Stopped
        found = self.stream.events(kind)
        assert found, f"no {kind.__name__}:\n" + "\n".join(said)
        return found[0]

    def _writer(self, name: str) -> Any:
        writer = self.story.PLANS[name](self.spark, self.base).writeStream.queryName(name)
        if name in self.story.UPDATED:
            return writer.outputMode("update").foreachBatch(_into(self.base / name))
        return writer.format("json").option("path", str(self.base / name))

    def _check_pins(self) -> None:
        """A Spark that pins a setting which a seed would not set shows here, by its name."""
        checkpoint = Checkpoint(self.stream.home, self.stream.checkpoint_key(self.cell.queries[0]))
        entry = checkpoint.read_offset(checkpoint.offset_ids()[-1])
        assert entry is not None
        known = {key for key in PINNED_CONF_KEYS if self._knows(key)}
        assert set(unmarked(entry).conf) <= set(PINNED_CONF_KEYS), "settings that a seed does not pin"
        assert set(PINNED_BY_ALL) <= known, "settings that this Spark has no more"

    def _check_states(self, plans: Mapping[str, QueryPlan]) -> None:
        """What the story declares is what Spark planned; the variables of a processor show in its state only."""
        for name, plan in plans.items():
            [found] = states_of(plan)
            declared = set(self.story.STATES[name].split())
            assert set(found) - {"unknown"} <= declared, (name, found, declared)

    def _knows(self, key: str) -> bool:
        try:
            return self.spark.conf.get(key) is not None
        except Exception:  # each Spark has another class for it
            return False

    def _wait_read(self, handles: Mapping[str, Any], said: list[str]) -> None:
        wanted = len(list((self.base / "in").glob("[0-9]*.json")))

        def all_read() -> bool:
            for name, handle in handles.items():
                assert handle.isActive, f"{name} has ended: {handle.exception()}"
            return all(files_read(self.stream.checkpoint_folder(name)) >= wanted for name in handles)

        wait_until(all_read, lambda: "the chapter to be read:\n" + "\n".join(said), WAIT_SECONDS)

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """What a query has written, sorted."""
        fields, folder = tuple(self.story.FIELDS[name]), self.base / name
        found = _rows_of_batches(folder) if name in self.story.UPDATED else rows_in(folder)
        return sorted((tuple(line.get(field) for field in fields) for line in found), key=repr)

    def check_partitions(self, count: int) -> None:
        """See that every query has this many partitions."""
        for name in self.cell.queries:
            checkpoint = Checkpoint(self.stream.home, self.stream.checkpoint_key(name))
            entry = checkpoint.read_offset(checkpoint.offset_ids()[-1])
            assert entry is not None
            assert entry.conf["spark.sql.shuffle.partitions"] == str(count), name

    def check(self, chapters: int) -> None:
        """See that after the last order over this many chapters every row came out once."""
        self.story.check(self.rows, self.cell.queries, chapters)


def _into(folder: Path) -> Callable[[Any, int], None]:
    """A function for ``foreachBatch``: a file for each batch; one that is run again replaces its own."""

    def write(frame: Any, batch_id: int) -> None:
        folder.mkdir(exist_ok=True)
        (folder / f"{batch_id}.json").write_text("".join(line + "\n" for line in frame.toJSON().collect()))

    return write


def _rows_of_batches(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.glob("*.json") for line in file.read_text().splitlines()]


def restored(event: Event) -> StartPlan:
    """How the deployment after a stop starts."""
    return StartPlan("restore", event.snapshot_id, event.deployment_id)  # type: ignore[attr-defined]


def seeded(event: Event) -> StartPlan:
    """How the deployment after a drain starts."""
    return StartPlan("seed", event.snapshot_id, event.deployment_id)  # type: ignore[attr-defined]


# orders


def live(spark: Any, cell: Cell, place: Path, **_: Any) -> str:
    """A life on one Spark: fresh, stopped, restored, drained, seeded, drained; where no drain empties the state:
    stopped, restored and stopped again.

    The stopped and the drained stream are left for other Sparks: copies of its whole place, alongside it.
    """
    lab = _anew(spark, cell, place)
    stopped = lab.attempt(StartPlan("fresh"), 0, "stop")
    _copy(place / "live", place / f"stopped-{spark.version}")
    if not lab.story.DRAINS:
        stopped = lab.attempt(restored(stopped), 1, "stop")
        lab.check(2)
        lab.attempt(restored(stopped), 2, "stop")
        lab.check(3)
        return "exact"
    drained = lab.attempt(restored(stopped), 1, "drain")
    lab.check(2)
    _copy(place / "live", place / f"drained-{spark.version}")
    lab.attempt(seeded(drained), 2, "drain")
    lab.check(3)
    return "exact"


def take(spark: Any, cell: Cell, place: Path, *, of: str, how: str, rewriter: str = "") -> str:
    """Continue with what another Spark left: ``how`` is ``restore``, ``rescale`` or ``seed``."""
    kind = Drained if how == "seed" else Stopped
    lab = _anew(spark, cell, place, place / f"{'drained' if how == 'seed' else 'stopped'}-{of}")
    last = lab.stream.events(kind)[0]
    if how != "seed":
        start = restored(last)
        if how == "rescale":
            store: Literal["rocksdb"] | None = "rocksdb" if cell.provider == "hdfs" else None
            start = replace(start, rewrite=StateRewrite(3, store, rewriter_spark=rewriter))
            lab.spark.conf.set(PINS["provider"], PROVIDERS["rocksdb"])
        lab.attempt(start, 1, "drain" if lab.story.DRAINS else "stop")
        lab.check(2)
        if how == "rescale":
            lab.check_partitions(3)
    else:
        lab.attempt(seeded(last), 2, "drain")
        lab.check(3)
    return "exact"


REFUSALS = (
    "IncompatibleUpgradeError: the state was written by a newer Spark",
    "InvalidRequestError: the drain left state that it could not flush",
)
ORDERS: dict[str, Callable[..., str]] = {"live": live, "take": take}


def _anew(spark: Any, cell: Cell, place: Path, of: Path | None = None) -> Lab:
    shutil.rmtree(place / "live", ignore_errors=True)
    if of is not None:
        _copy(of, place / "live")
    return Lab(spark, cell, place / "live")


def _copy(source: Path, target: Path) -> None:
    """Copy a place over another, in which Spark's upkeep of the stream before may still make folders for a moment."""

    def is_copied() -> bool:
        shutil.rmtree(target, ignore_errors=True)
        try:
            shutil.copytree(source, target)
        except (FileExistsError, shutil.Error):
            return False
        return True

    wait_until(is_copied, lambda: f"{target} to be free", WAIT_SECONDS)


def session(scratch: Path) -> Any:
    """The Spark of this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyspark.sql import SparkSession
    builder = SparkSession.builder.master("local[2]").appName("streamstate-lab")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "OFF",
        "spark.driver.extraJavaOptions": quick_jvm.PLAIN,
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.streaming.pollingDelay": "50ms",
        "spark.python.authenticate.socketTimeout": "120s",  # a busy machine is not a failure
        "spark.sql.streaming.stateStore.maintenanceInterval": "500ms",
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "2",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main(path: Path) -> None:
    """Work off the orders of a file."""
    raw = json.loads(path.read_text())
    spark = session(path.parent)
    with Path(raw["results"]).open("a") as results:
        for order in raw["orders"]:
            words = {key: value for key, value in order.items() if key not in ("do", "cell", "place")}
            began = SYSTEM_CLOCK.monotonic_seconds()
            try:
                outcome = ORDERS[order["do"]](spark, Cell(**order["cell"]), Path(order["place"]), **words)
                answer = {"outcome": outcome}
            except Exception as error:
                is_refused = any(words in str(error) for words in REFUSALS)
                answer = {
                    "outcome": "refused" if is_refused else "failed",
                    "error": str(error)[:6000],
                    "traceback": traceback.format_exc()[-3000:],
                }
            seconds = round(SYSTEM_CLOCK.monotonic_seconds() - began, 1)
            results.write(json.dumps({**order, "spark": spark.version, **answer, "seconds": seconds}) + "\n")
            results.flush()
    threading.Thread(target=spark.stop, daemon=True).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
