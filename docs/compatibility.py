"""Write ``docs/reference/compatibility.md`` from what was run: ``python docs/compatibility.py``.

It also writes the moves that ``streamstate plan`` knows, ``airflow_streamstate/plan/spark_moves.json``. A test fails
when one of them is stale.

The results are ``docs/compatibility.json``. ``tox -e tests -- --tier named tests/compat`` adds to it where
``STREAMSTATE_COMPAT_RESULTS`` names it. A cell that was not run says so.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from airflow_streamstate.checkpoint.guards import Line, line_of
from airflow_streamstate.launch.submit_options import KNOWN_BAD
from airflow_streamstate.plan.comparison import (
    KINDS,
    MOVED_STREAMS,
    STORES,
    Moved,
    State,
    as_text,
    fate_of,
    moved_streams,
    state_words,
)

DOCS = Path(__file__).resolve().parent
MOVES_FILE = DOCS.parent / "airflow_streamstate" / "plan" / MOVED_STREAMS
SPARKS = ("3.5.9", "4.0.5", "4.1.4", "4.2.0", "4.2.1", "4.3.0")
LINES = tuple(dict.fromkeys(line for line in map(line_of, SPARKS) if line is not None))
JOINS = " joins"
NOT_THERE = "absent"
NOT_RUN = "not run"
Lives = dict[tuple[str, str, str, str, str], dict[str, Any]]
Move = tuple[Line, Line]
Item = TypeVar("Item")
Kind = TypeVar("Kind", bound=Hashable)

HEAD = """\
# Versions of Spark and Airflow

<!-- written by docs/compatibility.py from docs/compatibility.json; edit those -->

A driver runs on the Spark that `--spark`, `SPARK_HOME` or an Airflow Spark connection names; this package need not be
installed there.

- *exact*: from fresh start to seed (kept: restore) each row came out once, each timer fired once;
- *refused*: before anything is changed;
- *absent*: this Spark does not have it; *not run*: not tried;
- *older lists*: in RocksDB, of a stream that Spark 4.1 or older started.
"""
MOVES = """\
## Moves between versions

`streamstate plan --spark` names the row of each query.
"""
AIRFLOWS = (
    (
        "3.1.8",
        "5.0.1",
        "tests of operators, sensors, hooks, triggers, provider (`tox -e airflow31`)",
        "November 2026",
    ),
    ("3.2.2", "6.0.2", "the same (`tox -e airflow32`)", "2026-11-27"),
    (
        "3.3.2",
        "6.3.4",
        "tests of all tiers, with all components; metadata in SQLite and PostgreSQL 16",
        "with each change",
    ),
    ("3.4.0b2", "6.3.4", "as on 3.2.2 (`tox -e airflow34`)", "2026-11-27"),
)
"""Airflow, its apache-spark provider, what ran, and when last."""
TAIL = """\
## What is refused, and when

- What the table refuses: by `deploy` while the old version still runs, and by the driver at `start()`. What was
  *not run*, changelogs and state checkpoint format 2 go with the other states of their store. State of a batch that was
  written and not committed counts. A drained stream is seeded on any Spark.
- Offset log 2 on Spark 4.0 or 4.1; a seed writes offset log 1.
- At `start()`: state checkpoint format 2 with the HDFS-backed store, other state stores;
  named sinks (`spark.sql.streaming.queryEvolution.enableSinkEvolution`); a source without a name that occurs twice in a
  plan (`rows.union(rows)`), in offset log 2: create two readers.

## Offset log 2 and named sources

Spark 4.2 and newer write offset log 2 if `spark.sql.streaming.offsetLog.formatVersion` is 2. A checkpoint keeps its
log; a seed uses the current setting.

Names (`.name("orders")`, with `spark.sql.streaming.queryEvolution.enableSourceEvolution`) need offset log 2.

- **A seed**: a new source starts where its options say, a removed one stays at its offset; both are reported. The
  others keep their positions in any order, also under another name if a [connector](../how-to/connectors.md) knows the
  source. Another source under a known name is refused.
- **A restore**: the names stay, or it is refused. Without state the order of the sources may change.

## Settings that Spark does not keep

Spark pins the formats of state in the offset log. It does not pin changelog checkpointing, nor the state checkpoint
format: another one is refused at `start()`; a drained stream is seeded in any.
"""


BAD = """\
## Releases that are known to fail

