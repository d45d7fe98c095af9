"""Status: the state of a stream, by one poll."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.errors import DataError
from airflow_streamstate.launch.interface import LaunchHandle, LaunchStatus
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Failed, QueryFailed, SnapshotReady
from airflow_streamstate.protocol.positions import QueryBeat, SourceLag
from support.sim_stage import STREAM, Stage


def test_status_shows_the_last_sign_of_life(stage: Stage) -> None:
    """Queries, ages and the last event are those of heartbeat and events."""
    stage.deploy(version_label="one")
    stage.come_to_life(queries=("counts",))
    stage.beat(counts=QueryBeat(7, stage.clock.now(), True, idle_triggers=2, state_rows=3))
    stage.say(SnapshotReady, snapshot_id="s-1", snapshot_kind="live", queries={})
    stage.clock.advance(4)
    status = stage.controller.status(STREAM)
    assert (status.state, status.version_label, status.application_id) == ("running", "one", "local-1")
    assert (status.heartbeat_age_seconds, status.snapshot_age_seconds, status.snapshot_id) == (4, 4, "s-1")
    assert (status.queries["counts"].batch_id, status.queries["counts"].is_active) == (7, True)
    assert (status.last_event.kind, status.last_event_number) == ("SnapshotReady", 4)


def test_status_of_what_ended_shows_where_it_ended(stage: Stage) -> None:
    """The positions of the end (1a.4); times and rows of an earlier batch are not shown alongside them."""
    stage.deploy()
    stage.beat(counts=QueryBeat(1, stage.clock.now(), True, state_rows=2))
    stage.stopped(3)
    query = stage.controller.status(STREAM).queries["counts"]
    assert (query.batch_id, query.is_active, query.state_rows, query.committed_at) == (3, False, None, None)


def test_batches_that_look_skipped_are_shown_while_it_runs_and_after_its_end(stage: Stage) -> None:
    """The alarm of a sink that may have passed over rows stays after the last heartbeat (Law 14)."""
    stage.deploy()
    stage.beat(counts=QueryBeat(7, None, True, skipped_batches=2))
    assert stage.controller.status(STREAM).queries["counts"].skipped_batches == 2
    stage.stopped(9)
    query = stage.controller.status(STREAM).queries["counts"]
    assert (query.batch_id, query.to_json()["skipped_batches"]) == (9, 2)


def test_a_heartbeat_of_an_earlier_attempt_or_a_damaged_one_has_no_age(stage: Stage) -> None:
    """The age is that of this attempt (1a.8); a beacon that cannot be read hides nothing else. (Law 7)"""
    stage.deploy()
    stage.stopped()
    stage.beat()
    stage.controller.resume(STREAM)
    assert stage.controller.status(STREAM).heartbeat_age_seconds is None
    stage.store.put(layout.heartbeat_key(STREAM, "d-0001"), b"\xff")
    assert stage.controller.status(STREAM).heartbeat_age_seconds is None


def test_the_age_of_a_snapshot_is_that_of_the_start_until_there_is_a_newer(stage: Stage) -> None:
    """A restored deployment has the snapshot that it started from."""
    stage.deploy()
    event = stage.stopped()
    stage.deploy("print('v2')\n")
    stage.clock.advance(5)
    status = stage.controller.status(STREAM)
    assert (status.snapshot_id, status.snapshot_age_seconds) == (event.snapshot_id, 5)


def test_one_damaged_stream_does_not_hide_the_others(stage: Stage) -> None:
    """A stream whose objects cannot be read is listed with its problem. (Law 7)"""
    stage.deploy()
    stage.store.put(layout.register_key("broken"), b"{")
    found = {status.stream_id: status for status in stage.controller.statuses()}
    assert found[STREAM].state == "launching"
    assert (found["broken"].state, found["broken"].attempt) == ("unreadable", 0)
    assert "stream.json" in found["broken"].error


def test_a_stream_whose_current_record_is_gone_hides_no_other(stage: Stage) -> None:
    """It is listed with the key that is missing; `status` raises with the same key. (Law 7)"""
    stage.deploy()
    key = layout.spec_key(STREAM, "d-0001")
    stage.store.delete(key)
    controller = Controller(stage.home, stage.launcher, stage.clock)  # ours remembers the record
    (status,) = controller.statuses()
    assert (status.state, key in status.error) == ("unreadable", True)
    with pytest.raises(DataError, match="record of the current deployment is gone") as raised:
        controller.status(STREAM)
    assert raised.value.context["key"] == key


def test_a_last_word_that_cannot_be_read_is_named(stage: Stage) -> None:
    """Without it the driver seems to have ended in silence: the status names the object. (Law 7)"""
    stage.deploy()
    stage.come_to_life()
    stage.end()
    assert stage.controller.status(STREAM).error == "the driver has ended without a last event: it is exited"
    key = layout.event_key(STREAM, "d-0001", 3)
    stage.store.put(key, b'{"kind": "Stop')
    stage.store.put(layout.command_key(STREAM, "d-0001", 1), b"{")
    status = stage.controller.status(STREAM)
    assert status.error.endswith("it is exited; event 3 cannot be read, and may be that word")
    assert list(status.unreadable) == [key, layout.command_key(STREAM, "d-0001", 1)]
    assert all(status.unreadable.values())
    assert status.to_json()["unreadable"] == status.unreadable


def test_how_far_a_query_is_behind_is_said_as_of_when_and_only_while_it_runs(stage: Stage) -> None:
    """The lag that a dead driver reported is not shown as the lag of now."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    lags = (SourceLag("file /in", 0, "files", 0.0),)
    beat = QueryBeat(7, stage.clock.now(), True, lags=lags, lags_at=stage.clock.now(), batch_seconds=2.5)
    stage.clock.advance(3)
    stage.beat(counts=beat)
    stage.clock.advance(2)
    running = stage.controller.status(STREAM).queries["counts"].to_json()
    assert (running["behind"], running["behind_age_seconds"], running["seconds_to_zero"]) == ("nothing behind", 5, 0.0)
    assert running["batch_seconds"] == 2.5
    stage.end(state="gone")  # without a last event
    dead = stage.controller.status(STREAM).queries["counts"].to_json()
    assert [dead[name] for name in ("behind", "behind_age_seconds", "seconds_to_zero", "caught_up")] == [None] * 4
    assert (dead["is_active"], dead["lags_at"], len(stage.seen().events)) == (False, running["lags_at"], 3)


