"""A batch without end, on real Spark: ``stop --deadline`` abandons the stop, or ends the driver and keeps its end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.drivers import CONF, WINDOWED_COUNTS
from support.launches import wait_until
from support.shell import Desk, desk_with, shell
from support.window_rows import WindowRows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

QUICK = tuple(word for key, value in CONF.items() for word in ("--conf", f"{key}={value}"))
STUCK_AFTER_ITS_SINK = (
    """
import json
import os
import time
"""
    + WINDOWED_COUNTS
    + """

def keep(batch, batch_id):
    found = [row.v for row in batch.select("v").collect()]
    with open(f"{base}/raw-{batch_id}.json.new", "w") as file:
        json.dump(found, file)
    os.replace(file.name, f"{base}/raw-{batch_id}.json")
    while os.path.exists(f"{base}/stuck"):
        time.sleep(0.1)


raw = rows.writeStream.queryName("raw").foreachBatch(keep).start()
counts.writeStream.queryName("counts").format("json").start(base + "/out").awaitTermination()
"""
)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home that the environment names, the machine's own ``spark-submit``, and no driver left afterwards."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_")) as made:
        yield made


def kept_rows(base: Path) -> dict[int, Counter[int]]:
    """What the sink holds, by batch id."""
    found = {
        int(path.stem.partition("-")[2]): Counter(json.loads(path.read_text())) for path in base.glob("raw-*.json")
    }
    return dict(sorted(found.items()))


def fed_rows(base: Path) -> Counter[int]:
    """What the source holds."""
    lines = [line for path in (base / "in").glob("[0-9]*.json") for line in path.read_text().splitlines()]
    return Counter(json.loads(line)["v"] for line in lines)


def test_a_batch_that_never_ends_is_cut_and_its_rows_come_once(desk: Desk) -> None:
    """The stop cannot be withdrawn once it is obeyed, and reports that; the kill keeps the last committed batch, names
    the one that was cut, and the next version runs that one again over the same bounds (Laws 6, 9, 14; 1a.6, 1a.8)."""
    rows = WindowRows(desk.base)
    app = desk.base / "job.py"
    app.write_text(STUCK_AFTER_ITS_SINK)
    deploy = ("deploy", "orders", "--app", app, "--master", "local[2]", *QUICK, "--timeout", 200, "--json")
    rows.feed()
    assert shell(*deploy, "--", desk.base).status == 0
    wait_until(lambda: 0 in kept_rows(desk.base), "the first batch", 60)
    (desk.base / "stuck").touch()
    rows.feed()
    wait_until(lambda: 1 in kept_rows(desk.base), "the batch that sticks", 60)
    rows.feed()  # the next one's: not within the bounds of the batch that is cut

    late = shell("stop", "orders", "--deadline", 5, "--json")
    assert (late.status, late.error["type"]) == (3, "DeadlineExceededError"), late
    assert (late.error["context"]["order"], late.error["context"]["state"]) == ("stands", "stopping")

    killed = shell("stop", "orders", "--deadline", 1, "--on-deadline", "kill", "--json")
    assert killed.status == 0, killed
    assert (killed.json["outcome"], killed.json["cut_batches"]) == ("killed", {"raw": 1})
    snapshot_id = killed.json["snapshot_id"]
    assert killed.json["queries"]["raw"]["batch_id"] == 0
    again = shell("stop", "orders", "--deadline", 1, "--on-deadline", "kill", "--json").json
    assert (again["outcome"], again["snapshot_id"], again["cut_batches"]) == ("killed", snapshot_id, {"raw": 1})
    held = kept_rows(desk.base)[1]

    (desk.base / "stuck").unlink()
    deployed = shell(*deploy, "--reason", "mended", "--", desk.base)
    assert deployed.status == 0, deployed
    assert (deployed.json["deployment_id"], deployed.json["start"]["snapshot_id"]) == ("d-0002", snapshot_id)
    rows.feed()
    wait_until(lambda: sum(kept_rows(desk.base).values(), Counter()) == fed_rows(desk.base), "every row once", 120)
    assert kept_rows(desk.base)[1] == held
    closed = len(rows.expected()) - 2  # the last window is closed by the drain alone
    wait_until(lambda: len(rows.found()) >= closed, "every window that is closed", 120)
    assert shell("drain", "orders", "--timeout", 120, "--json").status == 0
    assert rows.found() == rows.expected()
    assert sum(kept_rows(desk.base).values(), Counter()) == fed_rows(desk.base)
