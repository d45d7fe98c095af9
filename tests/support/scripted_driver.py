"""A driver without Spark, started by a fake ``spark-submit``, that reports what an agent would report.

``install`` puts such a ``spark-submit`` under a SPARK_HOME; the real launcher starts it, detached, like any other. The
script that is "run" holds one word per line, and these are what it knows:

- ``runs``: commits a batch, then obeys stop, drain and snapshot until one of them ends it;
- ``proves``: as ``runs``, with three batches past those that it started from;
- ``lags``: as ``proves``, and some was left in its source at the one poll that there was;
- ``finishes``: commits a batch, and ends by itself, as its trigger orders;
- ``breaks``: commits a batch and fails; from its third attempt on it ends by itself;
- ``restores``: reports from which batch of the snapshot it continues, besides what else it does;
- ``notes``: reports a setting, besides what else it does;
- ``fails``: ends before it has committed anything;
- ``hangs``: starts, and never commits anything;
- ``late``: as ``proves``, some seconds after it has started;
- ``stalls``, ``crashes``: as ``hangs`` and ``fails``, which a rehearsal does not show;
- ``deaf``: reads no order;
- ``cannot-drain``: rejects a drain;
- ``drain-fails``: the flush fails.

In a rehearsal it knows the words of ``scripted_rehearsal``; asked for state, it is a ``scripted_reader``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_streamstate.protocol.events import Noted
from airflow_streamstate.protocol.ids import is_scratch_id
from airflow_streamstate.protocol.positions import SourceLag

if TYPE_CHECKING:
    from support.scripted_stream import ScriptedAttempt

STREAM_STATE_ROWS = 7
WATERMARK_TEXT = "2001-03-31T21:27:00.000Z"
NOTE = "the script sets its own master local[2]"
END_OFFSET = '{"logOffset":4}'
LATE_SECONDS = 30.0
LIFE_SECONDS = 600.0
REPOSITORY = Path(__file__).resolve().parents[2]


def install(folder: Path) -> dict[str, str]:
    """Put the ``spark-submit`` (and a ``java``, which is only looked for) there; the environment that finds them."""
    for path in (folder / "spark" / "bin" / "spark-submit", folder / "java" / "bin" / "java"):
        path.parent.mkdir(parents=True)
        path.write_text(
            f"#!{sys.executable}\n"
            "import sys\n"
            f"sys.path[:0] = [{str(REPOSITORY)!r}, {str(REPOSITORY / 'tests')!r}]\n"
            "from support.scripted_driver import main\n"
            "sys.exit(main(sys.argv))\n"
        )
        path.chmod(0o755)
    return {"SPARK_HOME": str(folder / "spark"), "JAVA_HOME": str(folder / "java")}


def script(folder: Path, *words: str, name: str = "job.py") -> Path:
    """A script that makes the driver behave like this."""
    path = folder / name
    path.write_text("\n".join(words or ("runs",)) + "\n")
    return path


def _begin(attempt: ScriptedAttempt, words: set[str]) -> None:
    """The batches that it commits at once."""
    if {"proves", "lags"} & words:
        attempt.proves(3)
        if "lags" in words:
            attempt.beat(lags=(SourceLag("file /in", 40, "files"),))
    elif not {"hangs", "stalls", "late"} & words:
        attempt.commits(0)


def main(argv: list[str]) -> int:
    """The driver's life; returns its exit status."""
    from support.scripted_reader import read_by_script
    from support.scripted_rehearsal import keep_plan, rehearse
    from support.scripted_stream import QUERY, ScriptedAttempt

    config = json.loads(Path(argv[-1]).read_text())
    words = Path(config["application"]).read_text().split()
    print(f"scripted driver: {' '.join(words)}", flush=True)
    is_reading = config.get("reading") is not None
    if is_reading or is_scratch_id(config["deployment_id"]):
        return read_by_script(config) if is_reading else rehearse(config, words, QUERY)
    attempt = ScriptedAttempt.of_driver(config, os.getpid())
    attempt.claim(config["launch_key"])
    if attempt.is_only_to_drain():
        attempt.obey("")
        return 0
    if "notes" in words:
        attempt.say(Noted, text=NOTE, facts={"own": "local[2]", "asked": "local[8]"})
    trigger = "available_now" if {"finishes", "breaks"} & set(words) else "default"
    attempt.started(trigger, restores="restores" in words)
    keep_plan(attempt.control, attempt.deployment_id, QUERY)
    if {"fails", "crashes"} & set(words):
        attempt.failed("ValueError: boom")
        return 1
    _begin(attempt, set(words))
    if "breaks" in words and attempt.attempt < 3:
        attempt.failed("ValueError: boom")
        return 1
    if {"finishes", "breaks"} & set(words):
        attempt.finished()
        return 0
    began = time.monotonic()  # noqa: TID251 - a real process
    until = began + LIFE_SECONDS
    while time.monotonic() < until and not attempt.is_replaced():  # noqa: TID251
        if "deaf" not in words and attempt.obey(" ".join(words)):
            return 0
        if "late" in words and attempt.batch_id is None and time.monotonic() - began > LATE_SECONDS:  # noqa: TID251
            attempt.proves(3)
        attempt.lives_on()
        time.sleep(0.05)  # noqa: TID251
    return 1