`streamstate home doctor` looks for these in this machine's Spark, its `spark-defaults.conf`, and the current
deployments of the home; `streamstate plan` names them in `notes`.
"""
NEVER_HAD = ("chains of operators", "an initial state of transformWithState")
REWRITTEN = "State rewritten by Spark 4.2.0 (`--rewriter-spark`) into RocksDB, three partitions:"


def page(results: dict[str, Any]) -> str:
    """The page that these results make."""
    lives = _lives(results)
    cells = results["cells"]
    others = [cell for cell, facts in cells.items() if facts["store"] not in STORES]
    moves = [MOVES, *_by_state(moved_streams(moved(results))), *_other_formats(lives, others), *_seeds(lives, cells)]
    moves += _rewritten(lives, cells)
    return "\n".join([HEAD, *_own(lives, cells), "", *moves, *_known_bad(), "", *_airflows(), "", TAIL])


def moved(results: dict[str, Any]) -> list[dict[str, Any]]:
    """The streams and their moves by lines of Spark, as the package has them."""
    lives = _lives(results)
    return [
        {
            "store": facts["store"],
            "settings": facts["settings"],
            "states": facts["states"],
            "exact": [_named(move) for move, outcome in _moves(lives, cell, "restore").items() if outcome == "exact"],
        }
        for cell, facts in results["cells"].items()
    ]


def packed(results: dict[str, Any]) -> str:
    """The same as the text of a file, a stream a line."""
    return "[\n" + ",\n".join(f" {json.dumps(one)}" for one in moved(results)) + "\n]\n"


def _lives(results: dict[str, Any]) -> Lives:
    return {
        tuple(life[name] for name in ("spark", "do", "cell", "of", "how")): life  # type: ignore[misc]
        for life in results["lives"]
    }


def _moves(lives: Lives, cell: str, how: str) -> dict[Move, str]:
    """What came of the moves of a cell between lines: one outcome, or all that releases of a line had."""
    found: dict[Move, set[str]] = defaultdict(set)
    for (after, _, name, before, way), life in lives.items():
        move = line_of(before), line_of(after)
        if (name, way) == (cell, how) and None not in move and move[0] != move[1]:
            found[move].add(life["outcome"])  # type: ignore[index]
    return {move: ", ".join(sorted(found[move])) for move in sorted(found)}


def _named(move: Move) -> str:
    return " to ".join(map(as_text, move))


def _grouped(pairs: Iterable[tuple[Kind, Item]]) -> dict[Kind, list[Item]]:
    found: dict[Kind, list[Item]] = {}
    for kind, item in pairs:
        found.setdefault(kind, []).append(item)
    return found


def _ways(moves: Iterable[Move]) -> str:
    """Moves as text, those to the same lines together: ``4.2, 4.3 to 4.0, 4.1``."""
    targets = _grouped(sorted(moves))
    whole = _grouped((tuple(targets[before]), before) for before in targets)
    return "; ".join(f"{_listed(before)} to {_listed(after)}" for after, before in whole.items())


def _listed(lines: Iterable[Line]) -> str:
    found = sorted(set(lines))
    places = [LINES.index(line) for line in found]
    if len(found) > 2 and places[-1] - places[0] == len(found) - 1:
        return f"{as_text(found[0])}-{as_text(found[-1])}"
    return ", ".join(map(as_text, found))


def _own(lives: Lives, cells: dict[str, Any]) -> list[str]:
    days = sorted(life["on"] for (_, do, *_), life in lives.items() if do == "live")
    when = f"Run from {days[0]} to {days[-1]}." if days else "Not run."
    lines = ["## On each Spark", "", when, "", *_head(["stream", *SPARKS])]
    alike = _grouped(
        (tuple(_outcome(lives, (spark, "live", cell, "", ""), facts["since"]) for spark in SPARKS), cell)
        for cell, facts in cells.items()
    )
    lines += [_row([_streams(names), *outcomes]) for outcomes, names in alike.items()]
    cells = {cell: facts for cell, facts in cells.items() if not cell.startswith(OLDER)}  # they have the same queries
    states = dict.fromkeys(state for facts in cells.values() for state in facts["states"])
    alike_states = _grouped(
        (tuple(cell for cell in cells if state in cells[cell]["states"]), state) for state in states
    )
    lines += ["", "Queries of the streams:", ""]
    return lines + [
        f"- {_states(map(str.split, found))}: {_most(names, cells)}." for names, found in alike_states.items()
    ]


def _most(names: Collection[str], cells: Iterable[str]) -> str:
    """The names of streams; by those that are left out where that is shorter."""
    left = [cell for cell in cells if cell not in names]
    return min(_streams(names), f"all but {_streams(left)}", key=len)


OLDER = "rocksdb, older lists"


def _streams(names: Collection[str]) -> str:
    """Names of streams; what is there in each store is named once, and so are older lists where all have them."""
    older = [name for name in names if name.startswith(OLDER)]
    if len(older) > 1:
        names = [*(name for name in names if name not in older), f"{OLDER} of all streams"]
    stories = {name: name.partition(", ")[2] for name in names}
    both = [
        story
        for story in dict.fromkeys(stories.values())
        if story and {f"{one}, {story}" for one in STORES} <= {*names}
    ]
    listed = [name for name, story in stories.items() if story not in both]
    return "; ".join([*listed, *([f"{', '.join(both)} in both stores"] if both else [])])


def _states(states: Iterable[Iterable[str]]) -> str:
    words = [state_words(tuple(state)) for state in states]
    joins = [each.removesuffix(JOINS) for each in words if each.endswith(JOINS)]
    others = [each for each in words if not each.endswith(JOINS)]
    return "; ".join([*others, *([", ".join(joins) + JOINS] if joins else [])])


def _by_state(streams: list[Moved]) -> list[str]:
    """The table: a row for each store and its states with the same outcomes, a column for moves with the same."""
    states = dict.fromkeys(state for one in streams for state in one.states)
    rows = [
        (one, state)
        for one in STORES
        for state in states
        if any(state in stream.states for stream in streams if stream.store == one)
    ]
    notes: dict[str, int] = {}
    every = [(before, now) for before in LINES for now in LINES if before != now]
    by_move = {move: tuple(_cell(state, store, move, streams, notes) for store, state in rows) for move in every}
    columns = _grouped((outcomes, move) for move, outcomes in by_move.items())
    lines = _head(["state", *(_ways(moves) for moves in columns.values())])
    alike = _grouped(
        ((store, tuple(column[number] for column in columns)), state) for number, (store, state) in enumerate(rows)
    )
    lines += [_row([f"{store}: {_states(found)}", *outcomes]) for (store, outcomes), found in alike.items()]
    lines += ["", *(f"{number}. {note}." for note, number in notes.items())]
    had = {state[0] for state in states}
    missing = [words for kind, words in KINDS.items() if kind not in had]
    return [*lines, "", f"No stream has {', '.join((*missing, *NEVER_HAD))}.", ""]


def _cell(state: State, store: str, move: Move, streams: list[Moved], notes: dict[str, int]) -> str:
    fate, why = fate_of(state, store, *move, streams)
    numbers = sorted(notes.setdefault(note[0].upper() + note[1:], len(notes) + 1) for note in map(_as_code, why))
    if not numbers:
        return {"exact": "exact", "refused": "refused", "not tried": NOT_RUN, "not there": NOT_THERE}[fate]
    return f"{fate} ({', '.join(map(str, numbers))})"


def _as_code(note: str) -> str:
    return f"`{note}`" if "=" in note else note


def _seeds(lives: Lives, cells: dict[str, Any]) -> list[str]:
    return ["After a drain:", "", *_lists(lives, cells, "seed"), ""]


def _other_formats(lives: Lives, cells: list[str]) -> list[str]:
    return ["In other formats:", "", *_lists(lives, cells, "restore"), ""]


def _lists(lives: Lives, cells: Iterable[str], how: str) -> list[str]:
    alike: dict[str, list[str]] = {}
    for cell in cells:
        outcomes = _grouped((outcome, move) for move, outcome in _moves(lives, cell, how).items())
        if outcomes:
            words = "; ".join(f"{_ways(moves)} {outcome}" for outcome, moves in outcomes.items())
            alike.setdefault(words, []).append(cell)
    return [f"- {_streams(names)}: {words}." for words, names in alike.items()]


def _rewritten(lives: Lives, cells: dict[str, Any]) -> list[str]:
    """Lives in which the state was rewritten, on a Spark that cannot do it or on the way to one that can."""
    alike: dict[str, list[str]] = {}
    for cell in cells:
        ways = _grouped(
            (life["outcome"], before if before == after else f"{before} to {after}")
            for (after, _, name, before, how), life in sorted(lives.items(), key=lambda each: (each[0][3], each[0][0]))
            if (name, how) == (cell, "rescale")
        )
        if ways:
            words = "; ".join(f"{', '.join(found)} {outcome}" for outcome, found in ways.items())
            alike.setdefault(words, []).append(cell)
    return [REWRITTEN, "", *(f"- {_streams(names)}: {words}." for words, names in alike.items()), ""]


def _known_bad() -> list[str]:
    lines = [BAD, *_head(["component", "releases", "on Spark", "what happens", "what to do"])]
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
    head = ["## Airflow", "", *_head(["Airflow", "apache-spark provider", "what ran", "last run"])]
    rows = [_row(list(one)) for one in AIRFLOWS]
    return [*head, *rows, "", "Components of Airflow were started on 3.3.2 only."]


def _outcome(lives: Lives, key: tuple[str, str, str, str, str], since: str) -> str:
    life = lives.get(key)
    if life is not None:
        return str(life["outcome"])
    return NOT_THERE if (line_of(key[0]) or ()) < (line_of(since) or ()) else NOT_RUN


def _head(cells: list[str]) -> list[str]:
    return [_row(cells), f"|{'---|' * len(cells)}"]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    """Write the page and the package's moves; returns 0."""
    results = json.loads((DOCS / "compatibility.json").read_text(encoding="utf-8"))
    (DOCS / "reference" / "compatibility.md").write_text(page(results), encoding="utf-8")
    MOVES_FILE.write_text(packed(results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
