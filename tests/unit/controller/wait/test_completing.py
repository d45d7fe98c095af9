"""Up to which event time a stream is complete: through restarts, upgrades, drains and a rollback."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.controller.wait.completing import CompleteThrough
from airflow_streamstate.controller.wait.condition import WaitCondition, WaitResult
from airflow_streamstate.errors import ConflictError, InvalidRequestError, StreamNotFoundError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import format_time, to_bytes
from airflow_streamstate.protocol.events import Drained, QueryStarted, Stopped
from airflow_streamstate.protocol.policies import RestartPolicy
from airflow_streamstate.protocol.positions import QueryBeat
from airflow_streamstate.protocol.records import StartPlan
from support.checkpoints import commit_batch, plan_batch
from support.sim_stage import STREAM, Stage
from support.snapshots import put_stop_entry, run_stateful

FIRST, SECOND, THIRD = "d-0001", "d-0002", "d-0003"


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def at(seconds: int) -> datetime:
    """Batch N of these streams runs with a watermark of N seconds, and computes one of N + 1."""
    return datetime.fromtimestamp(seconds, timezone.utc)


def through(stage: Stage, query_name: str | None = None) -> CompleteThrough:
    return stage.another_controller().completing.through(STREAM, query_name)


def runs(stage: Stage, last: int = 3) -> None:
    """d-0001 runs, and has committed batches up to this one."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(last)


def copied(stage: Stage, source_id: str, target_id: str, last: int) -> None:
    """The driver of ``target_id`` restored the checkpoint of ``source_id``, up to this batch."""
    stage.come_to_life(target_id)
    source, target = stage.checkpoint(deployment_id=source_id), stage.checkpoint(deployment_id=target_id)
    for info in list(stage.store.list_objects(f"{source.prefix}/")):
        path = info.key.removeprefix(f"{source.prefix}/")
        number = path.rpartition("/")[2]
        if path.startswith(("offsets/", "commits/")) and number.isdigit() and int(number) > last:
            continue
        stage.store.put(target.key(path), stage.store.get(info.key).body)  # type: ignore[union-attr]
    stage.start_query(deployment_id=target_id, batch_id=last, how="restored")


def seeded(stage: Stage, deployment_id: str, batch_id: int, watermark_ms: int) -> None:
    """The driver of this deployment built a checkpoint from offsets alone, with this watermark."""
    stage.come_to_life(deployment_id)
    checkpoint = stage.checkpoint(deployment_id=deployment_id)
    stage.store.put(checkpoint.metadata_key, b'{"id": "id"}')
    plan_batch(checkpoint, batch_id, watermark_ms=watermark_ms)
    commit_batch(checkpoint, batch_id, watermark_ms=watermark_ms)
    stage.start_query(deployment_id=deployment_id, batch_id=batch_id, how="seeded")


def drained(stage: Stage) -> None:
    """d-0001 was drained behind batch 3: batch 4 is the flush."""
    runs(stage)
    flush_id = stage.flush()
    manifest = stage.keep("drained", state_rows_left=0)
    positions = {name: query.position for name, query in manifest.queries.items()}
    assert positions["counts"].batch_id == flush_id
    stage.say(Drained, command_id="", command_number=0, snapshot_id=manifest.snapshot_id, queries=positions)
    stage.end()


def starts_as(stage: Stage, deployment_id: str, start: StartPlan) -> None:
    """The record of a deployment reports that it starts like this."""
    spec = replace(stage.spec(deployment_id), start=start)
    stage.store.put(layout.spec_key(STREAM, deployment_id), to_bytes(spec))


def test_the_watermark_that_the_last_committed_batch_ran_with_counts(stage: Stage) -> None:
    """Not the one that it computed: what that closes is written by the next batch. Nor that of a planned batch."""
    runs(stage, 3)
    plan_batch(stage.checkpoint(), 4, watermark_ms=4_000)
    assert through(stage).through_at == at(3)
    commit_batch(stage.checkpoint(), 4, watermark_ms=5_000)
    found = through(stage)
    assert (found.through_at, found.deployment_id, found.queries) == (at(4), FIRST, {"counts": at(4)})


