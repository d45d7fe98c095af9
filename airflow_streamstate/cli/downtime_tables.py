"""What a person reads of downtimes: the seconds of each query, and the phases of the longest."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from airflow_streamstate.cli.tables import plain_table, shown
from airflow_streamstate.protocol.downtimes import PHASES, Downtime, downtime_by_query, worst_of

BAR_CHARACTERS = 30


def downtime_words(found: Sequence[Downtime]) -> str | None:
    """The downtime of each query, the longest first; None where none is known."""
    seconds = downtime_by_query(found)
    ordered = sorted(seconds.items(), key=lambda item: (item[1] is not None, -(item[1] or 0.0), item[0]))
    lasting = {one.query_name for one in found if one.seconds is None and not one.has_ended}

    def words(name: str, one: float | None) -> str:
        if one is not None:
            return f"{one:g} s ({name})"
        return f"{name} has no commit since" if name in lasting else f"{name} has commits since, at a time not known"

    return ", ".join(words(name, one) for name, one in ordered) or None


def waterfall(console: Console, found: Sequence[Downtime]) -> None:
    """The phases of the longest downtime, a line each; nothing where none is known."""
    worst = worst_of(found)
    if worst is not None and len(worst.marks) > 1:
        console.print(phases(worst))
        if words := state_words(worst):
            console.print(shown(words))


def state_words(one: Downtime) -> str:
    """What opening the state took; "" where that is not known. It is no phase: partitions open theirs side by side,
    while the first batch runs."""
    return "" if one.state_load_ms is None else f"opening the state: {one.state_load_ms:,} ms, all partitions together"


def phases(one: Downtime) -> Table:
    """One downtime as a table: when each moment was, counted from the last commit, and how long it was waited for."""
    table = plain_table(f"{one.query_name}: {one.from_deployment_id} to {one.to_deployment_id}", ">at s", ">took s", "")
    steps = steps_of(one)
    span = max((end for _, _, end, _ in steps), default=0.0)
    for phase, begin, end, clock in steps:
        bar = ""
        if span > 0 and end > 0:
            first, last = (round(BAR_CHARACTERS * max(one, 0.0) / span) for one in (begin, end))
            bar = " " * min(first, BAR_CHARACTERS - 1) + "━" * max(last - first, 1)
        words = f"{PHASES.get(phase, phase)} ({clock}'s clock)"
        table.add_row(shown(words), shown(f"{end:.2f}"), shown(f"{max(end - begin, 0.0):.2f}"), shown(bar))
    return table


def steps_of(one: Downtime) -> list[tuple[str, float, float, str]]:
    """Phase, when what is before it was reached, when it was, and by which clock; in seconds from the last commit.

    In the order of time, since a drain's barrier is before the last commit; the clocks of two machines may differ.
    """
    moments = sorted(one.marks, key=lambda mark: mark.at)  # stable: equal times stay in the order of the phases
    found, before = [], None
    for mark in moments:
        at = (mark.at - one.from_at).total_seconds()
        found.append((mark.phase, at if before is None else before, at, mark.clock))
        before = at
    return found
