"""Downtimes as shown to people."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from airflow_streamstate.cli.render import downtimes
from airflow_streamstate.cli.upgrade import steps_of, waterfall
from airflow_streamstate.protocol.positions import PHASES, Downtime, Mark
from support.fake_clock import FakeClock
from support.shell import printed

NOW = FakeClock().now()


def downtime(query_name: str, **after: float) -> Downtime:
    """A downtime with these moments, in seconds after the last commit."""
    marks = {phase: Mark(phase, NOW + timedelta(seconds=seconds), "driver") for phase, seconds in after.items()}
    ordered = tuple(marks[phase] for phase in PHASES if phase in marks)
    return Downtime(query_name, "d-0001", "d-0002", NOW, NOW, after.get("first_commit"), ordered)


def read(*found: Downtime) -> list[str]:
    """The lines of a terminal."""
    return [line.rstrip() for line in printed(waterfall, found, width=140).splitlines()]


def test_the_phases_of_the_longest_downtime_are_shown() -> None:
    """Each with its time, how long it was waited for, and whose clock measured it; in the order of time."""
    short = downtime("raw", last_commit=0.0, first_commit=1.0)
    drained = downtime(
        "counts", barrier_certain=-2.0, last_commit=0.0, snapshot=0.5, first_batch_run=3.5, first_commit=3.75
    )
    lines = read(short, drained)
    assert lines[0].split()[:4] == ["counts:", "d-0001", "to", "d-0002"]
    assert [line.split("(driver's clock)")[0].strip() for line in lines[1:]] == [
        PHASES[phase] for phase in ("barrier_certain", "last_commit", "snapshot", "first_batch_run", "first_commit")
    ]
    assert [line.split("clock)")[1].split()[:2] for line in lines[1:]] == [
        ["-2.00", "0.00"], ["0.00", "2.00"], ["0.50", "0.50"], ["3.50", "3.00"], ["3.75", "0.25"],
    ]  # fmt: skip
    longest = max(lines[1:], key=lambda line: line.count("━"))
    assert PHASES["first_batch_run"] in longest


def test_what_opening_the_state_took_stands_below_the_phases() -> None:
    """All partitions together: it is no phase, and of a state store that does not measure it there is no line."""
    found = downtime("counts", last_commit=0.0, first_batch_run=3.5, first_commit=3.75)
    assert read(replace(found, state_load_ms=1_250))[-1] == "opening the state: 1,250 ms, all partitions together"
    assert read(replace(found, state_load_ms=0))[-1] == "opening the state: 0 ms, all partitions together"
    assert "opening the state" not in "".join(read(found))


def test_nothing_is_drawn_of_what_is_not_known() -> None:
    """Neither without a downtime, nor of one of which only its beginning is known."""
    assert read() == []
    assert read(replace(downtime("counts", last_commit=0.0), seconds=None)) == []


def test_a_phase_of_a_newer_release_is_shown_by_its_name() -> None:
    """Phases are words on the wire, and a later release may have more (Law 7)."""
    later = Mark("aligned", NOW + timedelta(seconds=1), "driver")
    found = replace(downtime("counts", last_commit=0.0), marks=(later,), seconds=2.0)
    assert steps_of(found) == [("aligned", 1.0, 1.0, "driver")]
    known = replace(
        downtime("counts", last_commit=0.0), marks=(*downtime("counts", last_commit=0.0).marks, later), seconds=2.0
    )
    assert any(line.startswith("aligned (driver's clock)") for line in read(known))


def test_one_line_says_from_commit_to_commit_and_how_much_of_it_had_nothing_to_commit() -> None:
    """A stream without input commits nothing, and is not down for that."""
    idle = downtime("counts", barrier_certain=812.0, last_commit=0.0, first_commit=813.25)
    busy = downtime("raw", barrier_certain=-2.0, last_commit=0.0, first_commit=1.5)
    waits = replace(busy, until_at=None, seconds=None)
    rows = [one.to_json() for one in (idle, busy, waits, replace(waits, has_ended=True))]
    assert printed(downtimes, rows).splitlines() == [
        "query counts: 813.25 s from the last commit of d-0001 to the first of d-0002: "
        "1.25 s down, and 812.0 s in which it ran with nothing to commit",
        "query raw: 1.5 s from the last commit of d-0001 to the first of d-0002",
        f"query raw: no new batch yet: the last one is by d-0001, at {rows[2]['from_at']}; d-0002 has committed none",
        "query raw: downtime unknown: d-0002 has committed a batch since d-0001 ended, at an unknown time",
    ]
