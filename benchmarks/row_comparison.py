"""The comparison of the rows of two versions by their keys, against one ``EXCEPT ALL`` of the same two frames.

Both from the same Parquet files, in turns in one driver. ``EXCEPT ALL`` reports only how many rows the old version
alone has; the comparison counts the same, the changed, and those of either side, and has samples of them.
"""

from __future__ import annotations

import json
from statistics import median

from benchmarks.jobs_at_work import BareRun
from benchmarks.results import Goal, Number, Result, Side
from benchmarks.session import Session

NAME = "row-comparison"
SCRIPT = "rows_compared.py"
ROWS, QUICK_ROWS = 10_000_000, 500_000
PAIRS, QUICK_PAIRS = 5, 2
WAIT_SECONDS = 1_800.0
GOAL_RATIO = 1.5
MEMORY = ("--driver-memory", "2g")


def run(session: Session) -> list[Result]:
    """Measure it."""
    rows, pairs = (QUICK_ROWS, QUICK_PAIRS) if session.quick else (ROWS, PAIRS)
    place = session.folder / NAME
    place.mkdir(parents=True)
    seconds_path = place / "seconds.json"
    arguments = ("--folder", str(place / "rows"), "--rows", str(rows), "--pairs", str(pairs))
    with BareRun(SCRIPT, (*arguments, "--seconds-to", str(seconds_path)), place / "driver.log", MEMORY) as bare:
        bare.wait_finished(WAIT_SECONDS)
    rounds: list[dict[str, Number]] = json.loads(seconds_path.read_text(encoding="utf-8"))
    for number, each in enumerate(rounds, 1):
        session.say(f"  pair {number}: {each['seconds']:.1f} s; EXCEPT ALL {each['except_all_seconds']:.1f} s")
    seconds, against = (median(float(each[name] or 0) for each in rounds) for name in ("seconds", "except_all_seconds"))
    ratio = median(float(each["seconds"] or 0) / float(each["except_all_seconds"] or 1) for each in rounds)
    return [
        Result(
            name=NAME,
            of=Side(f"{rows:,} rows of two versions compared", seconds, "s"),
            against=Side("one EXCEPT ALL of them", against, "s"),
            ratio=ratio,
            ratio_means="of that",
            goal=Goal(f"{GOAL_RATIO} of it", ratio, "<=", GOAL_RATIO, "of it"),
            rounds=tuple(rounds),
            notes=("one row of a hundred differs; counts and samples of changed rows are in it",),
        )
    ]
