"""Write ``docs/reference/compatibility.md`` from what was run: ``python docs/compatibility.py``.

A test fails when the page is stale.

The results are ``docs/compatibility.json``. ``tox -e tests -- --tier named tests/compat`` adds to it where
``STREAMSTATE_COMPAT_RESULTS`` names it. A cell that was not run says so.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from airflow_streamstate.launch.submit_options import KNOWN_BAD

DOCS = Path(__file__).resolve().parent
SPARKS = ("3.5.9", "4.0.5", "4.1.4", "4.2.0", "4.2.1", "4.3.0")
CELLS = (
    "rocksdb",
    "hdfs",
    "rocksdb, changelog",
    "rocksdb, format 2",
    "rocksdb, format 2, changelog",
    "rocksdb, offset log 2",
    "rocksdb, maps and clocks",
    "rocksdb, shared",
    "hdfs, shared",
)
SHARED = CELLS[-2:]
"""Cells that Spark 3.5 has, too."""
SINCE = {"rocksdb, offset log 2": "4.2"}
"""The first line of Spark that writes what is in a cell, where that is not the first of all."""
NOT_THERE = "not there"
NOT_RUN = "not run"
Lives = dict[tuple[str, str, str, str, str], dict[str, Any]]

HEAD = """\
# Versions of Spark and Airflow

<!-- written by docs/compatibility.py from docs/compatibility.json; edit those -->

What was tried on which Spark, and between which versions of Spark a stream can move. A driver runs on the Spark that
`SPARK_HOME` or an Airflow Spark connection names; this package need not be installed there.

Each cell is one stream with four queries: windows, `dropDuplicatesWithinWatermark`, an outer stream-stream join, and
`transformWithState` with values, lists and event-time timers (RocksDB only). *maps and clocks* has two other queries of
`transformWithState`: maps with event-time timers, and processing-time timers with values and maps that expire. *shared*
has six queries that Spark 3.5 knows, too: windows, sessions, `dropDuplicatesWithinWatermark`, an inner and an outer
stream-stream join, and `applyInPandasWithState` with event-time timeouts.

- *exact*: over fresh start, stop, restore, drain and seed each row came out once, and each timer fired once;
- *refused*: before anything is changed;
- *not there*: this Spark does not have the format; *not run*: not tried.
"""
MOVES = """\
## Moves between versions

A stream is stopped or drained on one Spark, and deployed on another.
"""
AIRFLOWS = (
    (
        "3.1.8",
        "5.0.1",
        "the tests of operators, sensors, hooks, triggers and provider (`tox -e airflow31`)",
        "November 2026",
    ),
    ("3.2.2", "6.0.2", "the same tests (`tox -e airflow32`)", "2026-11-27"),
    (
        "3.3.2",
        "6.3.4",
        "the tests of all tiers, with all components; metadata in SQLite and PostgreSQL 16",
        "with each change",
    ),
    ("3.4.0b2", "6.3.4", "the same tests as on 3.2.2 (`tox -e airflow34`)", "2026-11-27"),
)
"""Airflow, its apache-spark provider, what ran, and when last."""
TAIL = """\
## What is refused, and when

- A deploy on an older line of Spark than the one that wrote the state, unless every such move of *rocksdb*
  and *hdfs* (to 3.5: of *shared*) was run and *exact*: `deploy` refuses it while the old version still runs, and the
  driver at `start()`. Changelogs and state checkpoint format 2 follow their store. State of a batch that was written
  and not committed counts, too. A drained stream is seeded on any Spark.
- A checkpoint in offset log 2 on Spark 4.0 or 4.1. Drained, it is seeded there in offset log 1.
- At `start()`: state checkpoint format 2 with the HDFS-backed store, other state stores; named sources in offset log 1;
  named sinks (`spark.sql.streaming.queryEvolution.enableSinkEvolution`); a source without a name that occurs twice in a
  plan (`rows.union(rows)`), in offset log 2: create two readers.

Not tried: offset log 2 with the HDFS-backed store, changelogs or state checkpoint format 2; `transformWithState` with
an initial state, or in a chain of operators, between versions.

## Offset log 2 and named sources

Spark 4.2 and newer write offset log 2 if `spark.sql.streaming.offsetLog.formatVersion` is 2. A checkpoint keeps the log
that it started with; a seed uses the current setting.

Names (`.name("orders")`, with `spark.sql.streaming.queryEvolution.enableSourceEvolution`) need offset log 2.

- **A seed**: a new source starts where its options say, a removed one is left at its offset; both are reported. The
  others keep their positions in any order, also under another name if a [connector](../how-to/connectors.md) knows the
  source. Another source under a known name is refused.
- **A restore**: the names stay, or it is refused. Without state the order of the sources may change.

## Settings that Spark does not keep

Spark pins the formats of state in the offset log, and a stream keeps them on every newer Spark. The state checkpoint
format is not pinned: another one is refused at `start()`; a drained stream is seeded in any. Changelog checkpointing
is not pinned either.
"""


BAD = """\
## Releases that are known to fail

