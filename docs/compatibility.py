"""Write ``docs/reference/compatibility.md`` from what was lived: ``python docs/compatibility.py``.

A test fails when the page is stale.

The results are ``docs/compatibility.json``. ``tox -e tests -- --tier named tests/compat`` adds to it where
``STREAMSTATE_COMPAT_RESULTS`` names it. A cell that was not run says so.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from airflow_streamstate.launch.known_bad import KNOWN_BAD

DOCS = Path(__file__).resolve().parent
SPARKS = ("4.0.5", "4.1.4", "4.2.0", "4.2.1", "4.3.0")
CELLS = (
    "rocksdb",
    "hdfs",
    "rocksdb, changelog",
    "rocksdb, format 2",
    "rocksdb, format 2, changelog",
    "rocksdb, offset log 2",
    "rocksdb, maps and clocks",
)
SINCE = {"rocksdb, offset log 2": "4.2"}
"""The first line of Spark that writes what is in a cell, where that is not the first of all."""
NOT_THERE = "not there"
NOT_RUN = "not run"
Lives = dict[tuple[str, str, str, str, str], dict[str, Any]]

HEAD = """\
# Versions of Spark and Airflow

<!-- written by docs/compatibility.py from docs/compatibility.json; edit those -->

The tables say what was tried on which Spark, and between which versions of Spark a stream can move.

Each cell is one stream with four queries: windows, `dropDuplicatesWithinWatermark`, an outer stream-stream join, and
`transformWithState` with values, lists and event-time timers (RocksDB only). The row *maps and clocks* has two other
queries of `transformWithState`: maps with event-time timers, and processing-time timers with values and maps that
expire.

- *exact*: over fresh start, stop, restore, drain and seed each row came out once, removed and expired state stayed
  removed, and each timer fired once, with the right total;
- *refused*: the controller or the driver refuses it before anything is changed;
- *not there*: this Spark does not have the format; *not run*: not tried.

The date is the day of the run. A driver runs on the Spark that `SPARK_HOME` or an Airflow Spark connection names. This
package need not be installed there, and neither environment needs `pyspark-client`.
"""
MOVES = """\
## Moves between versions

A stream is stopped or drained on the Spark of the row, and deployed on the Spark of the column.
"""
AIRFLOWS = (
    (
        "3.1.8",
        "5.0.1",
        "the tests of operators, sensors, hooks, triggers and provider (`tox -e airflow31`); the example DAGs by"
        " `dag.test()`, once by hand",
        "November 2026",
    ),
    ("3.2.2", "6.0.2", "the same tests (`tox -e airflow32`)", "2026-11-27"),
    (
        "3.3.2",
        "6.3.4",
        "the tests of all tiers, with api-server, scheduler, dag-processor and triggerer; metadata in SQLite, and in"
        " PostgreSQL 16 where a killed driver of Spark is told, restarted and starts a DAG",
        "with each change",
    ),
    ("3.4.0b2", "6.3.4", "the same tests as on 3.2.2 (`tox -e airflow34`)", "2026-11-27"),
)
"""Airflow, its apache-spark provider, what ran, and when last."""
TAIL = """\
## What is refused, and when

- A deploy on an older line of Spark than the one that wrote the state, unless every restore of that way in the tables
  *rocksdb* and *hdfs* above was run and *exact*: refused by `deploy` while the old version still runs, and by the
  driver at `start()` before anything is touched. Changelogs and state checkpoint format 2 go by their store, also back
  to a Spark where they were not tried. A drained stream is seeded on any Spark: positions alone are read.
  State of a batch that was written and not committed counts, too: where the sink holds the batch, it is gone on from.
- A query that keeps no state goes back, too, between the lines 4.0 to 4.3, in offset log 1: its logs alone are read.
  Gone with the state of one of the stores above, or by hand, from files to files, on 2026-11-21 (4.3 to 4.2 and to 4.1,
  4.2 to 4.1); from a newer Spark than these it is refused as state is.
- A checkpoint in offset log 2 on a Spark that does not know it (4.0, 4.1): refused in the same two places. Drained, it
  is seeded there in offset log 1.
- A seed on top of a drain by Spark 4.0 with changelog checkpointing and timers of `transformWithState`: when 4.0 has
  replayed changelogs it counts timers as rows of the state, so that a drain after a restart counts rows which are not
  there. Refused by name; `--allow-state-loss` drops nothing then.
- State checkpoint format 2 with the HDFS-backed store (no Spark 4 has it), other state stores: refused at `start()`,
  see [the limits](limits.md).

## Offset log 2 and named sources

