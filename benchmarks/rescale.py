"""State rewritten, and migrated in columns, against Spark's own bare repartition of the same state; and a migration row
by row, against one that changes nothing.

In turns in one driver, as the start of a deployment does it behind the fork: the empty batch that lays the new schema
down is in it. The bare repartition has no rollback, no rehearsal, and no migration.
"""

from __future__ import annotations

import json
from statistics import median

from benchmarks.jobs_at_work import BareRun
from benchmarks.results import Goal, Number, Result, Side
from benchmarks.session import Session

NAME, MIGRATION, COLUMNS = "rescale", "migration", "migration-in-columns"
SCRIPT = "state_written_anew.py"
KEYS, QUICK_KEYS = 3_500_000, 100_000
PAIRS, QUICK_PAIRS = 3, 1
WAIT_SECONDS = 3_000.0
GOAL_RESCALE, GOAL_MIGRATION, GOAL_COLUMNS = 1.15, 2.0, 2.0
MEMORY = ("--driver-memory", "3g")


def run(session: Session) -> list[Result]:
    """Measure all."""
    keys, pairs = (QUICK_KEYS, QUICK_PAIRS) if session.quick else (KEYS, PAIRS)
    place = session.folder / NAME
    place.mkdir(parents=True)
    seconds_path = place / "seconds.json"
    arguments = ("--folder", str(place / "state"), "--keys", str(keys), "--pairs", str(pairs))
    with BareRun(SCRIPT, (*arguments, "--seconds-to", str(seconds_path)), place / "driver.log", MEMORY) as bare:
        bare.wait_finished(WAIT_SECONDS)
    found = json.loads(seconds_path.read_text(encoding="utf-8"))
    rounds: list[dict[str, float]] = [{"state_bytes": found["state_bytes"], **each} for each in found["rounds"]]
    for number, each in enumerate(rounds, 1):
        session.say(
            f"  pair {number}: {each['rescale_seconds']:.1f} s, Spark's bare repartition"
            f" {each['repartition_seconds']:.1f} s; a migration {each['migration_seconds']:.1f} s, one that changes"
            f" nothing {each['identity_seconds']:.1f} s, the same in columns {each['columns_seconds']:.1f} s"
        )
    state = f"{keys:,} keys, {rounds[0]['state_bytes'] / 1e9:.2f} GB of RocksDB files"
    numbers: tuple[dict[str, Number], ...] = tuple(dict(each) for each in rounds)
    bare_one = ("repartition", "Spark's bare repartition")
    return [
        _result(NAME, state, "rescale", bare_one, GOAL_RESCALE, rounds, numbers),
        _result(COLUMNS, state, "columns", bare_one, GOAL_COLUMNS, rounds, ()),
        _result(
            MIGRATION, state, "migration", ("identity", "a migration that changes nothing"), GOAL_MIGRATION, rounds, ()
        ),
    ]


def _result(
    name: str,
    state: str,
    what: str,
    against: tuple[str, str],
    goal: float,
    rounds: list[dict[str, float]],
    numbers: tuple[dict[str, Number], ...],
) -> Result:
    ratios = [each[f"{what}_seconds"] / each[f"{against[0]}_seconds"] for each in rounds]
    return Result(
        name=name,
        of=Side(f"{state}, rewritten", median(each[f"{what}_seconds"] for each in rounds), "s"),
        against=Side(against[1], median(each[f"{against[0]}_seconds"] for each in rounds), "s"),
        ratio=median(ratios),
        ratio_means="of that",
        goal=Goal(f"{goal} of it", median(ratios), "<=", goal, "of it"),
        rounds=numbers,
        notes=(f"rounds from {min(ratios):.2f} to {max(ratios):.2f}",),
    )
