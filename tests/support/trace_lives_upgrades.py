"""The lives of streams that are upgraded and rolled back, whose traces are recorded."""

from __future__ import annotations

from support.sim_upgrades import SHORT_LIVED, STILLBORN
from support.simulated_driver import STREAM
from support.trace_lives import begin, life
from support.trace_stage import BROKEN, REFUSED, RENAMED, WIDER, Stage

HEALTHY = ("--healthy-batches", "2", "--healthy-deadline", "60", "--rehearsal-deadline", "60")
COLD = ("--no-warm", *HEALTHY)


def upgrade(on: Stage, script: str, *words: str, fails: bool = False) -> None:
    on.shell("upgrade", STREAM, "--app", on.script(script), *HEALTHY, *words, fails=fails)


@life
def upgraded_cold(on: Stage) -> None:
    begin(on, "--label", "one")
    upgrade(on, "v2.py", "--no-warm", "--label", "two", "--reason", "faster", "--request-id", "u-1")
    upgrade(on, "v2.py", "--no-warm", "--label", "two", "--reason", "faster", "--request-id", "u-1")
    on.shell("stop", STREAM)


@life
def upgraded_warm(on: Stage) -> None:
    begin(on)
    upgrade(on, "v2.py", "--warm", "--caught-up")
    on.shell("stop", STREAM)


@life
def upgraded_by_a_drain(on: Stage) -> None:
    begin(on)
    upgrade(on, "v2.py", "--mode", "drain", "--no-warm", "--allow-state-loss")
    upgrade(on, "v3.py", "--mode", "drain", "--warm")
    on.shell("stop", STREAM)


@life
def upgraded_without_a_rehearsal(on: Stage) -> None:
    begin(on)
    upgrade(on, "v2.py", "--no-rehearsal", "--no-warm", "--conf", "spark.sql.shuffle.partitions=2")
    on.shell("stop", STREAM)


@life
def refused_by_its_rehearsal(on: Stage) -> None:
    begin(on)
    upgrade(on, REFUSED, "--no-warm", fails=True)
    upgrade(on, REFUSED, "--warm", "--mode", "restore", fails=True)
    upgrade(on, BROKEN, "--no-warm", fails=True)
    on.shell("stop", STREAM)


@life
def refused_by_spark_and_drained(on: Stage) -> None:
    begin(on)
    upgrade(on, REFUSED, "--no-warm", "--allow-drain")
    on.shell("stop", STREAM)


@life
def rolled_back_at_the_handover(on: Stage) -> None:
    begin(on)
    upgrade(on, STILLBORN, "--no-warm", fails=True)
    on.grow()
    on.shell("stop", STREAM)


@life
def rolled_back_to_a_driver_that_waits(on: Stage) -> None:
    begin(on)
    upgrade(on, STILLBORN, "--warm", "--warm-return", fails=True)
    on.grow()
    on.shell("stop", STREAM)


@life
def rolled_back_forward(on: Stage) -> None:
    begin(on)
    upgrade(on, SHORT_LIVED, "--warm", "--healthy-batches", "6", fails=True)
    on.grow()
    on.shell("stop", STREAM)


@life
def cancelled_before_its_stop(on: Stage) -> None:
    begin(on)
    on.at_the_same_time("cancel", STREAM, "--reason", "not today", after_seconds=0.5)
    upgrade(on, "v2.py", "--no-warm", fails=True)
    on.shell("continue", STREAM, fails=True)
    on.shell("stop", STREAM)


@life
def cancelled_after_its_stop(on: Stage) -> None:
    begin(on)
    on.at_the_same_time("cancel", STREAM, after_seconds=3.0)
    upgrade(on, "v2.py", "--no-warm", "--healthy-batches", "50", fails=True)
    on.grow()
    on.shell("stop", STREAM)


@life
def cancelled_to_finish(on: Stage) -> None:
    begin(on)
    on.at_the_same_time("cancel", STREAM, "--after-stop", "finish", after_seconds=3.0)
    upgrade(on, "v2.py", "--no-warm", "--healthy-batches", "50")
    on.shell("stop", STREAM)


