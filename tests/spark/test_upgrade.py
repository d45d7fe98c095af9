"""An upgrade and a failed one by the one verb, on real Spark under load: each row comes out once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.shell import Desk
from support.soaked import KEYS, SCRIPT, Soak

pytestmark = [pytest.mark.fast, pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.usefixtures("quick_jvm")]

WORDS = ("--healthy-batches", "2", "--healthy-within", "200", "--wait", "400")


def is_warm(soak: Soak, deployment_id: str) -> bool:
    """Whether its first driver had waited."""
    launch = soak.control.launch(deployment_id, f"{deployment_id}-a0001")
    return launch is not None and bool(launch.rehearsal_id)


def test_a_good_version_takes_over_warm_and_a_bad_one_is_given_up(tmp_path: Path) -> None:
    """The one proves itself in the driver that was rehearsed; the other passes its rehearsal, fails on its first row,
    and the one before goes on from what it left (Laws 2, 5, 9, 14)."""
    soak = Soak(tmp_path / "soak", random.Random(7))
    try:
        soak.begin()
        good = soak.base / "good.py"
        good.write_text(SCRIPT.replace("VERSION", "good").replace("KEYS", KEYS["by-key"]))
        answer = soak.shell("upgrade", "--app", str(good), *WORDS)
        assert (answer["outcome"], answer["mode"], answer["audit_ok"]) == ("upgraded", "restore", True)
        assert answer["verdict"] == "state-compatible"
        assert is_warm(soak, "d-0002"), answer["driver"]

        bad = soak.base / "bad.py"
        bad.write_text(good.read_text().replace('rows.select("v"', 'rows.select((F.col("v") / F.lit(0)).alias("v")'))
        answer = soak.shell("upgrade", "--app", str(bad), "--conf", "spark.sql.ansi.enabled=true", *WORDS)
        assert answer["outcome"] == "given_up", answer
        assert (answer["returned_deployment_id"], answer["audit_ok"]) == ("d-0004", True)
        assert "DIVIDE_BY_ZERO" in answer["reason"]
        assert is_warm(soak, "d-0004"), answer["driver"]
        assert soak.shell("status")["application"] == "good.py"

        soak.end()
        assert {value: times for value, times in soak.rows().items() if times != 1} == {}
        assert soak.counted() == soak.expected()
        assert soak.shell("audit")["ok"]
    finally:
        Desk(soak.base).end_drivers()


@pytest.mark.full
def test_a_version_that_needs_a_drain_takes_over_warm_and_so_does_the_one_before(tmp_path: Path) -> None:
    """Spark refuses the old state; the driver that found that out tries the seed, waits for the drain, and goes on. A
    rollback by hand then has the driver of the version before wait, rehearsed on the drained positions, since it cannot
    read the new state either; both sinks are undone (Laws 5, 9, 11, 14)."""
    soak = Soak(tmp_path / "soak", random.Random(7))
    try:
        soak.begin()
        other = soak.base / "other.py"
        other.write_text(SCRIPT.replace("VERSION", "other").replace("KEYS", KEYS["by-digit"]))
        answer = soak.shell("upgrade", "--app", str(other), "--allow-drain", *WORDS)
        assert (answer["outcome"], answer["mode"], answer["audit_ok"]) == ("upgraded", "drain", True), answer
        assert answer["driver"] == "waits"
        assert is_warm(soak, "d-0002")
        verdict = soak.control.verdict(soak.control.rehearsal_ids()[0])
        assert verdict is not None
        assert (verdict.queries["counts"].outcome, verdict.seeded["counts"].outcome) == ("failed", "accepted")

        answer = soak.shell("rollback", *WORDS)
        assert (answer["outcome"], answer["way"], answer["audit_ok"]) == ("rolled_back", "undo", True), answer
        assert answer["driver"] == "waits"
        assert is_warm(soak, "d-0003")

        soak.end()
        assert {value: times for value, times in soak.rows().items() if times != 1} == {}
        assert soak.counted() == soak.expected()
        assert soak.shell("audit")["ok"]
    finally:
        Desk(soak.base).end_drivers()
