"""The lives of streams that start, stop, drain and fail, whose traces are recorded."""

from __future__ import annotations

from support.simulated_driver import STREAM
from support.trace_stage import Life, Stage

LIVES: dict[str, Life] = {}


def life(live: Life) -> Life:
    """Record the trace of this life, under its name."""
    LIVES[live.__name__] = live
    return live


def begin(on: Stage, *words: str) -> None:
    """The first version runs, and has committed some batches."""
    on.shell("deploy", STREAM, "--app", on.script("v1.py"), *words)
    on.grow()


@life
def stopped_and_resumed(on: Stage) -> None:
    begin(on)
    on.shell("stop", STREAM, "--reason", "a pause")
    on.shell("resume", STREAM, "--reason", "it has ended")
    on.grow()
    on.shell("stop", STREAM, "--request-id", "r-1")
    on.shell("stop", STREAM, "--request-id", "r-1")


@life
def deployed_with_every_option(on: Stage) -> None:
    for name in ("helper.py", "table.csv", "udf.jar"):
        (on.folder / name).write_text("x = 1\n")
    on.shell(
        "deploy", STREAM, "--app", on.script("v1.py"), "--start", "fresh", "--master", "local[3]",
        "--conf", "spark.sql.shuffle.partitions=2", "--env", "MODE=test", "--py-files", on.script("helper.py"),
        "--files", on.script("table.csv"), "--jars", on.script("udf.jar"), "--packages", "a:b:1.0", "--label", "one",
        "--setting", "heartbeat_seconds=5", "--on-query-failure", "fail", "--on-failure", "restart",
        "--max-restarts", "3", "--working-folder", on.folder, "--keep-running", "--reason", "a first time",
        "--request-id", "first", "--", "--input", "here",
    )  # fmt: skip
    on.grow()
    on.shell("deploy", STREAM, "--app", on.script("v2.py"), "--request-id", "second", fails=True)
    on.shell("stop", STREAM)
    on.shell("deploy", STREAM, "--app", on.script("v2.py"), "--request-id", "second", "--max-snapshot-age", "600")
    on.grow()
    on.shell("stop", STREAM)
    on.shell("deploy", STREAM, "--app", on.script("v3.py"), "--start", "seed", "--async", fails=True)
    on.shell("drain", STREAM)
    on.shell("deploy", STREAM, "--app", on.script("v3.py"), "--start", "seed", "--async")
    on.grow()
    on.shell("stop", STREAM)
    on.shell("deploy", STREAM, "--app", on.script("v1.py"), "--start", "fresh", fails=True)
    on.shell("resume", STREAM, fails=True)
    on.shell("stop", STREAM, fails=True)


@life
def drained_and_continued(on: Stage) -> None:
    begin(on)
    on.shell("drain", STREAM, "--reason", "another state")
    on.shell("resume", STREAM, fails=True)
    on.shell("deploy", STREAM, "--app", on.script("v2.py"))
    on.grow()
    on.shell("drain", STREAM, "--mode", "event_time", "--no-rehearsal")
    on.shell("drain", STREAM)


@life
def drained_after_a_stop(on: Stage) -> None:
    begin(on)
    on.shell("stop", STREAM)
    on.shell("drain", STREAM)
    on.shell("deploy", STREAM, "--app", on.script("v2.py"))
    on.shell("stop", STREAM)


@life
def a_drain_is_withdrawn(on: Stage) -> None:
    begin(on)
    on.shell("drain", STREAM, "--async", "--batches-deadline", "30", "--flush-deadline", "60", "--on-flush-deadline",
             "stop")  # fmt: skip
    on.shell("cancel", STREAM, "--request-id", "no")
    on.grow()
    on.shell("cancel", STREAM, fails=True)
    on.shell("stop", STREAM)


@life
def killed_and_resumed(on: Stage) -> None:
    begin(on)
    on.shell("kill", STREAM, "--grace", "3")
    on.shell("kill", STREAM)
    on.shell("resume", STREAM)
    on.grow()
    on.kill_driver()
    on.shell("stop", STREAM, fails=True)
    on.shell("deploy", STREAM, "--app", on.script("v2.py"))
    on.grow()
    on.shell("stop", STREAM)
