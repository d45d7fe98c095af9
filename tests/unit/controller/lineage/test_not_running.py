"""The periods in which nothing ran."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_streamstate.controller.observe.handovers import not_running
from airflow_streamstate.controller.observe.lineage import lineage_of
from airflow_streamstate.protocol.events import Claimed, Drained, Draining, Event, Failed, Finished, Ignored, Stopped
from airflow_streamstate.protocol.positions import QueryEnd
from support.sim_stage import STREAM, Stage


def said(stage: Stage) -> list[Event]:
    """The events of both deployments."""
    entries = [entry for one in ("d-0001", "d-0002") for entry in stage.control.journal(one).events()]
    return [entry.event for entry in entries if entry.event is not None]


def test_after_a_kill_no_query_ran_for_at_most_so_long(stage: Stage) -> None:
    """A driver without a terminal event ended at an unknown time, not before its last heartbeat."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    stage.clock.sleep(86_400)
    stage.beat()
    stage.end(state="gone")
    stage.clock.sleep(5)
    stage.controller.resume(STREAM)
    stage.come_to_life(attempt=2, queries=("counts",))
    beat = stage.control.heartbeat("d-0001")
    (still,) = not_running(said(stage), {"d-0001": beat})
    assert lineage_of(stage.home, STREAM).not_running == (still,)
    assert still.at_most
    assert still.until_at - still.from_at < timedelta(seconds=60)


def test_the_heartbeat_of_a_killed_attempt_counts_where_the_next_ones_took_its_place(stage: Stage) -> None:
    """A resume overwrites the last sign of life; its claim has reported when that was."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.clock.sleep(60)
    stage.beat()
    last_at = stage.clock.now()
    stage.end(state="gone")
    stage.clock.sleep(88)
    stage.controller.resume(STREAM)
    stage.say(Claimed, attempt=2, host="here", pid=2, fencing_token=1, earlier_attempt=1, earlier_beat_at=last_at)
    stage.start_query(attempt=2)
    stage.beat(attempt=2)
    (still,) = lineage_of(stage.home, STREAM).not_running
    assert (still.from_at, still.at_most, still.to_json()["seconds"]) == (last_at, True, 88.0)


def test_no_query_ran_from_the_end_of_the_last_one_on(stage: Stage) -> None:
    """Not from the last event of the driver, which comes after the final snapshot."""
    stage.deploy()
    stage.come_to_life(queries=("counts", "raw"))
    ends = {"raw": QueryEnd(ended_at=stage.clock.now())}
    stage.clock.sleep(2)
    ends["counts"] = QueryEnd(ended_at=stage.clock.now())
    stage.clock.sleep(5)
    stage.say(Stopped, snapshot_id="s", queries={}, ends=ends)
    stage.clock.sleep(3)
    stage.start_query(deployment_id="d-0002")
    (still,) = not_running(said(stage), {})
    assert still.to_json()["seconds"] == 8.0


def test_an_order_that_was_overtaken_is_no_sign_of_life(stage: Stage) -> None:
    """A deploy reports its end in the name of the driver that never started it, long after that was killed."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    stage.controller.order("drain", STREAM)
    stage.beat()
    last_at = stage.clock.now()
    stage.end(state="gone")
    stage.clock.sleep(3_600)
    stage.deploy("print('v2')\n", start="restore")
    assert any(isinstance(entry.event, Ignored) for entry in stage.control.journal("d-0001").events())
    stage.come_to_life("d-0002", queries=("counts",))
    (still,) = lineage_of(stage.home, STREAM).not_running
    assert (still.from_at, still.at_most) == (last_at, True)


def test_a_flush_of_a_stream_that_stood_hides_no_period_without_a_query(stage: Stage) -> None:
    """Its attempt runs no query of the script, and the batch that flushes is one all the same."""
    stage.deploy()
    stage.stopped()
    stage.clock.sleep(100)
    stage.say(Draining, attempt=2, command_id="c-1", snapshot_id=None, flush_batch_ids={"counts": 4})
    stage.clock.sleep(10)
    stage.say(Drained, attempt=2, command_id="c-1", command_number=1, snapshot_id="s", queries={})
    stage.clock.sleep(20)
    stage.start_query(deployment_id="d-0002")
    found = [one for one in not_running(said(stage), {}) if one.until_at]
    assert [(one.after, one.before) for one in found] == [
        ("d-0001 attempt 1 (stopped)", "d-0001 attempt 2"),
        ("d-0001 attempt 2 (drained)", "d-0002 attempt 1"),
    ]
    assert [one.until_at and (one.until_at - one.from_at).total_seconds() for one in found] == [100, 20]


@pytest.mark.parametrize(
    ("triggers", "ends_well", "between_runs"),
    [
        (("available_now", "once"), True, True),
        (("available_now", "default"), True, False),
        (("available_now", "once"), False, False),
    ],
)
def test_between_two_runs_that_end_by_themselves_nothing_was_to_run(
    stage: Stage, triggers: tuple[str, str], ends_well: bool, between_runs: bool
) -> None:
    """Of every query of the script; a run that failed is no such end."""
    stage.deploy()
    stage.come_to_life()
    for name, trigger in zip(("counts", "raw"), triggers, strict=True):
        stage.start_query(name, trigger=trigger)
    if ends_well:
        stage.say(Finished, snapshot_id="s", queries={})
    else:
        stage.say(Failed, error="ValueError: boom", traceback="")
    stage.clock.sleep(3_600)
    (lasting,) = not_running(said(stage), {})
    assert (lasting.between_runs, lasting.until_at) == (between_runs, None)
    stage.start_query(attempt=2, trigger="available_now")
    (over,) = not_running(said(stage), {})
    assert (over.between_runs, over.to_json()["seconds"]) == (between_runs, 3_600.0)
    assert over.to_json()["between_runs"] is between_runs
