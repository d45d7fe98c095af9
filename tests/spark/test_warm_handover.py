"""A warm handover on real Spark: the new driver waits, rehearsed, before the old one gets its barrier.

What ``forget_session`` does between the two passes of a script is shown here, too.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.controller.request.requests import change_request
from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest
from airflow_streamstate.protocol.events import Claimed, QueryStarted, Started
from airflow_streamstate.protocol.terms.order import UpgradeTerms
from airflow_streamstate.protocol.upgrades import BEFORE_THE_STOP
from support.drivers import wait_until
from support.file_sink import rows_in
from support.launches import end_processes, living_processes
from support.warm_life import COUNTS, STREAM, Life

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

TWO_QUERIES = """
import os
import sys

from pyspark.sql import SparkSession, functions as F
from pyspark.sql.streaming import StreamingQueryListener

base = sys.argv[1]


def tell(name, *words):
    with open(base + "/" + name, "a") as file:
        print("VERSION", *words, file=file)


class Told(StreamingQueryListener):
    def onQueryStarted(self, event):
        tell("told", event.name)

    def onQueryProgress(self, event):
        pass

    def onQueryTerminated(self, event):
        pass


spark = SparkSession.builder.getOrCreate()
seen = os.environ.get("MARK"), spark.conf.get("spark.mark", None), len(spark.streams.active), os.getcwd() == "/"
tell("passes", os.environ.get("STREAMSTATE_REHEARSAL"), *seen)
tell("applications", spark.sparkContext.applicationId)
os.environ["MARK"] = "set"
os.chdir("/")
spark.conf.set("spark.mark", "set")
spark.streams.addListener(Told())
rows = spark.readStream.schema("t timestamp, k string, v int").option("maxFilesPerTrigger", 1).json(base + "/in")
rows.createTempView("rows")
windows = spark.table("rows").withWatermark("t", "10 seconds").groupBy(F.window("t", "10 seconds"), "k")
counts = windows.agg(F.count("*").alias("n"), F.sum("v").alias("s")).select("window.start", "k", "n", "s")
counts.writeStream.queryName("counts").format("json").start(base + "/out")
rows.writeStream.queryName("raw").format("json").start(base + "/raw")
spark.streams.awaitAnyTermination()
END
"""


FAILS_ONCE_THERE_IS_A_MISTAKE = COUNTS.replace("counts.writeStream", "query = counts.writeStream").replace(
    ".awaitTermination()",
    """
while not query.awaitTermination(0.1):
    if os.path.exists(base + "/mistake"):
        raise ValueError("a mistake of VERSION")