def test_nothing_is_complete_before_a_batch_ran_with_a_watermark(stage: Stage) -> None:
    """Batch 0 only computes the first one; so does a stream that has started no batch."""
    stage.deploy()
    assert through(stage).to_json() == {
        "stream_id": STREAM, "query_name": None, "complete_through_at": None, "deployment_id": None, "queries": {},
        "reopened_from_at": None,
    }  # fmt: skip
    stage.come_to_life(queries=("counts",))
    stage.run_batches(0)
    assert through(stage).through_at is None


def test_a_stream_that_is_not_there_is_named(stage: Stage) -> None:
    """Before anything of it is read."""
    runs(stage)
    with pytest.raises(StreamNotFoundError, match="other"):
        stage.controller.completing.through("other")


def test_the_slowest_query_decides_unless_one_is_named(stage: Stage) -> None:
    """All of the stream is complete up to where each query is."""
    stage.deploy()
    stage.come_to_life(queries=("counts", "totals"))
    stage.run_batches(5)
    assert through(stage).through_at is None
    stage.run_batches(2, "totals")
    assert through(stage).through_at == at(2)
    assert through(stage, "counts").through_at == at(5)
    assert through(stage, "totals").through_at == at(2)
    assert through(stage, "other").through_at is None


def test_a_stop_barrier_does_not_count(stage: Stage) -> None:
    """It is never committed."""
    runs(stage, 3)
    put_stop_entry(stage.checkpoint(), 4)
    assert through(stage).through_at == at(3)


def test_a_skipped_batch_takes_nothing_back(stage: Stage) -> None:
    """It ran without a watermark, and hands on that of its place."""
    runs(stage, 3)
    plan_batch(stage.checkpoint(), 4, watermark_ms=0)
    commit_batch(stage.checkpoint(), 4, watermark_ms=4_000)
    assert through(stage).through_at == at(3)


def test_a_stream_stays_complete_while_its_successor_begins(stage: Stage) -> None:
    """Between the deploy and the first batch, the predecessor's log counts; then the successor's own."""
    stage.deploy()
    stage.stopped(3)
    stage.deploy("print('v2')\n")
    assert (through(stage).through_at, through(stage).deployment_id) == (at(3), FIRST)
    copied(stage, FIRST, SECOND, 3)
    assert (through(stage).through_at, through(stage).deployment_id) == (at(3), SECOND)
    run_stateful(stage.checkpoint(deployment_id=SECOND), 6, first=4)
    assert (through(stage).through_at, through(stage).deployment_id) == (at(6), SECOND)


def test_while_a_query_of_the_snapshot_may_still_start_the_others_are_not_enough(stage: Stage) -> None:
    """``totals`` is behind, and starts a moment after ``counts``; one that never starts again is left out later."""
    stage.deploy()
    stage.come_to_life(queries=("counts", "totals"))
    stage.run_batches(6)
    stage.run_batches(2, "totals")
    manifest = stage.keep("stopped", names=("counts", "totals"))
    positions = {name: query.position for name, query in manifest.queries.items()}
    stage.say(Stopped, snapshot_id=manifest.snapshot_id, queries=positions)
    stage.end()
    stage.deploy("print('v2')\n")
    copied(stage, FIRST, SECOND, 6)
    stage.beat(SECOND, counts=QueryBeat(6, stage.clock.now(), is_active=True))
    assert through(stage).through_at == at(2)
    stage.clock.sleep(stage.spec(SECOND).version.settings.exit_grace_seconds + 1)
    stage.beat(SECOND, counts=QueryBeat(6, stage.clock.now(), is_active=True))
    assert through(stage).through_at == at(6)


