"""An upgrade and a failed one by the one verb, on real Spark under load: each row comes out once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.shell import Desk
from support.soaked import KEYS, SCRIPT, Soak

pytestmark = [pytest.mark.fast, pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.usefixtures("quick_jvm")]

WORDS = ("--healthy-batches", "2", "--healthy-within", "200", "--wait", "400")


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
        launch = soak.control.launch("d-0002", "d-0002-a0001")
        assert launch is not None
        assert launch.rehearsal_id, "no driver had waited"

        bad = soak.base / "bad.py"
        bad.write_text(good.read_text().replace('rows.select("v"', 'rows.select((F.col("v") / F.lit(0)).alias("v")'))
        answer = soak.shell("upgrade", "--app", str(bad), "--conf", "spark.sql.ansi.enabled=true", *WORDS)
        assert answer["outcome"] == "given_up", answer
        assert (answer["returned_deployment_id"], answer["audit_ok"]) == ("d-0004", True)
        assert "DIVIDE_BY_ZERO" in answer["reason"]
        assert soak.shell("status")["application"] == "good.py"

        soak.end()
        assert {value: times for value, times in soak.rows().items() if times != 1} == {}
        assert soak.counted() == soak.expected()
        assert soak.shell("audit")["ok"]
    finally:
        Desk(soak.base).end_drivers()
