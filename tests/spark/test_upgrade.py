"""An upgrade and a failed one by the one verb, on real Spark under load: each row comes out once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.protocol import layout
from support.shell import Desk
from support.soaked import KEYS, SCRIPT, STREAM, Soak

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

WORDS = ("--healthy-batches", "2", "--healthy-deadline", "200", "--timeout", "400")


def is_warm(soak: Soak, deployment_id: str) -> bool:
    """Whether its first driver had waited."""
    launch = soak.control.launch(deployment_id, f"{deployment_id}-a0001")
    return launch is not None and bool(launch.rehearsal_id)


def said_by(soak: Soak, rehearsal_id: str) -> str:
    """What the driver of a rehearsal printed."""
    folder = soak.home / layout.scratch_folder(STREAM) / rehearsal_id
    return "".join(path.read_text() for path in folder.rglob("driver.log"))


@pytest.fixture
def soak(tmp_path: Path) -> Iterator[Soak]:
    """A stream under load; its drivers are ended afterwards."""
    made = Soak(tmp_path / "soak", random.Random(7))
    try:
        made.begin()
        yield made
    finally:
        Desk(made.base).end_drivers()


def version(soak: Soak, name: str, keys: str) -> Path:
    """A version of the script, which counts by these keys."""
    app = soak.base / f"{name}.py"
    app.write_text(SCRIPT.replace("VERSION", name).replace("KEYS", KEYS[keys]))
    return app


def assert_each_row_came_once(soak: Soak) -> None:
    """In the output, in the counts, and by the audit."""
    soak.end()
    assert {value: times for value, times in soak.rows().items() if times != 1} == {}
    assert soak.counted() == soak.expected()
    assert soak.shell("audit")["ok"]


def test_a_good_version_takes_over_warm(soak: Soak) -> None:
    """It proves itself in the driver that was rehearsed (Laws 2, 5, 9)."""
    answer = soak.shell("upgrade", "--app", str(version(soak, "good", "by-key")), *WORDS)
    assert (answer["outcome"], answer["mode"], answer["audit_ok"]) == ("upgraded", "restore", True)
    assert answer["verdict"] == "state-compatible"
    assert is_warm(soak, "d-0002"), answer["driver"]
    assert_each_row_came_once(soak)


@pytest.mark.named
def test_a_bad_version_is_given_up(soak: Soak) -> None:
    """It passes its rehearsal and fails on its first row; the one before continues from what it left, warm (Laws 2, 5,
    9, 14)."""
    bad = version(soak, "bad", "by-key")
    bad.write_text(bad.read_text().replace('rows.select("v"', 'rows.select((F.col("v") / F.lit(0)).alias("v")'))
    before = soak.shell("status")["application"]
    answer = soak.shell(
        "upgrade", "--app", str(bad), "--conf", "spark.sql.ansi.enabled=true", "--rehearse-batches", "0", *WORDS
    )
    assert answer["outcome"] == "given_up", answer
    assert (answer["returned_deployment_id"], answer["audit_ok"]) == ("d-0003", True)
    assert "DIVIDE_BY_ZERO" in answer["reason"]
    assert is_warm(soak, "d-0003"), answer["driver"]
    assert soak.shell("status")["application"] == before
    assert_each_row_came_once(soak)


@pytest.mark.named
def test_a_version_that_needs_a_drain_takes_over_warm_and_so_does_the_one_before(soak: Soak) -> None:
    """Spark refuses the old state; the driver that found that out tries the seed, waits for the drain, and continues. A
    rollback by hand then has the driver of the version before wait, rehearsed on the drained positions, since it cannot
    read the new state either; both sinks are undone (Laws 5, 9, 11, 14)."""
    answer = soak.shell("upgrade", "--app", str(version(soak, "other", "by-digit")), "--allow-drain", *WORDS)
    assert (answer["outcome"], answer["mode"], answer["audit_ok"]) == ("upgraded", "drain", True), answer
    assert answer["driver"] == "waits"
    assert is_warm(soak, "d-0002")
    verdict = soak.control.verdict(soak.control.scratch_ids()[0])
    assert verdict is not None
    assert (verdict.queries["counts"].outcome, verdict.seeded["counts"].outcome) == ("failed", "accepted")
    said = said_by(soak, verdict.run_id)
    assert "takes over as d-0002" in said
    assert "query counts is not warmed by a batch: BatchFailedError" not in said, "it was warmed on the old state"

    answer = soak.shell("rollback", *WORDS)
    assert (answer["outcome"], answer["way"], answer["audit_ok"]) == ("rolled_back", "undo", True), answer
    assert answer["driver"] == "waits"
    assert is_warm(soak, "d-0003")
    assert_each_row_came_once(soak)
