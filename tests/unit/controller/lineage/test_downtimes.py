"""The downtime of each query at each handover, and what lies between its two commits."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.controller.lineage.downtimes import downtime_json
from airflow_streamstate.controller.lineage.lineage import lineage_of
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.downtimes import PHASES, Downtime, FirstBatch, QueryEnd
from airflow_streamstate.protocol.events import Claimed, Finished, QueryStarted, Stopped
from airflow_streamstate.protocol.heartbeat import Heartbeat, QueryBeat
from support.clocked_store import ClockedStore
from support.fake_clock import FakeClock
from support.sim_stage import STREAM, Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A stream whose store says when its objects came to be."""
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
    """The last word of a deployment whose queries have all committed."""
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
    assert [mark.phase for mark in one.marks] == list(PHASES)
    assert {mark.phase: mark.at for mark in one.marks} == {phase: at[phase] for phase in PHASES}
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
    assert downtime_json(one)["has_ended"] is True
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
    """What lies behind it is the time between two runs."""
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
