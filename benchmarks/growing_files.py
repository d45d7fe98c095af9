"""Lines of files read by ``growing_files``, compared with Spark's own text source over the same bytes.

Each from an empty checkpoint to its end (``Trigger.AvailableNow``), into no sink, in turns in one driver.
"""

from __future__ import annotations

import json
from statistics import median

from benchmarks.jobs_at_work import BareRun
from benchmarks.results import Goal, Number, Result, Side
from benchmarks.session import Session

NAME = "growing-files"
SCRIPT = "lines_read.py"
BYTES, QUICK_BYTES = 1 << 30, 200 << 20
FILES = 16
PAIRS, QUICK_PAIRS = 3, 1
WAIT_SECONDS = 1_800.0
GOAL_RATIO = 0.7


def run(session: Session) -> list[Result]:
    """Measure it."""
    size, pairs = (QUICK_BYTES, QUICK_PAIRS) if session.quick else (BYTES, PAIRS)
    place = session.folder / NAME
    place.mkdir(parents=True)
    told = place / "rows.json"
    arguments = ("--folder", str(place), "--bytes", str(size), "--files", str(FILES), "--pairs", str(pairs))
    with BareRun(SCRIPT, (*arguments, "--rows-to", str(told)), place / "driver.log") as bare:
        bare.wait_finished(WAIT_SECONDS)
    rounds: list[dict[str, Number]] = json.loads(told.read_text(encoding="utf-8"))
    for number, each in enumerate(rounds, 1):
        session.say(f"  pair {number}: {each['rows_per_s']:,.0f} rows/s; text {each['text_rows_per_s']:,.0f} rows/s")
    ours, text = (median(float(each[name] or 0) for each in rounds) for name in ("rows_per_s", "text_rows_per_s"))
    ratios = [float(each["rows_per_s"] or 0) / float(each["text_rows_per_s"] or 1) for each in rounds]
    return [
        Result(
            name=NAME,
            of=Side(f"{size / (1 << 20):,.0f} MB in {FILES} files, read by growing_files", ours, "rows/s"),
            against=Side("by Spark's text source", text, "rows/s"),
            ratio=median(ratios),
            ratio_means="of its speed",
            goal=Goal(f"{GOAL_RATIO} of its speed", median(ratios), ">=", GOAL_RATIO, "of its speed"),
            rounds=tuple(rounds),
            notes=(f"pairs from {min(ratios):.2f} to {max(ratios):.2f}",),
        )
    ]
