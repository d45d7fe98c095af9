"""The lives on each Spark, and from one Spark to another: planned, run and recorded.

Two plans: ``quick`` has one cell for each Spark, and every cell on the one that the other tiers run on; ``full`` has
all of it. What was lived is one JSON object, which ``docs/reference/compatibility.md`` is made of.
"""

from __future__ import annotations

import datetime
import io
import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import airflow_streamstate
from airflow_streamstate.checkpoint import guards
from airflow_streamstate.checkpoint.guards import OFFSET_LOG_2_SINCE, line_of, why_not
from airflow_streamstate.launch.driver_zip import driver_zip_bytes
from support import spark_lab
from support.real_queries import PROVIDERS
from support.sparks import IN_FULL, VERSIONS, spark_of

LISTS_SINCE = (4, 2)
Do = Literal["live", "take"]
How = Literal["", "restore", "seed", "rescale"]
PROCESS_SECONDS = 3_600
CELLS: dict[str, dict[str, Any]] = {
    "rocksdb": {},
    "hdfs": {"provider": "hdfs"},
    "rocksdb, changelog": {"changelog": True},
    "rocksdb, format 2": {"state_format": 2},
    "rocksdb, format 2, changelog": {"state_format": 2, "changelog": True},
    "rocksdb, offset log 2": {"offset_log": 2},
    "rocksdb, maps and clocks": {"story": "clocks"},
    "rocksdb, shared": {"story": "shared"},
    "hdfs, shared": {"provider": "hdfs", "story": "shared"},
    "rocksdb, joins": {"story": "joins"},
    "hdfs, joins": {"provider": "hdfs", "story": "joins"},
    "rocksdb, kept": {"story": "kept"},
    "hdfs, kept": {"provider": "hdfs", "story": "kept"},
    "rocksdb, older lists": {"lists": 1},
    "rocksdb, older lists, maps and clocks": {"lists": 1, "story": "clocks"},
    "rocksdb, older lists, shared": {"lists": 1, "story": "shared"},
    "rocksdb, older lists, joins": {"lists": 1, "story": "joins"},
    "rocksdb, older lists, kept": {"lists": 1, "story": "kept"},
}
"""How each is written, as ``spark_lab.Cell`` has it."""
OLDER_LISTS = tuple(name for name, order in CELLS.items() if order.get("lists") == 1)
"""Cells that show what goes back from Spark 4.2 and newer, which write them only where an older Spark has begun."""
SHARED = tuple(
    name
    for name, order in CELLS.items()
    if order.get("story") in ("shared", "joins", "kept") and name not in OLDER_LISTS
)
"""Cells of operators that every Spark has; the others have transformWithState, which came with Spark 4, or want it."""
RESCALED = ("rocksdb", "rocksdb, maps and clocks", *SHARED)
OTHERS = tuple(version for version in VERSIONS if version != IN_FULL)


@dataclass(frozen=True)
class Life:
    """One order to a lab, and what it shows.

    Attributes:
        do: ``live`` a whole life there, whose ends are left for others; ``take`` up one of them.
        cell: in which formats, a key of ``CELLS``.
        of: of ``take``: the Spark that left it.
        how: of ``take``; ``rescale``: with the state rewritten in RocksDB and in more partitions, by another Spark
            where this one cannot.
    """

    spark: str
    do: Do
    cell: str
    of: str = ""
    how: How = ""

    @property
    def name(self) -> str:
        """Human-readable, and for test ids."""
        return " ".join(word for word in (self.spark, self.do, self.how, self.of, f"({self.cell})") if word)


def store_of(cell: str) -> str:
    """The state store of a cell, as ``guards.pinned_store`` names it."""
    order = CELLS[cell]
    return guards.OLDER_LISTS if cell in OLDER_LISTS else PROVIDERS[order.get("provider", "rocksdb")]


