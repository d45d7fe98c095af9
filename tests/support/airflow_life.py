"""The life of a real stream on a real cluster by Airflow's tasks, with a component killed in the middle of each verb.

Each batch may be held, so that no verb can end while a component is away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from airflow_streamstate.allowed import Allowed, AllowedPlace
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.upgrade_journal import UpgradeJournal
from airflow_streamstate.controller.observe.lineage import lineage_of
from airflow_streamstate.launch.launchers import Launchers
from airflow_streamstate.protocol.layout import checkpoint_folder, commands_prefix
from support import airflow_home
from support.airflow_site import AirflowSite, eventually
from support.airflow_streams import NamedHome, named_home
from support.airflow_strikes import NOTICED_SOON, Component, Striker
from support.flights import Flights, counts, counts_of
from support.progress import files_read

assert airflow_home.HOME.is_dir()  # made before anything of Airflow is imported

STREAM = "flights"
VERBS = ("deploy", "upgrade", "stop", "resume", "rollback", "drain")
FILES = 9
VERB_SECONDS = 600.0
JOB = '''
"""Flights per origin and day; a batch waits while the file ``hold-{version}`` is there."""
import os
import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

incoming, output, folder = sys.argv[1:4]
hold, inside = os.path.join(folder, "hold-{version}"), os.path.join(folder, "inside-{version}")
spark = (
    SparkSession.builder.config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)


@F.udf("string")
def held(origin):
    while os.path.exists(hold):
        open(inside, "w").close()
        time.sleep(0.05)
    return origin


flights = (
    spark.readStream.schema("date STRING, origin STRING")
    .option("maxFilesPerTrigger", 1)
    .json(incoming)
    .select(F.to_timestamp("date", "yyyy/MM/dd HH:mm").alias("at"), held("origin").alias("origin"))
)
delays = (
    flights.withWatermark("at", "1 day")
    .groupBy(F.window("at", "1 day").alias("day"), "origin")
    .agg(F.count("*").alias("flights"))
    .select(F.lit({version}).alias("version"), F.col("day.start").alias("day"), "origin", "flights")
)
delays.writeStream.queryName("delays").format("parquet").start(output).awaitTermination()
'''
DAGS = '''
"""A stream on a cluster: a DAG for each verb that waits in its worker, and one that waits in the triggerer."""
from datetime import timedelta

from airflow.sdk import dag

from airflow_streamstate.operators.deploy import DeployStreamOperator
from airflow_streamstate.operators.stop import DrainStreamOperator
from airflow_streamstate.operators.deploy import ResumeStreamOperator
from airflow_streamstate.operators.upgrade import RollbackStreamOperator
from airflow_streamstate.operators.stop import StopStreamOperator
from airflow_streamstate.operators.upgrade import UpgradeStreamOperator


def both(verb, operator, **more):
    for how, deferrable in (("worker", False), ("triggerer", True)):

        @dag(dag_id=f"{{verb}}_in_{{how}}", schedule=None, catchup=False)
        def one():
            operator(
                task_id="act", stream_id={stream!r}, deferrable=deferrable, timeout_seconds=900,
                poll_interval_seconds=0.5, retries=5, retry_delay=timedelta(seconds=1), **more,
            )

        one()


SLOW = {{"healthy_deadline_seconds": 900, "rehearsal_deadline_seconds": 600}}
both("deploy", DeployStreamOperator, **{version!r})
both("upgrade", UpgradeStreamOperator, application={second!r}, **SLOW)
both("stop", StopStreamOperator)
both("resume", ResumeStreamOperator)
both("rollback", RollbackStreamOperator, **SLOW)
both("drain", DrainStreamOperator, wait_for_completion=True)
'''


class Cluster(Protocol):
    """Where the drivers of the stream run."""

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Of ``DeployStreamOperator``: launcher, connection, options, master, conf."""

    def launch_keys(self) -> list[str]:
        """The launch key of every driver that the cluster was ever asked to run, in their order."""

    def running(self) -> list[str]:
        """Those of drivers that wait or run now, in their order."""


