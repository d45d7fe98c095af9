"""The downtime of each query at each handover, and what is between its two commits."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.controller.observe.lineage import lineage_of
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Claimed, Finished, QueryStarted, Stopped
from airflow_streamstate.protocol.positions import PHASES, Downtime, FirstBatch, Heartbeat, Mark, QueryBeat, QueryEnd
from support.clocked_store import ClockedStore
from support.fake_clock import FakeClock
from support.sim_stage import STREAM, Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A stream whose store reports when its objects came to be."""
    clock = FakeClock()
    return Stage(tmp_path, ClockedStore(clock.now), clock)


def first_version(stage: Stage) -> None:
    """d-0001 runs, and has committed batch 3."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)


def next_version(stage: Stage, number: int, last: int = 3) -> str:
    """This deployment runs, restored behind this batch."""
    deployment_id = f"d-000{number}"
    stage.deploy(f"print('v{number}')\n", start="restore")
    stage.come_to_life(deployment_id)
    stage.start_query("counts", deployment_id, batch_id=last, how="restored")
    return deployment_id


def reports(stage: Stage, first: FirstBatch, attempt: int = 1, **beats: QueryBeat) -> None:
    """A heartbeat of d-0002 with its first batch."""
    stage.control.put_heartbeat(Heartbeat(STREAM, "d-0002", attempt, stage.clock.now(), beats, {"counts": first}))


def removed(stage: Stage, up_to: int) -> None:
    """Spark keeps only the last commits of d-0002."""
    for batch_id in range(up_to):
        stage.store.delete(layout.checkpoint_folder(STREAM, "d-0002", "counts") + f"/commits/{batch_id}")


def stop(stage: Stage, deployment_id: str = "d-0001", names: tuple[str, ...] = ("counts",), **fields: Any) -> None:
    """The last event of a deployment whose queries have all committed."""
    manifest = stage.keep("stopped", deployment_id, names=names)
    positions = {name: query.position for name, query in manifest.queries.items()}
    stage.say(Stopped, deployment_id, snapshot_id=manifest.snapshot_id, queries=positions, **fields)
    stage.end(deployment_id)


def found(stage: Stage) -> list[Downtime]:
    """By an audit."""
    return list(lineage_of(stage.home, STREAM).downtimes)


def test_each_query_has_its_own_from_commit_to_commit(stage: Stage) -> None:
    """The second query of a script starts later, and is down longer."""
    stage.deploy()
    stage.come_to_life(queries=("counts", "raw"))
    stage.run_batches(3, "counts")
    stage.clock.advance(1)
    stage.run_batches(3, "raw")
    stage.clock.advance(2)
    stop(stage, names=("counts", "raw"))
    stage.deploy("print('v2')\n", start="restore")
    stage.come_to_life("d-0002")
    for name, starts_after, commits_after in (("counts", 1, 2), ("raw", 5, 3)):
        stage.clock.advance(starts_after)
        stage.start_query(name, "d-0002", batch_id=3, how="restored")
        stage.clock.advance(commits_after)
        stage.run_batches(4, name, "d-0002")
    assert [(one.query_name, one.seconds) for one in found(stage)] == [("counts", 6.0), ("raw", 13.0)]


def test_a_version_that_committed_nothing_ends_no_downtime(stage: Stage) -> None:
    """The query is down until the version after it commits; while none has, its downtime lasts."""
    stage.deploy()
    stage.stopped()
    for number in (2, 3):
        deployment_id = next_version(stage, number)
        stage.run_batches(3, deployment_id=deployment_id)  # built of its predecessor's
        (lasting,) = found(stage)
        assert (lasting.to_deployment_id, lasting.until_at, lasting.seconds) == (deployment_id, None, None)
        stage.clock.advance(10)
        stage.end(deployment_id, state="gone")
    stage.run_batches(4, deployment_id="d-0003")
    (one,) = found(stage)
    assert (one.from_deployment_id, one.to_deployment_id, one.seconds) == ("d-0001", "d-0003", 20.0)


def test_what_lies_between_is_told_with_its_clock(stage: Stage) -> None:
    """Every recorded phase, in order; the first batch also where Spark has removed its commit file."""
    clock, at = stage.clock, {}
    first_version(stage)
    at["last_commit"] = clock.now()

    def later(phase: str) -> Any:
        clock.advance(1)
        at[phase] = clock.now()
        return clock.now()

    end = QueryEnd(later("barrier_certain"), later("query_ended"))
    later("snapshot")
    manifest = stage.keep()
    later("old_ended")
    stage.say(Stopped, snapshot_id=manifest.snapshot_id, queries={}, ends={"counts": end})
    stage.end()
    later("deployed")
    stage.deploy("print('v2')\n", start="restore")
    later("claimed")
    stage.say(Claimed, "d-0002", host="here", pid=1, fencing_token=2)
    fork_at, prepared_at = later("fork"), later("prepared")
    later("first_start")
    stage.say(
        QueryStarted, "d-0002", query_name="counts", query_id="id", query_run_id="run", how="restored", batch_id=3,
        planned_batch_id=None, repairs=(), sink="kafka", trigger="default", output_mode="append",
        built_at=fork_at, prepared_at=prepared_at,
    )  # fmt: skip
    triggered_at = later("triggered")
    later("batch_planned")
    later("first_batch_run")
    stage.run_batches(9, deployment_id="d-0002")
    removed(stage, up_to=5)
    committed_at = later("first_commit")
    first = FirstBatch(
        4, later("seen"), committed_at, triggered_at, {"walCommit": 600, "queryPlanning": 400, "addBatch": 1000}, 7
    )
    beat = QueryBeat(9, clock.now(), is_active=True)
    reports(stage, first, counts=beat)
    (one,) = found(stage)
    assert [mark.phase for mark in one.marks] == [each for each in PHASES if each not in ("last_idle", "found_nothing")]
    assert {mark.phase: mark.at for mark in one.marks} == {mark.phase: at[mark.phase] for mark in one.marks}
    clocks = {mark.phase: mark.clock for mark in one.marks}
    assert {phase for phase, name in clocks.items() if name == "store"} == {"last_commit", "first_commit"}
    assert {phase for phase, name in clocks.items() if name == "controller"} == {"deployed"}
    assert (one.seconds, one.idle_seconds, one.state_load_ms) == (13.0, 1.0, 7)


def test_heartbeats_tell_the_times_that_a_store_does_not(tmp_path: Path) -> None:
    """When the agent saw the commits: both ends by the same kind of clock."""
    stage = Stage(tmp_path)
    first_version(stage)
    committed_at = stage.clock.now()
    stage.clock.advance(2)
    stage.beat(counts=QueryBeat(3, committed_at, is_active=True))
    stop(stage)
    next_version(stage, 2)
    stage.run_batches(4, deployment_id="d-0002")
    assert [one.seconds for one in found(stage)] == [None]
    stage.clock.advance(3)
    reports(stage, FirstBatch(4, stage.clock.now() - timedelta(seconds=1)))
    assert [one.seconds for one in found(stage)] == [4.0]


def test_a_deployment_that_committed_at_a_time_not_known_is_not_down(stage: Stage) -> None:
    """An older agent kept no first batch, and Spark has removed that commit: the downtime has ended at an unknown time,
    and the next one counts from its own last commit."""
    first_version(stage)
    stage.clock.advance(2)
    stop(stage)
    next_version(stage, 2)
    stage.clock.advance(4)
    stage.run_batches(20, deployment_id="d-0002")
    removed(stage, up_to=12)
    stage.beat("d-0002", counts=QueryBeat(20, stage.clock.now(), is_active=True))
    (one,) = found(stage)
    assert (one.to_deployment_id, one.until_at, one.seconds, one.has_ended) == ("d-0002", None, None, True)
    assert one.to_json()["has_ended"] is True
    stage.clock.advance(3)
    stop(stage, "d-0002")
    next_version(stage, 3, last=20)
    stage.run_batches(21, deployment_id="d-0003")
    assert [(one.to_deployment_id, one.seconds) for one in found(stage)] == [("d-0002", None), ("d-0003", 3.0)]


def test_a_first_batch_that_no_driver_saw_has_the_time_of_the_store_alone(tmp_path: Path) -> None:
    """A later attempt noted it: its own clock does not count."""
    stage = Stage(tmp_path)
    first_version(stage)
    stage.beat(counts=QueryBeat(3, stage.clock.now(), is_active=True))
    stop(stage)
    next_version(stage, 2)
    stage.run_batches(4, deployment_id="d-0002")
    stage.clock.advance(3)
    reports(stage, FirstBatch(4, stage.clock.now(), stage.clock.now()), attempt=2)
    assert [(one.seconds, one.has_ended) for one in found(stage)] == [(None, True)]


@pytest.mark.parametrize(("trigger", "downtimes"), [("available_now", 0), ("default", 1)])
def test_a_run_that_its_trigger_has_ended_begins_no_downtime(stage: Stage, trigger: str, downtimes: int) -> None:
    """What is after it is the time between two runs."""
    stage.deploy()
    stage.come_to_life()
    stage.start_query(trigger=trigger)
    stage.run_batches(3)
    manifest = stage.keep("stopped")
    positions = {name: query.position for name, query in manifest.queries.items()}
    stage.say(Finished, snapshot_id=manifest.snapshot_id, queries=positions)
    stage.end()
    stage.clock.advance(3_600)
    deployment_id = next_version(stage, 2)
    stage.run_batches(4, deployment_id=deployment_id)
    assert len(found(stage)) == downtimes
    (period,) = lineage_of(stage.home, STREAM).not_running
    assert period.between_runs is (downtimes == 0)


def finds_nothing(
    stage: Stage, deployment_id: str, first: datetime | None = None, batch_id: int | None = 3
) -> datetime:
    """A heartbeat now: the newest trigger of the query found no input; the first such trigger, before any batch."""
    now = stage.clock.now()
    beat = QueryBeat(batch_id, None, is_active=True, idle_triggers=1, is_idle=True)
    idles = {"counts": first or now}
    stage.control.put_heartbeat(Heartbeat(STREAM, deployment_id, 1, now, {"counts": beat}, first_idles=idles))
    return first or now


def test_a_version_that_runs_with_nothing_to_commit_is_not_down(stage: Stage) -> None:
    """Its downtime ends with the first trigger that finds nothing; the batch that comes nine minutes later changes
    nothing of that."""
    first_version(stage)
    stage.clock.advance(1)
    stop(stage)
    next_version(stage, 2)
    assert found(stage)[0].seconds is None
    stage.clock.advance(3)
    idle_at = finds_nothing(stage, "d-0002")
    for _ in range(2):
        (one,) = found(stage)
        assert (one.until_at, one.seconds, one.downtime_seconds, one.has_ended) == (idle_at, 4.0, 4.0, True)
        assert one.marks[-1] == Mark("found_nothing", idle_at, "driver")
        assert "first_commit" not in {mark.phase for mark in one.marks}
        stage.clock.advance(540)
        stage.run_batches(4, deployment_id="d-0002")
    audit = lineage_of(stage.home, STREAM).to_json()
    assert [(one["seconds"], one["has_found_nothing"]) for one in audit["downtimes"]] == [(4.0, True)]  # type: ignore[attr-defined]


def test_a_batch_that_comes_before_the_first_trigger_without_one_ends_it(stage: Stage) -> None:
    """The agent may see both at once."""
    first_version(stage)
    stop(stage)
    next_version(stage, 2)
    stage.clock.advance(2)
    stage.run_batches(4, deployment_id="d-0002")
    stage.clock.advance(5)
    finds_nothing(stage, "d-0002", batch_id=4)
    (one,) = found(stage)
    assert (one.seconds, one.has_found_nothing) == (2.0, False)


def test_a_version_that_had_nothing_to_commit_begins_the_next_downtime(stage: Stage) -> None:
    """As the query ran until then, the time since the commit of the version before is none of it."""
    first_version(stage)
    stop(stage)
    next_version(stage, 2)
    first = finds_nothing(stage, "d-0002")
    stage.clock.advance(600)
    last = stage.clock.now()
    finds_nothing(stage, "d-0002", first)
    stage.clock.advance(5)
    stop(stage, "d-0002")
    next_version(stage, 3)
    stage.clock.advance(2)
    stage.run_batches(4, deployment_id="d-0003")
    _, one = found(stage)
    assert (one.from_deployment_id, one.from_at, one.seconds, one.marks[0].phase) == ("d-0002", last, 7.0, "last_idle")


def test_what_an_old_version_ran_with_nothing_to_read_is_no_downtime(stage: Stage) -> None:
    """Also where it was killed, so that no barrier shows it: its last heartbeat does."""
    first_version(stage)
    stage.clock.advance(600)
    beat = QueryBeat(3, stage.clock.now(), is_active=True, is_idle=True)
    stage.control.put_heartbeat(Heartbeat(STREAM, "d-0001", 1, stage.clock.now(), {"counts": beat}))
    stage.clock.advance(5)
    stage.keep("stopped")
    stage.end(state="gone")
    next_version(stage, 2)
    stage.clock.advance(3)
    stage.run_batches(4, deployment_id="d-0002")
    (one,) = found(stage)
    assert (one.seconds, one.idle_seconds, one.downtime_seconds) == (608.0, 600.0, 8.0)