@life
def continued_by_another_command(on: Stage) -> None:
    begin(on)
    upgrade(on, "v2.py", "--no-warm", "--timeout", "1", fails=True)
    on.shell("deploy", STREAM, "--app", on.script("v3.py"), fails=True)
    upgrade(on, "v3.py", fails=True)
    on.at_the_same_time("upgrade", STREAM, "--app", on.script("v3.py"), "--if-busy", "wait", *COLD)
    on.shell("continue", STREAM)
    on.grow(seconds=20)
    on.shell("stop", STREAM)


@life
def approved_and_rejected(on: Stage) -> None:
    begin(on)
    upgrade(on, "v2.py", "--no-warm", "--needs-approval", "--timeout", "5", fails=True)
    on.shell("reject", STREAM, "--reason", "on a Friday")
    upgrade(on, "v2.py", "--no-warm", "--needs-approval", "--timeout", "5", fails=True)
    on.shell("approve", STREAM, "--reason", "looks good")
    upgrade(on, "v3.py", "--no-warm", "--approved-by-another", "--timeout", "5", fails=True)
    on.shell("approve", STREAM, fails=True)
    on.shell("cancel", STREAM)
    on.shell("stop", STREAM)


@life
def a_query_gets_another_name(on: Stage) -> None:
    begin(on)
    upgrade(on, RENAMED, "--no-warm", fails=True)
    upgrade(on, RENAMED, "--no-warm", "--no-rehearsal", "--rename-query", "counts=totals", "--accept-hazards")
    on.grow()
    on.shell("rollback", STREAM, *COLD, fails=None)
    on.shell("stop", STREAM)


@life
def a_query_comes_new(on: Stage) -> None:
    begin(on)
    upgrade(on, WIDER, "--no-warm", fails=True)
    upgrade(on, WIDER, "--no-warm", "--allow-new-query", "late", "--accept-hazards")
    on.shell("stop", STREAM)


@life
def rescaled_and_back(on: Stage) -> None:
    begin(on)
    on.shell("rescale", STREAM, "--suggest")
    on.shell("rescale", STREAM, "--partitions", "3", "--state-store", "rocksdb", *COLD)
    on.grow()
    on.shell("rollback", STREAM, *COLD)
    on.shell("stop", STREAM)


@life
def restarted(on: Stage) -> None:
    begin(on)
    on.shell("restart", STREAM, "--warm", "--healthy-batches", "2", "--healthy-deadline", "60", "--reason", "a leak")
    on.shell("restart", STREAM, "--no-warm", "--healthy-batches", "2", "--healthy-deadline", "60")
    on.shell("stop", STREAM)


@life
def rolled_back_by_hand(on: Stage) -> None:
    begin(on)
    on.shell("rollback", STREAM, *COLD, fails=True)
    upgrade(on, "v2.py", "--no-warm")
    on.grow()
    on.shell("rollback", STREAM, *HEALTHY, "--warm", "--reason", "wrong numbers")
    on.grow()
    on.shell("rollback", STREAM, *COLD, fails=True)
    upgrade(on, "v3.py", "--no-warm")
    on.grow()
    on.shell("rollback", STREAM, *COLD, "--strategy", "undo", fails=True)
    on.shell("rollback", STREAM, *COLD, "--strategy", "forward")
    on.shell("stop", STREAM)


@life
def rolled_back_to_a_snapshot(on: Stage) -> None:
    begin(on)
    on.shell("snapshot", "create", STREAM)
    on.grow()
    on.shell("rollback", STREAM, "--snapshot", "d-0001-live-000001", *COLD, fails=True)
    on.shell("rollback", STREAM, "--snapshot", "d-0001-live-000001", "--accept-duplicates", *COLD, fails=True)
    undo = ("--undo-command", "true")
    on.shell("rollback", STREAM, "--snapshot", "d-0001-live-000001", *undo, *COLD)
    on.grow()
    on.shell("stop", STREAM)


@life
def planned(on: Stage) -> None:
    begin(on)
    on.shell("plan", STREAM, "--app", on.script("v2.py"))
    on.shell("plan", STREAM, "--app", on.script("v2.py"), "--no-rehearsal", "--markdown")
    on.shell("plan", STREAM, "--app", on.script(REFUSED), fails=True)
    on.shell("plan", STREAM, "--app", on.script("v2.py"), "--replay", "2", "--replay-out", on.script("replayed"))
    on.shell("stop", STREAM)
