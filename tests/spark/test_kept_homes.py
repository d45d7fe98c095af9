"""Homes that an earlier release wrote are resumed, continued and upgraded (Laws 2, 5, 7, 9)."""

from __future__ import annotations

import random

import pytest

from support.kept_homes import unpacked
from support.shell import Desk
from support.soaked import KEYS, SCRIPT, Soak

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

WORDS = ("--healthy-batches", "2", "--healthy-deadline", "200", "--timeout", "400")


def upgrade_and_end(soak: Soak) -> None:
    """One more version under load, and the end of the stream: each row came once, in the output and in the counts."""
    app = soak.base / "v9.py"
    app.write_text(SCRIPT.replace("VERSION", "v9").replace("KEYS", KEYS["by-key"]))
    answer = soak.shell("upgrade", "--app", str(app), *WORDS)
    assert (answer["outcome"], answer["mode"], answer["audit_ok"]) == ("upgraded", "restore", True), answer
    soak.end()
    assert {value: times for value, times in soak.rows().items() if times != 1} == {}
    assert soak.counted() == soak.expected()
    assert soak.shell("audit")["ok"]


@pytest.mark.named
def test_a_home_with_a_finished_upgrade_goes_on() -> None:
    """Its drivers were killed: resumed, upgraded and drained."""
    with unpacked("upgraded") as base:
        soak = Soak(base, random.Random(2))
        try:
            assert soak.shell("resume", "--timeout", "200")["state"] == "running"
            soak.feed_on()
            upgrade_and_end(soak)
        finally:
            Desk(base).end_drivers()


@pytest.mark.named
def test_a_home_in_the_middle_of_an_upgrade_goes_on() -> None:
    """The controller and its drivers were killed: the upgrade comes to its end, then another one is made."""
    with unpacked("half-upgraded") as base:
        soak = Soak(base, random.Random(2))
        try:
            answer = soak.shell("continue", "--timeout", "400")
            assert answer["outcome"] == "upgraded", answer
            soak.come_to_life(1)
            soak.feed_on()
            upgrade_and_end(soak)
        finally:
            Desk(base).end_drivers()