`streamstate home doctor` looks for these in this machine's Spark, its `spark-defaults.conf`, and the current
deployments of the home; `streamstate plan` names them in `notes`.
"""
REWRITTEN = "With the state rewritten into RocksDB and three partitions by Spark 4.2.0 (`--rewriter-spark`):"
FEWEST = 10
"""Results of a kind of move from which on all moves are named, those that were not run as such."""


def page(results: dict[str, Any]) -> str:
    """The page that these results make."""
    lives: Lives = {
        tuple(life[name] for name in ("spark", "do", "cell", "of", "how")): life  # type: ignore[misc]
        for life in results["lives"]
    }
    moves = [MOVES, *_moves(lives, "restore"), *_moves(lives, "seed"), *_rewritten(lives)]
    return "\n".join([HEAD, *_own(lives), "", *moves, *_known_bad(), "", *_airflows(), "", TAIL])


def _own(lives: Lives) -> list[str]:
    days = sorted(life["on"] for (_, do, *_), life in lives.items() if do == "live")
    when = f"Run from {days[0]} to {days[-1]}." if days else "Not run."
    lines = ["## On each Spark", "", when, "", _row(["state", *SPARKS]), _row(["---"] * (len(SPARKS) + 1))]
    lines += [_row([cell, *(_outcome(lives, (spark, "live", cell, "", "")) for spark in SPARKS)]) for cell in CELLS]
    return lines


def _moves(lives: Lives, how: str) -> list[str]:
    lines = [f"{'With its state (restore)' if how == 'restore' else 'After a drain (seed)'}:", ""]
    cells: dict[str, list[str]] = {}
    for cell in CELLS:
        keys = [(after, "take", cell, before, how) for before in SPARKS for after in SPARKS if after != before]
        keys = [key for key in keys if _outcome(lives, key) != NOT_THERE or key in lives]
        found = [key for key in keys if key in lives]
        if found:
            cells.setdefault(_listed(lives, keys if len(found) >= FEWEST else found), []).append(cell)
    return [*lines, *(f"- {'; '.join(names)}: {moves}." for moves, names in cells.items()), ""]


def _rewritten(lives: Lives) -> list[str]:
    """Lives in which the state was rewritten, on a Spark that cannot do it or on the way to one that can."""
    cells: dict[str, list[str]] = {}
    for cell in CELLS:
        keys = [(after, "take", cell, before, "rescale") for before in SPARKS for after in SPARKS]
        found = {key: lives[key]["outcome"] for key in keys if key in lives}
        ways = [
            f"{before if before == after else f'{before} to {after}'} {outcome}"
            for (after, _, _, before, _), outcome in found.items()
        ]
        if ways:
            cells.setdefault("; ".join(ways), []).append(cell)
    return [REWRITTEN, "", *(f"- {'; '.join(names)}: {ways}." for ways, names in cells.items()), ""]


def _listed(lives: Lives, keys: list[tuple[str, str, str, str, str]]) -> str:
    """The moves by outcome; the most frequent outcome of a cell that was run in full stands for all others."""
    moves: dict[str, list[str]] = {}
    for key in keys:
        after, _, _, before, _ = key
        moves.setdefault(_outcome(lives, key), []).append(f"{before} to {after}")
    most = max(moves, key=lambda outcome: len(moves[outcome]))
    if len(keys) >= FEWEST:
        moves = {**{outcome: found for outcome, found in moves.items() if outcome != most}, most: ["every other move"]}
    return "; ".join(f"{', '.join(found)} {outcome}" for outcome, found in moves.items())


def _known_bad() -> list[str]:
    lines = [BAD, _row(["component", "releases", "on Spark", "what happens", "what to do"]), _row(["---"] * 5)]
    return lines + [
        _row(
            [
                f"{known.component} (`{known.artifact}`)",
                ", ".join(known.releases),
                ", ".join(known.sparks) or "every",
                known.symptom,
                known.remedy,
            ]
        )
        for known in KNOWN_BAD
    ]


def _airflows() -> list[str]:
    head = ["## Airflow", "", _row(["Airflow", "apache-spark provider", "what ran", "last run"]), _row(["---"] * 4)]
    rows = [_row(list(one)) for one in AIRFLOWS]
    return [*head, *rows, "", "Components of Airflow were started on 3.3.2 only."]


def _outcome(lives: Lives, key: tuple[str, str, str, str, str]) -> str:
    life, (spark, _, cell, of, _) = lives.get(key), key
    if min(filter(None, (of, spark))) < ("4.0" if cell not in SHARED else "") or (of or spark) < SINCE.get(cell, ""):
        return NOT_THERE
    return NOT_RUN if life is None else str(life["outcome"])


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    """Write the page; returns 0."""
    results = json.loads((DOCS / "compatibility.json").read_text(encoding="utf-8"))
    (DOCS / "reference" / "compatibility.md").write_text(page(results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