""",
)


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    """No driver is left of it."""
    life = Life(tmp_path)
    yield life
    life.end()


def test_the_new_driver_waits_while_the_old_one_runs_and_goes_on_where_that_ends(life: Life) -> None:
    """The old one hears of nothing before its barrier; every row is counted once; the new one is an attempt like any
    other: its log, its stop and its plan are found as ever."""
    life.runs("v1", 3)
    view = life.waits("v2")
    assert life.passes() == ["v1 False True __main__", "v2 True True __main__", "v2 False True __main__"]
    life.rows.feed()
    life.wait_closed(3)
    assert [type(entry.event) for entry in life.control.journal("d-0001").events()].count(Claimed) == 1
    life.stop()
    deployed = life.deploy("v2", view)
    assert (deployed.deployment_id, life.deployer.drivers.is_warm) == ("d-0002", True)
    life.rows.feed()
    life.wait_closed(4)
    assert life.rows.found() <= life.rows.expected()
    events = [entry.event for entry in life.control.journal("d-0002").events()]
    assert [type(event) for event in events[:3]] == [Claimed, Started, QueryStarted]
    assert [event.how for event in events if isinstance(event, QueryStarted)] == ["restored"]
    assert "d-0002 attempt 1 of stream orders is claimed" in life.log()
    assert list(life.controller.plans.recorded(STREAM).queries) == ["counts"]
    life.rehearsals.give_up(STREAM, view.rehearsal_id)
    assert {path.name for path in life.folder_of(view).iterdir()} == {
        "run.json", "verdict.json", "waiting.json", "handover.json", "plans", "launches"
    }  # fmt: skip
    life.stop()
    assert life.controller.status(STREAM).state == "stopped"
    assert len(life.rows.found()) == 8
    wait_until(lambda: not living_processes(str(life.launch_of(view))), life.log, 60)


@pytest.mark.named
@pytest.mark.parametrize("end", ["", "spark.stop()"])
def test_a_script_finds_its_second_pass_as_fresh_as_its_first(life: Life, end: str) -> None:
    """Two queries, and a wait for any of them that does not return for those of the rehearsal. Variables, folder,
    settings, temporary views and listeners are as at a first start, whether the script ends Spark or leaves it up."""
    text = TWO_QUERIES.replace("END", end)
    life.runs("v1", 2, text)
    view = life.waits("v2", text)
    fresh = "None None 0 False"
    assert life.passes() == [f"v1 None {fresh}", f"v2 1 {fresh}", f"v2 None {fresh}"]
    _, first, second = life.told("applications")
    assert (first == second) is (end == "")
    life.stop()
    life.deploy("v2", view)
    assert life.deployer.drivers.is_warm
    life.rows.feed()
    life.wait_closed(2)
    wait_until(lambda: len(rows_in(life.base / "raw")) == 12, life.log, 60)
    assert sorted(line for line in life.told("told") if "rehears" not in line) == [
        "v1 counts", "v1 raw", "v2 counts", "v2 raw"
    ]  # fmt: skip
    assert life.controller.status(STREAM).state == "running"
    life.stop()
    assert life.controller.status(STREAM).state == "stopped"
    assert life.rows.found() <= life.rows.expected()
    assert len(life.rows.found()) == 4
    wait_until(lambda: not living_processes(str(life.launch_of(view))), life.log, 60)


@pytest.mark.named
def test_a_driver_of_the_old_version_waits_for_the_way_back(life: Life) -> None:
    """The new version fails before its first batch; the driver that was rehearsed before the stop takes over, and each
    row is counted once (Laws 2, 9)."""
    life.runs("v1", 3)
    change = change_request(STREAM, life.script("v2", FAILS_ONCE_THERE_IS_A_MISTAKE))
    request = UpgradeRequest(change, UpgradeTerms(mode="restore", warm_return=True, healthy_batches=1))
    upgrades = life.controller.upgrades
    begun = upgrades.begin(request)

    def strike(_: str) -> None:
        if upgrades.view(STREAM, begun.upgrade_id).state.phase not in BEFORE_THE_STOP:
            (life.base / "mistake").touch()

    view = upgrades.run(STREAM, begun.upgrade_id, 300, on_step=strike)
    assert (view.outcome, view.state.way, view.to_json()["driver"]) == ("given_up", "handover", "waits"), view
    assert "a mistake of v2" in view.to_json()["reason"]
    assert life.passes() == [f"{one} __main__" for one in ("v1 False True", "v2 True True", "v2 False True",
                                                          "v1 True True", "v1 False True")]  # fmt: skip
    life.rows.feed()
    life.wait_closed(3)
    assert life.rows.found() <= life.rows.expected()
    life.stop()
    wait_until(lambda: not living_processes(str(life.base / "home")), life.log, 60)


@pytest.mark.named
def test_a_driver_that_dies_or_waits_in_vain_is_never_noticed(life: Life) -> None:
    """Killed, or ended by itself after its time: the old one runs on, and nothing of them is left but reports."""
    life.runs("v1", 2)
    killed = life.waits("v2")
    end_processes(str(life.launch_of(killed)))
    wait_until(lambda: not life.rehearsals.is_waiting(STREAM, killed.rehearsal_id), lambda: life.log_of(killed), 30)
    assert "its driver has ended" in life.rehearsals.waiting_end(STREAM, killed.rehearsal_id)
    life.rehearsals.give_up(STREAM, killed.rehearsal_id)
    late = life.waits("v3", waits_seconds=60.0)
    wait_until(lambda: not living_processes(str(life.launch_of(late))), lambda: life.log_of(late), 120)
    assert "nothing was handed over" in life.log_of(late)
    assert (life.launch_of(late) / "exit_status").read_text().strip() == "0"
    life.rehearsals.sweep(STREAM)
    for view in (killed, late):
        assert {path.name for path in life.folder_of(view).iterdir()} == {"run.json", "verdict.json", "plans"}
    life.rows.feed()
    life.wait_closed(2)
    status = life.controller.status(STREAM)
    assert (status.deployment_id, status.attempt, status.state) == ("d-0001", 1, "running")
    claims = [entry for entry in life.control.journal("d-0001").events() if isinstance(entry.event, Claimed)]
    assert len(claims) == 1


@pytest.mark.named
def test_a_driver_that_is_killed_before_it_claims_is_followed_by_a_cold_one(life: Life) -> None:
    """Handed over, and dead before it could know: the attempt has failed, the same request continues with the next."""
    life.runs("v1", 2)
    view = life.waits("v2")
    life.stop()
    for process in living_processes(str(life.launch_of(view))):
        os.kill(process.pid, signal.SIGSTOP)
    life.deploy("v2", view)
    assert life.deployer.drivers.is_warm
    end_processes(str(life.launch_of(view)))
    wait_until(lambda: life.controller.status(STREAM).state == "failed", life.log, 30)
    life.deploy("v2", view)
    life.rows.feed()
    life.wait_closed(2)
    status = life.controller.status(STREAM)
    assert (status.deployment_id, status.attempt, status.state) == ("d-0002", 2, "running")
    claims = [entry.event for entry in life.control.journal("d-0002").events() if isinstance(entry.event, Claimed)]
    assert [claim.attempt for claim in claims] == [2]
    assert life.rows.found() <= life.rows.expected()
