"""What happened to a stream as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_streamstate.control.registers import AlertBook
from airflow_streamstate.controller.upgrade.forward import finish
from airflow_streamstate.errors import StreamNotFoundError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Failed, SnapshotReady, StreamCursor, StreamEvent
from airflow_streamstate.protocol.policies import Alert, Restarts, Told
from airflow_streamstate.protocol.positions import QueryBeat
from support.sim_stage import STREAM, Stage
from support.upgrade_stage import UpgradeStage

BEGINNING = StreamCursor("", 0, 0, has_ended=False)


class Reader:
    """A reader whose cursor goes through JSON each time, as through a database."""

    def __init__(self, stage: Stage, cursor: StreamCursor = BEGINNING) -> None:
        self._events = stage.controller.stream_events
        self.cursor = cursor
        self.found: list[StreamEvent] = []

    def read(self) -> list[str]:
        """The kinds of what is new."""
        new, cursor = self._events.since(STREAM, StreamCursor.from_json(json.loads(json.dumps(self.cursor.to_json()))))
        self.cursor = cursor
        self.found += new
        return [event.kind for event in new]


def a_life(stage: Stage) -> Iterator[None]:
    """A snapshot, a driver that is killed, its restart, and a stop; then a second deployment."""
    stage.deploy()
    yield
    stage.come_to_life(queries=("counts",))
    stage.beat(counts=QueryBeat(1, stage.clock.now(), is_active=True))
    yield
    stage.say(SnapshotReady, snapshot_id="d-0001-live-000001", snapshot_kind="live", queries={})
    yield
    stage.end(state="gone")
    yield
    stage.controller.resume(STREAM, reason="its driver was killed")
    yield
    stage.stopped(attempt=2)
    stage.end(attempt=2)
    yield
    stage.deploy("print('v2')\n")
    yield
    stage.come_to_life("d-0002", queries=("counts",))
    yield


def test_a_reader_that_was_away_reads_the_same_as_one_that_was_there(stage: Stage) -> None:
    """But for what only shows while it is so. Each event comes once, in order, under the same id."""
    there = Reader(stage)
    for number, _ in enumerate(a_life(stage)):
        if number:
            there.read()
            assert there.read() == []
    away = Reader(stage)
    away.read()
    assert [event.kind for event in there.found] == ["healthy", "snapshot_ready", "failed", "restarted", "stopped"]
    assert [event.event_id for event in away.found] == [one.event_id for one in there.found if one.kind != "healthy"]
    assert len({event.event_id for event in there.found}) == len(there.found)


def test_a_reader_that_begins_now_is_told_nothing_of_before(stage: Stage) -> None:
    """And everything of after."""
    life = a_life(stage)
    for _ in range(4):
        next(life)
    reader = Reader(stage, stage.controller.stream_events.present(STREAM))
    assert reader.read() == []
    for _ in life:
        reader.read()
    assert [event.kind for event in reader.found] == ["restarted", "stopped"]


def test_what_is_said_of_a_query_that_dies(stage: Stage) -> None:
    """The stream continues without it."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    reader = Reader(stage, stage.controller.stream_events.present(STREAM))
    stage.query_failed()
    assert reader.read() == ["query_died", "degraded"]
    assert reader.found[0].text == "query counts has failed: Unlucky: batch of bad luck"
    assert reader.found[0].facts == {"attempt": 1, "query_name": "counts", "batch_id": 7}


def test_secrets_are_in_no_event(stage: Stage) -> None:
    """Those of the deployment that speaks, also after another one has become current."""
    stage.deploy(conf={"spark.a.secret": "hunter2-hunter2"}, allow_literal_secrets=True)
    stage.come_to_life()
    stage.say(Failed, error="RuntimeError: hunter2-hunter2", cause="RuntimeError: hunter2-hunter2")
    stage.end()
    reader = Reader(stage)
    assert reader.read() == ["failed"]
    assert reader.found[0].text == "RuntimeError: ***"


