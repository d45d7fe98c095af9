"""How soon the shell answers: verbs that start nothing, against python that imports the libraries for a command line.

In seconds of the processor of one whole process, the least of many runs: what a busy machine adds is no cost of a verb.
Both run from bytecode, as an installed package does. The home is on a disk, with one stream that has been stopped.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from airflow_streamstate.store.local import LocalStore
from benchmarks.results import BenchmarkError, Goal, Number, Result, Side
from benchmarks.session import Session

NAME = "shell"
STREAM, SNAPSHOT = "flights", "d-0001-stopped-000001"
VERBS = (
    *("--help", "upgrade --help", "plan --help", "deploy --help", "watch --help"),
    *("list", f"status {STREAM}", f"events {STREAM}", f"logs {STREAM}", f"audit {STREAM}", f"snapshot list {STREAM}"),
    *(f"policy {STREAM}", f"alerts {STREAM}", f"label {STREAM}", f"snapshot retention {STREAM}"),
    *(f"snapshot verify {STREAM} {SNAPSHOT}", f"snapshot inspect {STREAM}", f"snapshot prune {STREAM} --dry-run"),
    *(f"snapshot pin {STREAM} {SNAPSHOT}", f"snapshot unpin {STREAM} {SNAPSHOT}"),
    *("watch --once", "home sign", f"stop {STREAM}", f"kill {STREAM}"),
)
"""Not here: `home doctor`, which starts java and a python, and what reads the files of streams or a change: `validate`,
`diff`, `apply`, `export`, `plan`."""
SIGNING_KEY = "0123456789abcdef" * 4
LIBRARIES = "import click, rich.console"
SHELL = "from airflow_streamstate.cli.main import main; main()"
ROUNDS, QUICK_ROUNDS = 20, 5
GOAL = 3.0


def run(session: Session) -> list[Result]:
    """Measure it: one result for each verb."""
    from support.scripted_stream import ScriptedStream

    home = session.folder / "shell-home"
    store = LocalStore(home)
    ScriptedStream(store, store.uri, STREAM).deploy().runs().stopped()
    return [_measured(session, home, verb) for verb in VERBS]


def _measured(session: Session, home: Path, verb: str) -> Result:
    rounds: list[dict[str, Number]] = []
    environ = {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(session.folder / "bytecode"),
        "STREAMSTATE_ALLOWED": str(home / "allowed.json"),
        "STREAMSTATE_HOME": str(home),
        **({"STREAMSTATE_SIGNING_KEY": SIGNING_KEY} if verb == "home sign" else {}),
    }
    for _ in range(QUICK_ROUNDS if session.quick else ROUNDS):  # the first one writes the bytecode
        libraries = _seconds(["-c", LIBRARIES], environ)
        rounds.append({"against_seconds": libraries, "seconds": _seconds(["-c", SHELL, *verb.split()], environ)})
    answer, libraries = (min(float(each[name] or 0) for each in rounds) for name in ("seconds", "against_seconds"))
    session.say(f"  streamstate {verb}: {answer / libraries:.2f}")
    return Result(
        f"{NAME}: {verb}",
        Side(f"streamstate {verb}", answer, "s"),
        Side(LIBRARIES, libraries, "s"),
        answer / libraries,
        "of that",
        Goal(f"{GOAL:g} of it", answer / libraries, "<=", GOAL, "of it"),
        tuple(rounds),
        ("the least of all runs, of the processor's seconds",),
    )


def _seconds(arguments: list[str], environ: Mapping[str, str]) -> float:
    """Of the processor, for one process; raises BenchmarkError where it did not do its work."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *arguments], env=environ, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise BenchmarkError(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr[-500:]!r}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
