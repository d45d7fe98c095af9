"""State rewritten for a job on Spark 4.0, by a Spark 4.2 beside its driver, against the same in a driver of Spark 4.2.

Each driver rewrites the state twice, as one does that rehearses and is then handed the stream: what is compared is the
second time, with the other Spark warm. The empty batch that lays the new schema down is in it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median

import airflow_streamstate
from benchmarks import sparks
from benchmarks.jobs_at_work import BareRun
from benchmarks.pairs import Way, measure_pairs
from benchmarks.rescale import KEYS, MEMORY, PAIRS, QUICK_KEYS, SCRIPT, WAIT_SECONDS
from benchmarks.results import Number, Result
from benchmarks.session import Session

NAME = "rewrite-for-older"
OLDER, REWRITER = "4.0.5", "4.2.0"
GOAL = 1.1


def run(session: Session) -> list[Result]:
    """Measure pairs; raises as ``sparks.path_of``."""
    bench = _Bench(session)
    bench.make_state()
    ours = Way(f"rewritten for Spark {OLDER} by Spark {REWRITER} beside it", bench.alongside_seconds)
    inside = Way(f"in a driver of Spark {REWRITER}", bench.inside_seconds)
    result = measure_pairs(session, NAME, ours, inside, GOAL, most=PAIRS)
    numbers = ({**each, **cold} for each, cold in zip(result.rounds, bench.cold_rounds(), strict=True))
    return [replace(result, rounds=tuple(numbers), notes=(*result.notes, bench.told()))]


class _Bench:
    def __init__(self, session: Session) -> None:
        self._keys = QUICK_KEYS if session.quick else KEYS
        self._place = session.folder / NAME
        # The job's Python may be another one than ours: of ours it gets nothing but this package.
        package = Path(airflow_streamstate.__file__).parent
        self._path = self._place / "package"
        self._path.mkdir(parents=True)
        (self._path / package.name).symlink_to(package)
        self._state_bytes = 0
        self._first: dict[str, list[float]] = {"seconds": [], "against_seconds": []}

    def make_state(self) -> None:
        """By the older Spark."""
        self._ended(OLDER, "make")

    def alongside_seconds(self, number: int) -> float:
        """By the older Spark, which has another one do it."""
        rewriter = ("--rewriter", sparks.path_of(REWRITER))
        return self._second("seconds", OLDER, f"alongside-{number}", *rewriter)

    def inside_seconds(self, number: int) -> float:
        """By a Spark that can."""
        return self._second("against_seconds", REWRITER, f"inside-{number}")

    def cold_rounds(self) -> list[dict[str, Number]]:
        """The first time of each driver, by round."""
        both = zip(self._first["seconds"], self._first["against_seconds"], strict=True)
        return [{"cold_seconds": one, "cold_against_seconds": other} for one, other in both]

    def told(self) -> str:
        """The note."""
        first = [median(self._first[side]) for side in ("seconds", "against_seconds")]
        return (
            f"{self._keys:,} keys, {self._state_bytes / 1e9:.2f} GB of RocksDB files; the first time in each driver,"
            f" with the start of the other Spark, {first[0]:.1f} s and {first[1]:.1f} s"
        )

    def _second(self, side: str, version: str, name: str, *words: str) -> float:
        [found] = self._ended(version, name, "--twice", *words)
        self._first[side].append(found["cold_seconds"])
        return found["seconds"]

    def _ended(self, version: str, name: str, *words: str) -> list[dict[str, float]]:
        seconds_path = self._place / f"{name}.json"
        arguments = (
            *("--folder", str(self._place / "state"), "--keys", str(self._keys)),
            *("--seconds-to", str(seconds_path), *words),
        )
        environment = {**sparks.environment_of(version), "PYTHONPATH": str(self._path)}
        log_path = self._place / f"{name}.log"
        with BareRun(SCRIPT, arguments, log_path, MEMORY, environment=environment) as bare:
            bare.wait_finished(WAIT_SECONDS)
        found = json.loads(seconds_path.read_text(encoding="utf-8"))
        self._state_bytes = found["state_bytes"]
        rounds: list[dict[str, float]] = found["rounds"]
        return rounds
