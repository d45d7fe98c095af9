"""A folder of ten streams on real Spark, upgraded in waves with one bad version: by the shell, and by ``StreamsDag``.

Ten drivers share one machine: each has a JVM of 512 MB that starts fast, one core, and a batch every five seconds.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_streamstate.control.upgrade_journal import UpgradeJournal
from support.airflow_site import AirflowSite
from support.airflow_streams import NamedHome, named_home
from support.drivers import CONF
from support.file_sink import rows_in
from support.progress import wait_read
from support.shell import Answer, shell

pytestmark = [pytest.mark.components, pytest.mark.spark, pytest.mark.named, pytest.mark.timeout(3000)]
STREAMS = tuple(f"s{number:02d}" for number in range(10))
CANARY, OTHERS = STREAMS[0], STREAMS[1:]
NEW_ROWS, OLD_ROWS = 20, 5
DAG = """
from airflow_streamstate.streams_dag import StreamsDag

StreamsDag(
    "streams", dag_id="ten", rehearse=False, canary="tier=canary", wave=3, stop_after_failures=1, healthy_for_seconds=5
)
"""
SCRIPT = """# version VERSION
import sys

from pyspark.sql import SparkSession, functions as F

source, target = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1).json(source)
first = rows.dropDuplicates(KEYS).withColumn("version", F.lit("VERSION"))
writer = first.writeStream.queryName("first").format("json").trigger(processingTime="5 seconds")
writer.start(target).awaitTermination()
"""


class Folder:
    """The files of the ten streams, their input and what they wrote.

    Args:
        base: the DAG's folder; ``streams`` and the scripts are in it.
    """

    def __init__(self, base: Path, home: NamedHome) -> None:
        self.streams = base / "streams"
        self._base = base
        self._home = home
        self._data = home.base / "data"
        self._files = 0
        self.streams.mkdir()
        for name in STREAMS:
            (self._data / name / "in").mkdir(parents=True)

    def declare(self, version: str, *, bad: tuple[str, ...] = ()) -> None:
        """All ten in this version; the state of ``bad`` ones does not fit it."""
        for name in STREAMS:
            keys = '["v", "k"]' if name in bad else '["v"]'
            kind = f"{version}-bad" if name in bad else version
            script = self._base / f"{kind}.py"
            script.write_text(SCRIPT.replace("VERSION", kind).replace("KEYS", keys))
            values = {
                "id": name,
                "application": f"../{script.name}",
                "arguments": [str(self._data / name / "in"), str(self._data / name / "out")],
                "master": "local[1]",
                "conf": {**CONF, "spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "1"},
                "upgrade": {"warm": False, "healthy_batches": 1, "healthy_deadline_seconds": 300},
                "labels": {"tier": "canary" if name == CANARY else "other"},
            }
            (self.streams / f"{name}.yaml").write_text(yaml.safe_dump(values))

    def feed(self) -> None:
        """Another file for each stream: new rows, and some that came before."""
        self._files += 1
        begin = NEW_ROWS * (self._files - 1)
        numbers = [*range(begin, begin + NEW_ROWS), *range(max(0, begin - OLD_ROWS), begin)]
        text = "".join(f"{json.dumps({'k': 'even' if v % 2 == 0 else 'odd', 'v': v})}\n" for v in numbers)
        for name in STREAMS:
            hidden = self._data / name / "in" / f".{self._files:03d}"
            hidden.write_text(text)
            hidden.rename(hidden.with_name(f"{self._files:03d}.json"))

    def wait_all_read(self) -> None:
        """Until each stream has read every file."""
        for name, deployment_id in self.deployments().items():
            folder = Path(self._home.home.checkpoints.uri, name, "deployments", deployment_id, "checkpoints", "first")
            wait_read(folder, self._files, lambda name=name: shell("logs", name).out[-3000:])  # type: ignore[misc]

    def check_rows(self) -> None:
        """Each number that was fed came out of each stream once, whatever version had it."""
        fed = Counter(range(NEW_ROWS * self._files))
        for name in STREAMS:
            assert Counter(row["v"] for row in rows_in(self._data / name / "out")) == fed, name

    def versions(self) -> dict[str, set[str]]:
        """Which versions wrote rows of each stream."""
        return {name: {row["version"] for row in rows_in(self._data / name / "out")} for name in STREAMS}

    def deployments(self) -> dict[str, str]:
        """The current deployment of each stream, all of which run."""
        found = self._home.hook().client.statuses()
        assert {str(one.state) for one in found} == {"running"}, found
        return {one.stream_id: one.deployment_id for one in found}

    def touched(self) -> dict[str, tuple[object, ...]]:
        """All that a change of a stream would change: deployments, attempts, processes, upgrades."""
        control = self._home.home.control
        found: dict[str, tuple[object, ...]] = {}
        for name, deployment_id in self.deployments().items():
            attempt = self._home.hook().client.status(name).attempt
            claim = control(name).claim(deployment_id, attempt)
            assert claim is not None
            upgrades = UpgradeJournal(control(name)).ids()
            found[name] = (tuple(control(name).deployment_ids()), attempt, claim.pid, tuple(upgrades))
        return found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NamedHome]:
    """On disk, for the shell and for Airflow."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    with named_home(tmp_path, monkeypatch) as made:
        monkeypatch.setenv("STREAMSTATE_HOME", made.config.home_uri)
        yield made