def test_a_drain_completes_no_window_that_was_open(stage: Stage) -> None:
    """The flush writes open windows early, and the successor the rest of them. What the last watermark closed is."""
    drained(stage)
    assert through(stage).through_at == at(4)
    stage.deploy("print('v2')\n")
    assert through(stage).through_at == at(4)
    seeded(stage, SECOND, 4, 4_000)
    assert (through(stage).through_at, through(stage).deployment_id) == (at(4), SECOND)
    run_stateful(stage.checkpoint(deployment_id=SECOND), 7, first=5)
    assert through(stage).through_at == at(7)


def test_a_watermark_that_begins_anew_takes_nothing_back(stage: Stage) -> None:
    """An hour is complete once: late rows may come again, and the hours that were complete stay so."""
    drained(stage)
    stage.deploy("print('v2')\n")
    seeded(stage, SECOND, 4, 0)
    run_stateful(stage.checkpoint(deployment_id=SECOND), 5, first=5)
    checkpoint = stage.checkpoint(deployment_id=SECOND)
    plan_batch(checkpoint, 6, watermark_ms=2_000)
    commit_batch(checkpoint, 6, watermark_ms=2_500)
    found = through(stage)
    assert (found.through_at, found.deployment_id, found.reopened_from_at) == (at(4), FIRST, None)


@pytest.mark.parametrize(("mode", "seconds"), [("restore", None), ("seed", 4)])
def test_a_deployment_whose_log_is_gone_is_known_by_its_last_event(
    stage: Stage, mode: str, seconds: int | None
) -> None:
    """What its last watermark closed is in the state: a restored successor emits it, another one has dropped it."""
    stage.deploy()
    stopped = stage.stopped(3)
    stage.deploy("print('v2')\n")
    starts_as(stage, SECOND, StartPlan(mode, stopped.snapshot_id, FIRST))  # type: ignore[arg-type]
    for info in list(stage.store.list_objects(f"{stage.checkpoint().prefix}/")):
        stage.store.delete(info.key)
    assert through(stage).through_at == (None if seconds is None else at(seconds))


@pytest.fixture
def went_back(stage: Stage) -> Stage:
    """d-0002 continued from d-0001 (batch 3) to batch 8; d-0003 undoes it, back to the end of d-0001."""
    stage.deploy()
    stopped = stage.stopped(3)
    stage.deploy("print('v2')\n")
    copied(stage, FIRST, SECOND, 3)
    run_stateful(stage.checkpoint(deployment_id=SECOND), 8, first=4)
    assert through(stage).through_at == at(8)
    stage.end(SECOND, state="gone")
    stage.deploy("print('v3')\n")
    starts_as(stage, THIRD, StartPlan("restore", stopped.snapshot_id, SECOND, undoes=SECOND))
    return stage


def test_what_an_undo_took_back_is_not_complete_until_it_is_written_again(went_back: Stage) -> None:
    """Its rows are out of the sink. The rollback reports where they were."""
    found = through(went_back)
    assert (found.through_at, found.deployment_id, found.reopened_from_at) == (at(3), FIRST, at(8))
    copied(went_back, FIRST, THIRD, 3)
    run_stateful(went_back.checkpoint(deployment_id=THIRD), 5, first=4)
    assert (through(went_back).through_at, through(went_back).reopened_from_at) == (at(5), at(8))
    run_stateful(went_back.checkpoint(deployment_id=THIRD), 9, first=6)
    assert (through(went_back).through_at, through(went_back).reopened_from_at) == (at(9), None)


def test_a_way_back_to_a_place_in_the_middle_of_a_deployment_keeps_what_was_before(stage: Stage) -> None:
    """Batches up to that of the live snapshot stayed in the sink."""
    runs(stage, 4)
    snapshot_id = stage.keep("live").snapshot_id
    run_stateful(stage.checkpoint(), 8, first=5)
    stage.end(state="gone")
    stage.deploy("print('v2')\n")
    starts_as(stage, SECOND, StartPlan("restore", snapshot_id, FIRST, undoes=FIRST))
    assert (through(stage).through_at, through(stage).reopened_from_at) == (at(4), at(8))


# waiting