def test_a_driver_elsewhere_that_cannot_be_asked_is_said_to_be_unknown(stage: Stage) -> None:
    """By its heartbeats it runs; its place is shown, and why its driver's state is unknown, without secrets (1a.8)."""
    stage.deploy()
    stage.come_to_life()
    handle = LaunchHandle("kubernetes", "d-0001-a0001", {"namespace": "streams", "pod": "p-1"})
    silent = LaunchStatus("unknown", None, "the cluster does not answer (ReadTimeoutError)", stage.clock.now())
    seen = replace(stage.seen(), handle=handle, launch_status=silent)
    found = stage.controller._watching.status(seen)
    assert found.state == "running"
    assert found.driver.startswith("kubernetes: namespace streams, pod p-1")
    assert found.driver.endswith("; unknown whether it runs: the cluster does not answer (ReadTimeoutError)")
    told = replace(silent, state="running", reason="on node n-1")
    assert "unknown" not in stage.controller._watching.status(replace(seen, launch_status=told)).driver


def test_status_of_a_stream_without_a_last_word_shows_what_is_committed(stage: Stage) -> None:
    """The heartbeat may be older than the last batches, and the driver died or failed after them."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.beat(counts=QueryBeat(0, stage.clock.now(), True, state_rows=3))
    stage.run_batches(3)
    assert stage.controller.status(STREAM).queries["counts"].batch_id == 0
    stage.say(Failed, error="ValueError: boom")
    stage.end()
    query = stage.controller.status(STREAM).queries["counts"]
    assert (query.batch_id, query.committed_at, query.state_rows) == (3, None, None)


def test_a_failed_query_shows_the_batch_that_its_failure_names(stage: Stage) -> None:
    """The driver has read it in the log; the heartbeat is older."""
    stage.deploy()
    stage.come_to_life(queries=("counts", "raw"))
    stage.beat(counts=QueryBeat(0, None, True), raw=QueryBeat(0, None, True))
    stage.say(
        QueryFailed, query_name="counts", query_id="i", query_run_id="r", batch_id=3, planned_batch_id=4, error="boom"
    )
    queries = stage.controller.status(STREAM).queries
    assert (queries["counts"].batch_id, queries["counts"].error, queries["raw"].batch_id) == (3, "boom", 0)