def apply(folder: Folder, *words: object) -> tuple[Answer, dict[str, dict[str, Any]]]:
    """``apply`` with the canary first; what became of each stream."""
    terms = ("--canary", "tier=canary", "--wave", 3, "--stop-after-failures", 1, "--timeout", 600)
    answer = shell("apply", folder.streams, "--json", *terms, *words)
    return answer, {one["stream_id"]: one for one in answer.json["streams"]}


def test_ten_streams_in_waves_with_one_bad_version(home: NamedHome, tmp_path: Path) -> None:
    """The canary is refused and nothing else is touched, by either way; once it is fixed, all ten follow,
    and no row is lost or doubled. (Laws 2, 9)"""
    (tmp_path / "dags").mkdir()
    folder = Folder(tmp_path / "dags", home)
    folder.declare("one")
    folder.feed()
    answer, found = apply(folder)
    assert answer.status == 0, answer
    assert {one["result"] for one in found.values()} == {"done"}
    folder.wait_all_read()
    before = folder.touched()

    folder.declare("two", bad=(CANARY,))
    answer, found = apply(folder)
    assert answer.status == 1, answer
    assert (found[CANARY]["result"], found[CANARY]["deployment_id"]) == ("refused", "d-0001")
    assert "a drain was not allowed" in found[CANARY]["reason"]
    _check_others_held_back(found)
    folder.feed()
    folder.wait_all_read()
    after = folder.touched()
    assert {name: after[name] for name in OTHERS} == {name: before[name] for name in OTHERS}
    assert after[CANARY][:3] == before[CANARY][:3]
    folder.check_rows()
    assert folder.versions() == {key: {"one"} for key in STREAMS}

    (tmp_path / "dags" / "ten.py").write_text(DAG)
    environment = {"AIRFLOW_CONN_STREAMSTATE_DEFAULT": home.connection}
    with AirflowSite(tmp_path / "airflow", tmp_path / "dags", environment) as site:
        site.wait_for_dags("ten")
        site.unpause("ten")
        folder.declare("three", bad=(CANARY,))
        run_id = site.trigger("ten")
        assert site.wait_for_run("ten", run_id, 600) == "failed"
        tasks = _tasks(site, run_id)
        assert [state for state, _ in tasks] == ["failed", "skipped", "skipped", "skipped"]
        found = {name: one for _, streams in tasks for name, one in streams.items()}
        assert (found[CANARY]["result"], "a drain was not allowed" in found[CANARY]["reason"]) == ("refused", True)
        _check_others_held_back(found)
        assert {name: folder.touched()[name] for name in OTHERS} == {name: before[name] for name in OTHERS}

        folder.declare("four")
        run_id = site.trigger("ten")
        deferred: Counter[str] = Counter()

        def look() -> None:
            path = f"/dags/ten/dagRuns/{run_id}/taskInstances?limit=100"
            for task in site.call("GET", path)["task_instances"]:
                deferred[str(task["state"])] += task["task_id"] == "apply"

        site.need_success("ten", run_id, 1500, look)
        assert deferred["deferred"]
        tasks = _tasks(site, run_id)
        assert [sorted(streams) for _, streams in tasks] == [
            [CANARY], list(OTHERS[0:3]), list(OTHERS[3:6]), list(OTHERS[6:9])
        ]  # fmt: skip
        assert {one["result"] for _, streams in tasks for one in streams.values()} == {"done"}
    folder.feed()
    folder.wait_all_read()
    assert folder.deployments() == dict.fromkeys(STREAMS, "d-0002")
    folder.check_rows()
    assert folder.versions() == {key: {"one", "four"} for key in STREAMS}
    assert shell("diff", folder.streams, "--no-rehearsal", "--json").status == 0


def _check_others_held_back(found: dict[str, dict[str, Any]]) -> None:
    for name in OTHERS:
        assert (found[name]["result"], found[name]["reason"]) == ("not begun", "a canary is not well"), found[name]


def _tasks(site: AirflowSite, run_id: str) -> list[tuple[str, dict[str, dict[str, Any]]]]:
    """State and results by stream of each wave, in their order."""
    path = f"/dags/ten/dagRuns/{run_id}/taskInstances"
    waves = [task for task in site.call("GET", f"{path}?limit=100")["task_instances"] if task["task_id"] == "apply"]
    found = []
    for task in sorted(waves, key=lambda one: one["map_index"]):
        entry = f"{path}/apply/xcomEntries/return_value?map_index={task['map_index']}&deserialize=true"
        streams = site.call("GET", entry)["value"]["streams"]
        found.append((str(task["state"]), {one["stream_id"]: one for one in streams}))
    return found