def is_refused(life: Life) -> bool:
    """Whether this way is one that must be refused."""
    cell = CELLS[life.cell]
    provider = store_of(life.cell)
    offset_log = f"v{cell.get('offset_log', 1)}"
    return life.how in ("restore", "rescale") and why_not(life.of, life.spark, provider, offset_log) is not None


def expected(life: Life) -> tuple[str, ...]:
    """What may come of it.

    Spark 4.0 that has replayed changelogs counts timers as rows which stay: a drain then counts what is not there,
    and a seed on top of it is refused.
    """
    if is_refused(life):
        return ("refused",)
    writer = life.of or life.spark
    miscounts = writer.startswith("4.0.") and CELLS[life.cell].get("changelog") and life.how != "restore"
    return ("exact", "refused") if miscounts else ("exact",)


def is_there(life: Life) -> bool:
    """Whether the Spark that writes knows the formats of this cell; nothing is seeded where no drain empties."""
    lines = [line for version in filter(None, (life.of, life.spark)) if (line := line_of(version)) is not None]
    if life.cell not in SHARED and min(lines) < (4, 0):
        return False
    if life.cell in OLDER_LISTS and (lines[0] < LISTS_SINCE or (life.do == "take" and lines[-1] >= LISTS_SINCE)):
        return False
    if life.how == "seed" and not spark_lab.Cell(**CELLS[life.cell]).drains:
        return False
    return CELLS[life.cell].get("offset_log", 1) == 1 or lines[0] >= OFFSET_LOG_2_SINCE


def quick() -> list[Life]:
    """One cell for each Spark, all of them on one, and a way from each to the next."""
    lives = [Life(IN_FULL, "live", cell) for cell in CELLS]
    lives += [Life(version, "live", "rocksdb") for version in OTHERS if version != "4.2.1"]
    for before, after in (("4.0.5", "4.1.4"), ("4.1.4", IN_FULL), (IN_FULL, "4.3.0")):
        lives.append(Life(after, "take", "rocksdb", before, "restore"))
    rewritten = (("3.5.9", "3.5.9"), (IN_FULL, "3.5.9"), ("4.0.5", "4.0.5"), ("4.1.4", "4.1.4"))
    for cell in SHARED:
        lives.append(Life("3.5.9", "live", cell))
        lives += [
            Life(*way)
            for way in ((IN_FULL, "take", cell, "3.5.9", "restore"), ("3.5.9", "take", cell, IN_FULL, "restore"))
        ]
        ways = rewritten if CELLS[cell]["story"] == "shared" else rewritten[:1]
        lives += [Life(spark, "take", cell, of, "rescale") for spark, of in ways]
    lives += [Life("4.1.4", "take", "rocksdb", "4.1.4", "rescale")]
    lives += [Life("4.1.4", "take", "rocksdb, older lists", IN_FULL, "restore")]
    return _in_order(lives)


def full() -> list[Life]:
    """Every cell on every Spark, and from each to each, backwards too."""
    lives = [Life(version, "live", cell) for version in VERSIONS for cell in CELLS]
    ways: tuple[How, ...] = ("restore", "seed")
    for after in VERSIONS:
        lives += [
            Life(after, "take", cell, before, how)
            for before in VERSIONS
            if before != after
            for cell in CELLS
            for how in ways
            if how == "restore" or cell not in OLDER_LISTS
        ]
        if after < IN_FULL:
            lives += [Life(after, "take", cell, after, "rescale") for cell in RESCALED]
    lives += [Life(IN_FULL, "take", cell, "3.5.9", "rescale") for cell in SHARED]
    return _in_order(lives)


def _in_order(lives: Iterable[Life]) -> list[Life]:
    """Everything that there is, and everything is lived before anything of it is taken up."""
    return sorted(
        dict.fromkeys(filter(is_there, lives)), key=lambda life: (life.do == "take", VERSIONS.index(life.spark))
    )


