"""The lives of streams that are looked after: snapshots, mirrors, watchers, files, signatures."""

from __future__ import annotations

from airflow_streamstate.protocol.signing import SigningKeys
from support.simulated_driver import STREAM
from support.trace_lives import begin, life
from support.trace_stage import Stage


@life
def snapshots_are_kept_and_pruned(on: Stage) -> None:
    begin(on)
    on.shell("snapshot", "create", STREAM, "--request-id", "s-1", "--reason", "before the holidays")
    on.shell("snapshot", "create", STREAM, "--request-id", "s-1", "--reason", "before the holidays")
    on.grow()
    on.shell("snapshot", "create", STREAM, "--pin", "--consistent")
    on.grow()
    on.shell("snapshot", "create", STREAM)
    on.shell("snapshot", "pin", STREAM, "d-0001-live-000001")
    on.shell("snapshot", "unpin", STREAM, "d-0001-live-000001")
    on.shell("snapshot", "list", STREAM)
    on.shell("snapshot", "verify", STREAM, "d-0001-live-000002")
    on.shell("snapshot", "retention", STREAM, "--keep", "1")
    on.shell("snapshot", "prune", STREAM, "--dry-run")
    on.shell("snapshot", "prune", STREAM)
    on.shell("snapshot", "retention", STREAM, "--none")
    on.shell("stop", STREAM)


@life
def snapshots_at_another_place(on: Stage) -> None:
    begin(on, "--snapshots", "memory://place", "--setting", "snapshot_every_seconds=20")
    on.grow(seconds=30)
    on.shell("stop", STREAM)
    on.shell("deploy", STREAM, "--app", on.script("v2.py"), "--snapshots", "none")
    on.shell("snapshot", "create", STREAM, fails=True)
    on.shell("drain", STREAM)


@life
def mirrored_and_restored(on: Stage) -> None:
    begin(on, "--mirror", "memory://mirror")
    on.shell("snapshot", "create", STREAM)
    on.shell("stop", STREAM)
    on.shell("home", "mirror", STREAM)
    on.lose_home()
    on.shell("home", "restore", "--from", "memory://mirror", "--accept-duplicates")
    on.shell("deploy", STREAM, "--app", on.script("v2.py"))
    on.grow()
    on.shell("stop", STREAM)


@life
def adopted(on: Stage) -> None:
    on.run_outside("lake")
    one = ("--app", on.script("v1.py"), "--checkpoint", "memory://lake/counts")
    wanted = (*one, "--checkpoint", "memory://lake/rows")
    on.shell("adopt", STREAM, *wanted, "--deadline", "5", fails=True)
    on.shell("adopt", STREAM, *one, "--deadline", "5", fails=True)
    on.shell("adopt", STREAM, "--give-up")
    on.shell("adopt", STREAM, *wanted, "--stopped")
    on.world.violations.clear()  # what is adopted becomes a deployment that was never current
    on.grow()
    on.shell("stop", STREAM)


@life
def a_batch_is_skipped(on: Stage) -> None:
    begin(on)
    on.fail_batch(7)
    on.grow(seconds=10)
    on.shell("skip", STREAM, "--batch", "7", "--reason", "a bad row", "--show")
    on.shell("skip", STREAM, "--batch", "7", "--reason", "a bad row")
    on.grow()
    on.shell("audit", STREAM)
    on.shell("stop", STREAM)


@life
def restarted_by_watchers(on: Stage) -> None:
    begin(on, "--on-failure", "restart", "--initial-backoff", "1")
    on.shell("policy", STREAM, "--max-restarts", "2", "--hung-after", "60")
    on.shell("watch", "--once")
    for _ in range(3):
        on.kill_driver()
        on.pass_time(30)
        on.shell("watch", "--once", fails=None)
        on.pass_time(30)
        on.shell("watch", "--once", fails=None)
        on.grow(seconds=5)
    on.shell("policy", STREAM, "--on-failure", "alert")
    on.shell("watch", "--once", "--alerts", fails=True)
    on.shell("resume", STREAM, "--on-failure", "nothing")
    on.shell("stop", STREAM)