def test_restarts_that_were_given_up_are_told_once(stage: Stage) -> None:
    """As the watcher has recorded it."""
    stage.deploy()
    stage.come_to_life()
    stage.end(state="gone")
    reader = Reader(stage)
    assert reader.read() == ["failed"]
    gave_up = Restarts("d-0001", 1, False, stage.clock.now(), "here", gave_up="5 restarts in an hour")
    stage.control.update_register(lambda register: replace(register, restarts=gave_up), by="a watcher")
    assert reader.read() == ["gave_up"]
    assert reader.read() == []
    assert reader.found[-1].text == "5 restarts in an hour"


def test_an_alert_is_told_once_for_each_time_that_it_is_raised(stage: Stage) -> None:
    """Whichever audience is notified."""
    stage.deploy()
    stage.come_to_life()
    reader = Reader(stage, stage.controller.stream_events.present(STREAM))
    book = AlertBook(stage.control)
    for number, audiences in enumerate((["watch"], ["watch", "airflow"], [], ["airflow"])):
        for audience in ("watch", "airflow"):
            alert = Alert(f"{audience}-{number}", "lag", "counts", stage.clock.now(), "behind by 9 files")
            book.record(book.read(), audience, Told("d-0001", 1, standing=(alert,) if audience in audiences else ()))
        reader.read()
    assert [event.kind for event in reader.found] == ["lagging", "lagging"]
    assert len({event.event_id for event in reader.found}) == 2


@pytest.mark.parametrize("phase", ["upgraded", "rolled_back", "failed"])
def test_the_end_of_an_upgrade_is_told_once(upgraded: UpgradeStage, phase: str) -> None:
    """Also by a reader that was away from before its beginning."""
    reader = Reader(upgraded.stage, upgraded.stage.controller.stream_events.present(STREAM))
    view = upgraded.to_started()
    tools, state = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    finish(tools, state, phase, "so it is")  # type: ignore[arg-type]
    assert reader.read().count(phase) == 1
    assert reader.read() == []
    told = next(event for event in reader.found if event.event_id == f"{STREAM}/{view.upgrade_id}/{phase}")
    assert told.facts["upgrade_id"] == view.upgrade_id


def test_an_upgrade_that_touched_nothing_is_no_event(upgraded: UpgradeStage) -> None:
    """The stream runs as before."""
    reader = Reader(upgraded.stage, upgraded.stage.controller.stream_events.present(STREAM))
    view = upgraded.begin()
    tools, state = upgraded.upgrades._tools(STREAM, view.upgrade_id)
    finish(tools, state, "refused", "no")
    assert reader.read() == []


def test_a_deployment_that_was_never_recorded_hides_no_event(stage: Stage) -> None:
    """A deploy that died early, and a prune, leave folders without a record."""
    stage.deploy()
    reader = Reader(stage, stage.controller.stream_events.present(STREAM))
    stage.stopped()
    stage.end()
    stage.deploy("print('v2')\n")
    stage.store.delete(layout.spec_key(STREAM, "d-0001"))
    stage.come_to_life("d-0002", queries=("counts",))
    stage.say(Failed, "d-0002", error="RuntimeError: no", cause="RuntimeError: no")
    assert reader.read() == ["failed"]


def test_a_damaged_upgrade_hides_no_event(upgraded: UpgradeStage) -> None:
    """It is reported elsewhere."""
    reader = Reader(upgraded.stage, upgraded.stage.controller.stream_events.present(STREAM))
    view = upgraded.begin()
    upgraded.stage.store.put(layout.upgrade_key(STREAM, view.upgrade_id), b"no JSON")
    upgraded.stage.say(Failed, error="RuntimeError: no", cause="RuntimeError: no")
    assert reader.read() == ["failed"]


def test_there_is_nothing_of_a_stream_that_is_not_there(stage: Stage) -> None:
    """As for every verb."""
    stage.deploy()
    with pytest.raises(StreamNotFoundError):
        stage.controller.stream_events.since("flights", BEGINNING)


@pytest.mark.parametrize("raw", [None, [], {}, {"deployment_id": "d-0001"}, {**BEGINNING.to_json(), "number": "x"}])
def test_what_is_no_cursor_is_refused(raw: object) -> None:
    """It came through a database."""
    with pytest.raises(ValueError, match="no cursor"):
        StreamCursor.from_json(raw)