@dataclass
class Matrix:
    """Lives, lived."""

    folder: Path
    results: dict[Life, dict[str, Any]] = field(default_factory=dict)

    def run(self, lives: Iterable[Life]) -> None:
        """Live them; those that follow each other on one Spark share its process."""
        package = self.folder / "package"
        if not package.exists():
            # Alongside the Spark's own environment, not instead of it: ours has another pyspark. The zip brings the
            # metadata, by which connectors are found; the rest is what launches, which the tests' own support wants.
            zipfile.ZipFile(io.BytesIO(driver_zip_bytes())).extractall(package)
            ours = Path(airflow_streamstate.__file__).parent
            shutil.copytree(ours, package / "airflow_streamstate", dirs_exist_ok=True)
        batch: list[Life] = []
        for life in [*_in_order(lives), None]:
            if batch and (life is None or (life.spark, life.do == "take") != (batch[0].spark, batch[0].do == "take")):
                self._run_process(batch, package)
                batch = []
            if life is not None:
                batch.append(life)

    def _run_process(self, lives: list[Life], package: Path) -> None:
        spark = spark_of(lives[0].spark)
        work = self.folder / f"{spark.version}-{len(self.results)}"
        work.mkdir()
        orders = [
            {"do": life.do, "cell": CELLS[life.cell], "place": str(self._place(life)), **_words(life)} for life in lives
        ]
        path, lines = work / "orders.json", work / "results.jsonl"
        path.write_text(json.dumps({"orders": orders, "results": str(lines)}))
        strays = ("PYTHON", "SPARK_", "PYSPARK_")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(strays)}
        tests = Path(__file__).parents[1]
        with (work / "log").open("w") as log:
            done = subprocess.run(
                [str(spark.python), "-m", "support.spark_lab", str(path)],
                env={
                    **environ,
                    **spark.environment,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYTHONPATH": f"{package}:{tests}",
                    "PYTHONDONTWRITEBYTECODE": "1",
                },
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=PROCESS_SECONDS,
                check=False,
            )
        said = (work / "log").read_text(errors="replace")[-3000:]
        found = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
        for index, life in enumerate(lives):
            lost = {"outcome": "failed", "error": f"its process ended with {done.returncode}: {said}"}
            self.results[life] = found[index] if index < len(found) else lost

    def _place(self, life: Life) -> Path:
        place = self.folder / "places" / life.cell.replace(", ", "-").replace(" ", "-")
        place.mkdir(parents=True, exist_ok=True)
        return place


def _words(life: Life) -> Mapping[str, str]:
    if life.do != "take":
        return {}
    rewriter = {"rewriter": str(spark_of(IN_FULL).python.parents[1])} if life.how == "rescale" else {}
    return {"of": life.of, "how": life.how, **rewriter}


def cells() -> dict[str, dict[str, Any]]:
    """What is in each cell, as the results have it."""
    found = {}
    for name, order in CELLS.items():
        cell = spark_lab.Cell(**order)
        since = next(version for version in VERSIONS if is_there(Life(version, "live", name)))
        found[name] = {"store": cell.store, "since": since, "settings": cell.same, "states": list(cell.states)}
    return found


def keep(path: Path, results: Mapping[Life, Mapping[str, Any]]) -> None:
    """Add what was lived to the results of a file; what was lived before and not again stays, with its date."""
    known = json.loads(path.read_text())["lives"] if path.exists() else []
    lives = {tuple(life[name] for name in ("spark", "do", "cell", "of", "how")): life for life in known}
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()  # noqa: TID251 - the day of a run
    for life, result in results.items():
        facts = asdict(life)
        outcome = result["outcome"]
        error = {"error": str(result.get("error", "")).splitlines()[0][:300]} if outcome == "failed" else {}
        lives[tuple(facts.values())] = {**facts, "outcome": outcome, "on": today, **error}
    whole = {"cells": cells(), "lives": [lives[key] for key in sorted(lives)]}
    path.write_text(json.dumps(whole, indent=1) + "\n")