class Life:
    """A stream, and the Airflow that drives it."""

    def __init__(self, site: AirflowSite, home: NamedHome, cluster: Cluster, flights: Flights) -> None:
        self._site, self._home, self._cluster, self._flights = site, home, cluster, flights
        self._lines: list[str] = []
        self._fed = 0
        self._version = 1  # that runs, or did last
        self._control = home.home.control(STREAM)

    def live(self, killed: Mapping[str, Component]) -> dict[str, Any]:
        """These verbs, in the middle of each of which its component is killed; what each task returned.

        Args:
            killed: some of ``VERBS``, in their order.
        """
        found = {}
        for verb, component in killed.items():
            run: Callable[[Component], Any] = getattr(self, f"_{verb}")
            found[verb] = run(component)
            wanted = 0 if verb in ("stop", "drain") else 1
            eventually(lambda wanted=wanted: len(self._cluster.running()) == wanted, f"{wanted} drivers", VERB_SECONDS)
        return found

    def check(self, told: Mapping[str, Any]) -> None:
        """After all verbs: each ended as without a kill, by one driver of each launch key, and no row was lost."""
        assert (told["deploy"]["deployment_id"], told["deploy"]["attempt"]) == ("d-0001", 1)
        assert told["upgrade"]["outcome"] == "upgraded"
        assert told["stop"]["deployment_id"] == "d-0002"
        assert (told["resume"]["deployment_id"], told["resume"]["attempt"]) == ("d-0002", 2)
        assert told["rollback"]["outcome"] == "rolled_back"
        assert told["drain"]["state_rows_left"] == 0
        assert len(UpgradeJournal(self._control).ids()) == 2
        keys = self._cluster.launch_keys()
        assert [key for key in keys if key.startswith("d-")] == ["d-0001-a0001", "d-0002-a0002"], keys
        assert len([key for key in keys if key.startswith("r-")]) == len(set(keys)) - 2 == 2, keys  # they took over
        self.check_rows()

    def check_rows(self) -> None:
        """Every flight was counted once, and the logs prove it."""
        assert counts_of(list(self._flights.written()), "origin") == counts(self._lines, "origin")
        lineage = lineage_of(self._home.home, STREAM, None).to_json()
        assert lineage["ok"] is True, lineage

    def _deploy(self, component: Component) -> Any:
        self._hold(1)
        self._feed(2)
        return self._in_the_middle("deploy", component, lambda: self._until_running("d-0001-a0001"))

    def _upgrade(self, component: Component) -> Any:
        self._wait_read(self._fed)
        phases = ("stopping", "started")
        return self._in_the_middle("upgrade", component, lambda: self._until_handed_over(2, *phases), is_held=True)

    def _stop(self, component: Component) -> Any:
        self._wait_read(self._fed)
        return self._in_the_middle("stop", component, lambda: self._until_ordered("StopRequest"), is_held=True)

    def _resume(self, component: Component) -> Any:
        self._hold(self._version)
        self._feed()
        key = f"{self._current()}-a0002"
        return self._in_the_middle("resume", component, lambda: self._until_running(key))

    def _rollback(self, component: Component) -> Any:
        self._wait_read(self._fed)
        phases = ("returning", "returned")
        return self._in_the_middle("rollback", component, lambda: self._until_handed_over(1, *phases), is_held=True)

    def _drain(self, component: Component) -> Any:
        self._wait_read(self._fed)
        return self._in_the_middle("drain", component, lambda: self._until_ordered("DrainNotification"), is_held=True)

    def _in_the_middle(
        self, verb: str, component: Component, until: Callable[[], object], *, is_held: bool = False
    ) -> Any:
        """A run of a verb's DAG; its component is killed once ``until`` has returned, then the version may continue.

        Args:
            is_held: the driver is in a batch, and stays in it, before the verb starts.
        """
        if is_held:
            self._hold(self._version)
            self._feed()
            self._wait_inside(self._version)
        dag_id = f"{verb}_in_{'triggerer' if component == 'triggerer' else 'worker'}"
        run_id = self._site.trigger(dag_id)
        until()
        *_, driver = self._cluster.running()  # one before it may be ending
        Striker(self._site, component, dag_id, run_id, "act").strike()
        assert self._cluster.running() == [driver], "it ended with the component, or there is a second one"
        self._release(self._version)
        self._site.need_success(dag_id, run_id, VERB_SECONDS)
        return self._site.xcom(dag_id, run_id, "act")

    def _until_running(self, key: str) -> None:
        eventually(lambda: key in self._cluster.running(), f"the driver {key}", VERB_SECONDS, every=0.05)

    def _until_ordered(self, kind: str) -> None:
        prefix = commands_prefix(STREAM, self._current())

        def is_there() -> bool:
            store = self._home.home.home
            found = [store.get(info.key) for info in store.list_objects(prefix)]
            return any(each is not None and f'"{kind}"'.encode() in each.body for each in found)

        eventually(is_there, f"the {kind}", VERB_SECONDS, every=0.05)

    def _until_handed_over(self, to: int, stopping: str, started: str) -> None:
        """One version is ordered to stop in its batch; the next one has its first batch, and is held in that.

        Args:
            stopping, started: the phases of the upgrade in which that is so.
        """
        self._until_phase(stopping)
        self._hold(to)
        self._feed()
        self._release(self._version)
        self._version = to
        self._wait_inside(to)
        self._until_phase(started)

    def _until_phase(self, phase: str) -> None:
        upgrades = self._home.hook().client.upgrades

        def is_in_it() -> bool:
            view = upgrades.under_way(STREAM)
            return view is not None and view.state.phase == phase

        eventually(is_in_it, f"the phase {phase}", VERB_SECONDS, every=0.1)

    def _current(self) -> str:
        return str(self._control.need_register().value.deployment_id)

    def _hold(self, version: int) -> None:
        (self._flights.folder / f"inside-{version}").unlink(missing_ok=True)
        (self._flights.folder / f"hold-{version}").touch()

    def _release(self, version: int) -> None:
        (self._flights.folder / f"hold-{version}").unlink()

    def _wait_inside(self, version: int) -> None:
        inside = self._flights.folder / f"inside-{version}"
        eventually(inside.exists, f"a batch of version {version}", VERB_SECONDS, every=0.05)

    def _feed(self, files: int = 1) -> None:
        self._lines += self._flights.feed(files)
        self._fed += files

    def _wait_read(self, files: int) -> None:
        folder = Path(self._home.base) / "home"
        checkpoint = folder / checkpoint_folder(STREAM, self._current(), "delays")
        eventually(lambda: files_read(checkpoint) == files, f"{files} files read", VERB_SECONDS)