def look(stage: Stage, seconds: int, query_name: str | None = None, ended_for_seconds: float = 60.0) -> WaitResult:
    condition = WaitCondition(
        "complete", STREAM, FIRST, complete_at=format_time(at(seconds)), query_name=query_name,
        ended_for_seconds=ended_for_seconds,
    )  # fmt: skip
    assert WaitCondition.from_json(condition.to_json()) == condition
    return stage.another_controller().look(condition)


def test_a_moment_is_waited_for_until_a_batch_ran_with_that_watermark(stage: Stage) -> None:
    """Exactly that moment is enough: a window that ends at the watermark is emitted."""
    runs(stage, 3)
    assert look(stage, 4).outcome == "pending"
    assert look(stage, 4).last_seen == "running; complete through 1970-01-01T00:00:03.000Z"
    run_stateful(stage.checkpoint(), 4, first=4)
    found = look(stage, 4)
    assert (found.outcome, found.need_result()["complete_through_at"]) == ("done", "1970-01-01T00:00:04.000Z")


def test_a_condition_without_a_moment_is_a_mistake(stage: Stage) -> None:
    """Nothing is looked for without one."""
    runs(stage)
    with pytest.raises(InvalidRequestError, match="no event time"):
        stage.controller.look(WaitCondition("complete", STREAM, FIRST))


def test_a_query_without_a_watermark_never_completes_an_hour(stage: Stage) -> None:
    """Reported at once, with its name; a query alongside it that has one can be named."""
    runs(stage, 3)
    fields: dict[str, Any] = {
        "query_id": "id",
        "query_run_id": "run",
        "how": "fresh",
        "batch_id": None,
        "planned_batch_id": None,
    }
    stage.say(
        QueryStarted, query_name="raw", **fields, repairs=(), sink="delta:/out", trigger="default",
        output_mode="append",
    )  # fmt: skip
    assert look(stage, 2).outcome == "pending"  # it has no batch yet
    raw = stage.checkpoint("raw")
    plan_batch(raw, 0)
    commit_batch(raw, 0)
    with pytest.raises(InvalidRequestError, match=r"no watermark.*raw"):
        look(stage, 2).need_result()
    assert look(stage, 2, "counts").outcome == "done"


def test_a_query_that_the_stream_has_not_is_a_mistake(stage: Stage) -> None:
    """Reported with the names that it has."""
    runs(stage, 3)
    with pytest.raises(InvalidRequestError, match=r"no query of this name.*counts"):
        look(stage, 2, "count").need_result()


def test_a_stream_that_ended_before_is_given_up_when_nothing_starts_it(stage: Stage) -> None:
    """Not at once: between a stop and the next deploy there is a moment."""
    stage.deploy()
    stage.stopped(3)
    assert look(stage, 3).outcome == "done"
    assert look(stage, 9).outcome == "pending"
    stage.clock.sleep(61)
    with pytest.raises(
        ConflictError, match=r"has ended before.*state=stopped.*complete_through_at=1970-01-01T00:00:03"
    ):
        look(stage, 9).need_result()
    stage.deploy("print('v2')\n")
    assert look(stage, 9).outcome == "pending"


def test_a_drained_stream_is_given_up_though_its_open_windows_were_written(stage: Stage) -> None:
    """They hold only what came before the drain."""
    drained(stage)
    stage.clock.sleep(61)
    with pytest.raises(ConflictError, match="What a drain wrote of open windows is not complete"):
        look(stage, 9).need_result()


def test_a_failed_stream_that_a_watcher_restarts_is_waited_for(stage: Stage) -> None:
    """Unless the watcher has stopped."""
    runs(stage, 3)
    stage.end(state="exited")
    policy = RestartPolicy(on_failure="restart")
    stage.control.update_register(lambda register: replace(register, restart_policy=policy), by="test")
    stage.clock.sleep(timedelta(hours=1).total_seconds())
    assert stage.seen().state == "failed"
    assert look(stage, 9).outcome == "pending"
    stage.control.update_register(lambda register: replace(register, restart_policy=RestartPolicy()), by="test")
    stage.clock.sleep(61)
    assert look(stage, 9).outcome == "over"