@life
def owned_and_labelled(on: Stage) -> None:
    begin(on)
    on.shell("label", STREAM, "tier=canary", "team=data", "--owner", "data platform")
    on.shell("label", STREAM, "--remove", "team")
    on.shell("label", STREAM)
    on.shell("alerts", STREAM, "--set", "no_commit_seconds=300", "--off", "no_commit")
    on.shell("alerts", STREAM, "--on", "no_commit")
    on.shell("stop", STREAM)


@life
def applied_from_files(on: Stage) -> None:
    on.declare(f"id: {STREAM}\napplication: v1.py\nlabels: {{tier: canary}}\nrestart: {{on_failure: restart}}\n")
    files = on.folder / "streams"
    on.shell("validate", files)
    on.shell("diff", files, "--no-rehearsal")
    on.shell("apply", files)
    on.shell("apply", files)
    on.grow()
    text = (
        f"id: {STREAM}\napplication: v2.py\nowner: data platform\n"
        "upgrade: {warm: false, healthy_batches: 2}\nretention: {keep: 3}\n"
    )
    on.declare(text)
    on.shell("diff", files)
    on.shell("apply", files)
    on.declare(f"{text}desired_state: stopped\n")
    on.shell("apply", files)
    on.shell("export", STREAM, on.folder / "exported")
    on.declare(None)
    (files / "another.yaml").write_text("id: another\napplication: v1.py\ndesired_state: stopped\n")
    on.shell("resume", STREAM)
    on.shell("apply", files, "--prune", fails=None)


@life
def signed(on: Stage) -> None:
    on.world.keys = SigningKeys.parse("11" * 32, "the life")
    begin(on)
    on.shell("stop", STREAM)
    on.shell("home", "sign")
    on.world.keys = SigningKeys.parse(f"{'22' * 32} {'11' * 32}", "the life")
    on.shell("home", "sign", "--rotate", "--yes")
    on.shell("resume", STREAM)
    on.shell("stop", STREAM)


@life
def read_and_replayed(on: Stage) -> None:
    begin(on)
    on.shell("snapshot", "create", STREAM)
    on.grow()
    on.shell("stop", STREAM)
    on.shell("snapshot", "inspect", STREAM)
    on.shell("snapshot", "export", STREAM, "--out", on.folder / "out")
    on.shell("snapshot", "diff", STREAM, "d-0001-live-000001", "d-0001-stopped-000001")
    on.shell("replay", STREAM, "--last", "2", "--out", on.folder / "replayed")
    on.shell("replay", STREAM, "--batch", "1", "--out", on.folder / "compared", "--app", on.script("v2.py"))


@life
def retired_and_revived(on: Stage) -> None:
    begin(on)
    on.shell("retire", STREAM, fails=True)
    on.shell("stop", STREAM)
    on.shell("retire", STREAM, "--reason", "nobody reads it")
    on.shell("deploy", STREAM, "--app", on.script("v2.py"), fails=True)
    on.shell("deploy", STREAM, "--app", on.script("v2.py"), "--revive")
    on.shell("stop", STREAM)
    on.shell("retire", STREAM, "--delete")
    on.world.violations.clear()  # of a stream that is removed, nothing stays


@life
def stopped_by_force(on: Stage) -> None:
    begin(on)
    on.shell("stop", STREAM, "--deadline", "60")
    on.shell("resume", STREAM)
    on.slow_down(300.0)
    on.grow()
    on.shell("stop", STREAM, "--deadline", "5", fails=True)
    on.shell("stop", STREAM, "--deadline", "5", "--on-deadline", "kill")


@life
def the_driver_is_out_of_reach(on: Stage) -> None:
    begin(on)
    on.lose_driver()
    on.pass_time(90)
    on.shell("resume", STREAM, fails=True)
    on.shell("deploy", STREAM, "--app", on.script("v2.py"), fails=True)
    on.shell("deploy", STREAM, "--app", on.script("v2.py"), "--assume-dead")
    on.grow()
    on.shell("stop", STREAM)


@life
def a_drain_has_deadlines(on: Stage) -> None:
    begin(on)
    on.slow_down(300.0)
    on.grow()
    on.shell("drain", STREAM, "--batches-deadline", "5", fails=True)
    on.world.failing |= set(on.world.machine)  # its batch is cut on purpose
    on.shell("drain", STREAM, "--batches-deadline", "5", "--on-batches-deadline", "kill", fails=None)