Spark 4.2 and newer write offset log 2 where `spark.sql.streaming.offsetLog.formatVersion` is 2. A checkpoint stays in
the log that it began with, whatever is set later; a seed begins the one that is set. Spark 4.2 (4.3 does not) leaves
`spark.sql.shuffle.partitions` out of it in a query's first run: it could then not start over a batch that was planned
and not committed, and would look for state in as many partitions as the session asks for. Before each start the two
newest entries get it, with the number that the state has; an event says so. Batch 0 that was cut is run again in the
partitions that its state was laid out in.

Names (`.name("orders")`, with `spark.sql.streaming.queryEvolution.enableSourceEvolution`) want offset log 2. Spark
finds offsets by them.

- **A seed**: a source more starts where its options say, one less is left at its offset, both are told. Each
  other one keeps its position, in whatever order they stand; under another name too, where a
  [connector](../how-to/connectors.md) knows what it is. Another source under a name that is known is refused.
  Of two sources that read the same, each keeps the position of its name;
  where the names are new, the order of the plan says which is which.
- **A restore**: the names stay, or it is refused, since Spark would read anew what has another name. Without state the
  sources may stand in another order.

## Settings that are not Spark's to keep

Spark pins the formats of state in each entry of the offset log, and a stream keeps those that it began with, on every
newer Spark. It does not pin the state checkpoint format: a session that asks for another one than the checkpoint has is
refused at `start()`; a drained stream is seeded in any. Nor does it pin changelog checkpointing.

## How it is run

```bash
# One cell for each Spark, every cell on 4.2.0, a way from each to the next:
.venv/bin/tox -e tests -- --tier named tests/compat
# Everything above; hours:
STREAMSTATE_COMPAT=full .venv/bin/tox -e tests -- --tier named tests/compat
```

Each Spark is installed once from PyPI into `~/.cache/airflow-streamstate/sparks`, with a Python environment of its own.
With `STREAMSTATE_COMPAT_RESULTS=docs/compatibility.json` a run writes what it saw; `python docs/compatibility.py` makes
this page of it.
"""


BAD = """\
## Releases that are known to fail

`streamstate home doctor` looks for these among the jars of this machine's Spark, in its `spark-defaults.conf`, and in
what the current deployment of each stream brings along; `streamstate plan` names in `notes` those of the version that
it looks at.
"""


def page(results: dict[str, Any]) -> str:
    """The page that these results make."""
    lives: Lives = {
        tuple(life[name] for name in ("spark", "do", "cell", "of", "how")): life  # type: ignore[misc]
        for life in results["lives"]
    }
    moves = [MOVES, *_moves(lives, "restore"), *_moves(lives, "seed")]
    return "\n".join([HEAD, *_own(lives), "", *moves, *_known_bad(), "", *_airflows(), "", TAIL])


def _own(lives: Lives) -> list[str]:
    lines = ["## On each Spark", "", _row(["state", *SPARKS]), _row(["---"] * (len(SPARKS) + 1))]
    lines += [_row([cell, *(_said(lives, (spark, "live", cell, "", "")) for spark in SPARKS)]) for cell in CELLS]
    return lines


def _moves(lives: Lives, how: str) -> list[str]:
    lines = []
    for cell in CELLS:
        keys = [[(after, "take", cell, before, how) for after in SPARKS if after != before] for before in SPARKS]
        what = "with its state (restore)" if how == "restore" else "drained, at its positions (seed)"
        lines.append(f"**{what}: {cell}**")
        lines.append("")
        if not any(key in lives for row in keys for key in row):
            lines += [f"{NOT_RUN}, on none of them", ""]
            continue
        lines += [_row(["from \\ to", *SPARKS]), _row(["---"] * (len(SPARKS) + 1))]
        for before in SPARKS:
            said = ["" if after == before else _said(lives, (after, "take", cell, before, how)) for after in SPARKS]
            lines.append(_row([before, *said]))
        lines.append("")
    return lines


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
    return [*head, *rows, "", "No component of Airflow was started on another version than 3.3.2."]


def _said(lives: Lives, key: tuple[str, str, str, str, str]) -> str:
    life, (spark, _, cell, of, _) = lives.get(key), key
    if (of or spark) < SINCE.get(cell, ""):
        return NOT_THERE
    return NOT_RUN if life is None else f"{life['outcome']} ({life['on']})"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    """Write the page; returns 0."""
    results = json.loads((DOCS / "compatibility.json").read_text(encoding="utf-8"))
    (DOCS / "reference" / "compatibility.md").write_text(page(results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
