"""Controllers that die by SIGKILL at every stage of every verb, over real drivers: asked again, it is done once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate import errors
from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Claimed, QueryStarted
from airflow_streamstate.store.local import LocalStore
from support.drivers import CONF, WINDOWED_COUNTS
from support.dying_shell import DEATH
from support.held_disk import HELD_DRIVER, Gate
from support.launches import wait_until
from support.shell import Answer, Desk
from support.window_rows import WindowRows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

TESTS = Path(__file__).resolve().parents[1]
PACKAGE_PARENT = Path(errors.__file__).resolve().parents[1]  # of the package under test, wheel or checkout
QUICK = tuple(word for key, value in CONF.items() for word in ("--conf", f"{key}={value}"))
WAIT = ("--timeout", "200", "--json")
COUNTS = (
    """# version VERSION
import os
"""
    + WINDOWED_COUNTS
    + HELD_DRIVER
    + """
open(base + "/starts", "a").write("VERSION\\n")
counts.writeStream.queryName("counts").format("json").start(base + "/out").awaitTermination()
"""
)


class Life:
    """A stream that is driven by controllers which die.

    Attributes:
        deaths: at what, in the verb of now.
        rows: input and output.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.desk = Desk(base)
        self.rows = WindowRows(base)
        self.gate = Gate(base / "gate")
        self.control = StreamControl(LocalStore(self.desk.home), "orders", SYSTEM_CLOCK)
        self.deaths: list[str] = []
        self._requests = 0

    def ask(self, verb: str, *words: str, script: tuple[str, ...] = ()) -> Answer:
        """The answer to a verb, by however many controllers it takes; it must be one of success."""
        self._requests += 1
        request = ("--request-id", f"r-{self._requests}")
        done = subprocess.run(
            [sys.executable, str(TESTS / "support" / "dying_shell.py"), str(self.base), *verb.split(), "orders", *words,
             *request, *WAIT, *script],
            capture_output=True, text=True, timeout=400, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(PACKAGE_PARENT)])},
        )  # fmt: skip
        answer = Answer(done.returncode, done.stdout, done.stderr)
        assert answer.status == 0, answer
        self.deaths = [line.removeprefix(DEATH) for line in done.stderr.splitlines() if line.startswith(DEATH)]
        return answer

    def deploy(self, version: str) -> Answer:
        """Another version of the script."""
        app = self.base / "job.py"
        app.write_text(COUNTS.replace("VERSION", version))
        return self.ask("deploy", "--app", str(app), "--master", "local[2]", *QUICK, script=("--", str(self.base)))

    def died_at(self, act: str, part: str) -> bool:
        """Whether a controller died just before it did this."""
        return any(death.startswith(act) and part in death for death in self.deaths)

    def committed(self, deployment_id: str) -> list[int]:
        """The batches that the deployment has committed."""
        folder = self.desk.home / layout.checkpoint_folder("orders", deployment_id, "counts") / "commits"
        return sorted(int(path.name) for path in folder.glob("[0-9]*"))

    def wait_read(self, deployment_id: str) -> None:
        """Wait until every closed window is written: all input was read."""
        expected = len(self.rows.expected()) - 2
        wait_until(lambda: len(self.rows.found()) >= expected, f"the output of {deployment_id}", 120)

    def drivers(self) -> list[tuple[str, int]]:
        """Every driver that claimed an attempt, by the events."""
        deployments = [path.name for path in sorted((self.desk.home / "orders" / "deployments").iterdir())]
        found = [entry.event for each in deployments for entry in self.control.journal(each).events()]
        return [(event.deployment_id, event.attempt) for event in found if isinstance(event, Claimed)]


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Life]:
    """A stream without a deployment, two files of input, and no driver left afterwards."""
    for name in [name for name in os.environ if name.startswith(("PYSPARK_", "SPARK_", "STREAMSTATE_"))]:
        monkeypatch.delenv(name)
    made = Life(tmp_path)
    monkeypatch.setenv("STREAMSTATE_HOME", str(made.desk.home))
    made.rows.feed()
    made.rows.feed()
    yield made
    made.desk.end_drivers()


@pytest.mark.named
def test_controllers_that_die_at_every_stage_do_everything_once(life: Life) -> None:
    """Deploy, snapshot, stop, redeploy, drain, redeploy, and taking over from a driver that died between its sink and
    its commit: one driver per deployment, one snapshot per order, and each row comes out once (Laws 1, 2, 3; 1a.6)."""
    first = life.deploy("one").json
    assert (first["deployment_id"], first["attempt"], first["start"]["mode"]) == ("d-0001", 1, "fresh")
    for act, part in (
        ("os.link", "/idempotency/"), ("os.link", "/stream.json"), ("os.link", "/d-0001/spec.json"),
        ("os.rename", "/stream.json"), ("os.link", "/intent.json"), ("subprocess.Popen", ""),
    ):  # fmt: skip
        assert life.died_at(act, part), (act, part, life.deaths)

    kept = life.ask("snapshot create").json
    assert kept["kind"] == "live"
    assert life.died_at("os.link", "/commands/")
    life.rows.feed()
    stopped = life.ask("stop").json
    assert stopped["state"] == "stopped"
    assert life.died_at("os.link", "/commands/")

    second = life.deploy("two").json
    assert (second["deployment_id"], second["start"]["snapshot_id"]) == ("d-0002", stopped["snapshot_id"])
    life.rows.feed()
    life.wait_read("d-0002")
    drained = life.ask("drain").json
    assert (drained["state"], drained["queries"]["counts"]["state_rows_left"]) == ("drained", 0)
    assert life.rows.found() == life.rows.expected()

    third = life.deploy("three").json
    assert (third["start"]["mode"], third["start"]["snapshot_id"]) == ("seed", drained["snapshot_id"])
    batch_id = life.committed("d-0003")[-1] + 1
    life.gate.hold("rename", f"/commits/{batch_id}")
    life.rows.feed()
    wait_until(lambda: life.gate.is_reached, "a batch between sink and commit", 90)
    life.desk.end_drivers()
    life.gate.open()

    fourth = life.deploy("four").json
    assert (fourth["deployment_id"], fourth["start"]["mode"]) == ("d-0004", "restore")
    assert life.died_at("os.link", "/offsets/")  # a fence, and the links of the snapshot
    assert life.died_at("os.link", "/manifest.json")
    started = [entry.event for entry in life.control.journal("d-0004").events()]
    assert [event.planned_batch_id for event in started if isinstance(event, QueryStarted)] == [batch_id]
    life.rows.feed()
    life.wait_read("d-0004")
    assert life.ask("drain").json["state"] == "drained"
    assert life.rows.found() == life.rows.expected()
    assert life.drivers() == [(f"d-{number:04d}", 1) for number in (1, 2, 3, 4)]
    assert (life.base / "starts").read_text().split() == ["one", "two", "three", "four"]
    kinds = Counter(manifest.parent.name[7:-7] for manifest in life.desk.home.glob("orders/snapshots/*/manifest.json"))
    assert kinds == {"live": 1, "stopped": 2, "pre-drain": 2, "drained": 2}
