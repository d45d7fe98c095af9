"""Which snapshots go."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from airflow_streamstate.control.registers import CLOCKS_DIFFER_SECONDS, last_use
from airflow_streamstate.controller.retention.pruning import Fate, decide_fates
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.policies import (
    KEPT_SNAPSHOTS,
    LeaseRecord,
    Pin,
    RetentionPolicy,
    RetentionRegister,
    SnapshotInProgress,
)

AT = datetime(2026, 3, 1, tzinfo=timezone.utc)
NOW = AT + timedelta(days=10)
REGISTER = RetentionRegister("orders", "w", AT, "tests")


def one(number: int) -> SnapshotManifest:
    """The n-th snapshot, taken on the n-th day."""
    taken_at = AT + timedelta(days=number)
    return SnapshotManifest(f"s-{number}", "live", "orders", "d-0001", 1, 1, taken_at, "agent", {}, "w", "")


FIVE = {f"s-{number}": one(number) for number in range(1, 6)}


def gone(policy: RetentionPolicy, register: RetentionRegister = REGISTER, **needed: str) -> list[str]:
    names = {name.replace("_", "-"): why for name, why in needed.items()}
    fates = decide_fates(FIVE, names, register, policy, NOW)
    assert all(fate.why for fate in fates.values())
    return sorted(name for name, fate in fates.items() if fate.goes)


def test_the_newest_are_kept_by_count() -> None:
    """By when they were taken."""
    assert gone(RetentionPolicy(keep=2)) == ["s-1", "s-2", "s-3"]
    assert gone(RetentionPolicy(keep=0)) == sorted(FIVE)
    assert gone(RetentionPolicy()) == []
    assert RetentionPolicy().kept_count == KEPT_SNAPSHOTS


def test_age_counts_from_the_last_use() -> None:
    """An old one that was read yesterday is young."""
    week = RetentionPolicy(older_than_seconds=7 * 86_400.0)
    assert gone(week) == ["s-1", "s-2"]
    assert gone(week, replace(REGISTER, used={"s-1": NOW - timedelta(days=1)})) == ["s-2"]


def test_count_and_age_must_both_say_so() -> None:
    """A snapshot goes only where both rules allow it."""
    assert gone(RetentionPolicy(keep=4, older_than_seconds=7 * 86_400.0)) == ["s-1"]
    assert gone(RetentionPolicy(keep=1, older_than_seconds=8.5 * 86_400.0)) == ["s-1"]


def test_what_is_held_stays() -> None:
    """Pins, leases that are not over, and what one in the making shares; each with its reason (Law 1)."""
    later, before = NOW + timedelta(seconds=1), NOW - timedelta(seconds=CLOCKS_DIFFER_SECONDS + 1)
    register = replace(
        REGISTER,
        pins={"s-1": Pin(AT, "ada")},
        leases={"a": LeaseRecord("s-2", "verify by bob", AT, later), "b": LeaseRecord("s-3", "dead", AT, before)},
        makings={"m": SnapshotInProgress("s-9", ("s-4",), 1, AT, before)},
    )
    assert gone(RetentionPolicy(keep=0), register) == ["s-3", "s-5"]
    fates = decide_fates(FIVE, {}, register, RetentionPolicy(keep=0), NOW)
    assert fates["s-1"].why == ("pinned",)
    assert "verify by bob" in fates["s-2"].why[0]


def test_each_fate_is_told_in_words_newest_first() -> None:
    """All that keeps it, or why it goes."""
    register = replace(REGISTER, pins={"s-2": Pin(AT, "ada")})
    policy = RetentionPolicy(keep=2, older_than_seconds=6 * 86_400.0)
    fates = decide_fates(FIVE, {"s-2": "the current deployment started from it"}, register, policy, NOW)
    assert list(fates.items()) == [
        ("s-5", Fate(False, ("one of the newest 2", "used 432,000 s ago, which is not longer than 518,400 s"))),
        ("s-4", Fate(False, ("one of the newest 2", "used 518,400 s ago, which is not longer than 518,400 s"))),
        ("s-3", Fate(True, ("number 3 from the newest, used 604,800 s ago; nothing needs it",))),
        ("s-2", Fate(False, ("pinned", "the current deployment started from it"))),
        ("s-1", Fate(True, ("number 5 from the newest, used 777,600 s ago; nothing needs it",))),
    ]


def test_a_snapshot_is_as_young_as_its_last_use() -> None:
    """Which is never before it was taken, whatever the clock of its reader reported."""
    register = replace(REGISTER, used={"s-1": NOW, "s-2": AT})
    assert [last_use(FIVE[name], register) for name in ("s-1", "s-2", "s-3")] == [
        NOW, AT + timedelta(days=2), AT + timedelta(days=3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "asked",
    [
        {"keep": -1},
        {"older_than_seconds": -1.0},
        {"older_than_seconds": float("nan")},
        {"older_than_seconds": float("inf")},
    ],
)
def test_what_cannot_be_asked_for_is_refused(asked: dict[str, float]) -> None:
    """In one sentence, before anything is looked at."""
    with pytest.raises(InvalidRequestError):
        RetentionPolicy(**asked)  # type: ignore[arg-type]
    assert RetentionPolicy(keep=0, older_than_seconds=0.0).kept_count == 0
    assert RetentionPolicy(older_than_seconds=0.0).kept_count == 0