@contextmanager
def life_on(
    cluster: Cluster, base: Path, monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]
) -> Iterator[Life]:
    """A home on disk, an Airflow that names it, and a stream that is not deployed yet."""
    flights = Flights(base / "flights", FILES)
    scripts = [base / f"version_{version}.py" for version in (1, 2)]
    for number, script in enumerate(scripts, 1):
        script.write_text(JOB.format(version=number))
    version = {
        "application": str(scripts[0]),
        "arguments": [*flights.arguments[1::2], str(flights.folder)],
        **cluster.arguments,
    }
    (base / "dags").mkdir()
    (base / "dags" / "verbs.py").write_text(DAGS.format(stream=STREAM, version=version, second=str(scripts[1])))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    named, options = str(cluster.arguments["launcher"]), {**cluster.arguments["launcher_options"], "pod_template": "*"}
    reaching = Launchers(SYSTEM_CLOCK).reaching_of(named)
    place = AllowedPlace.of(named, cluster.arguments.get("launcher_conn_id", ""), options, reaching)
    with named_home(base, monkeypatch, allowed=Allowed(launchers=(place,))) as home:
        more = {**environment, **NOTICED_SOON, "AIRFLOW_CONN_STREAMSTATE_DEFAULT": home.connection}
        with AirflowSite(base / "airflow", base / "dags", more) as site:
            dag_ids = [f"{verb}_in_{how}" for verb in VERBS for how in ("worker", "triggerer")]
            site.wait_for_dags(*dag_ids)
            for dag_id in dag_ids:
                site.unpause(dag_id)
            yield Life(site, home, cluster, flights)
