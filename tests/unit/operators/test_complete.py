"""``CompletePartitionsOperator``: each complete span of event time once, behind the newest recorded event."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException, Asset

from airflow_streamstate.assets import partitions_asset
from airflow_streamstate.operators.complete import CompletePartitionsOperator
from support.airflow_fixtures import MakeContext
from support.airflow_streams import NamedHome
from support.event_hours import HOUR, Asked, ByAsset, Recorded, commits_through
from support.scripted_stream import ScriptedAttempt

ASSET = partitions_asset("streamstate_default", "flights")
CURSOR = Asset(f"{ASSET.uri}/emitted")
NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


@pytest.fixture
def attempt(named: NamedHome) -> ScriptedAttempt:
    return named.stream().deploy().claim().started()


def emit(context: MakeContext, recorded: Recorded, **more: Any) -> Asked:
    """One run of the task; what it asks Airflow to record is recorded, as when it succeeds."""
    task = CompletePartitionsOperator(task_id="emit", stream_id="flights", asset=ASSET, **more)
    asked, cursor = Asked(), Asked()
    said: Any = {
        **context(),
        "inlet_events": ByAsset(**{CURSOR.uri: recorded}),
        "outlet_events": ByAsset(**{ASSET.uri: asked, CURSOR.uri: cursor}),
    }
    result = task.execute(said)
    assert result["partitions"] == asked.extra["partitions"]
    recorded.add(cursor.extra)
    assert cursor.keys == []
    return asked


def test_each_hour_is_emitted_once(attempt: ScriptedAttempt, context: MakeContext) -> None:
    """The first run emits the newest complete one; a run with nothing new emits nothing, so it is skipped."""
    recorded = Recorded()
    with pytest.raises(AirflowSkipException, match="complete through None"):
        emit(context, recorded)
    commits_through(attempt, 0, NOON + HOUR + timedelta(minutes=20))
    first = emit(context, recorded)
    assert first.keys == ["2026-03-01T12:00:00"]
    assert first.extra == {
        "stream_id": "flights", "query_name": None, "complete_through": "2026-03-01T13:00:00.000Z",
        "partitions": ["2026-03-01T12:00:00"],
    }  # fmt: skip
    with pytest.raises(AirflowSkipException, match="no partition is newly complete"):
        emit(context, recorded)
    commits_through(attempt, 1, NOON + 4 * HOUR)
    assert emit(context, recorded).keys == ["2026-03-01T13:00:00", "2026-03-01T14:00:00", "2026-03-01T15:00:00"]


def test_what_was_not_recorded_is_emitted_again(attempt: ScriptedAttempt, context: MakeContext) -> None:
    """A try that failed after it had asked: nothing of it was recorded."""
    recorded = Recorded()
    commits_through(attempt, 0, NOON + HOUR)
    emit(context, Recorded())
    assert emit(context, recorded).keys == ["2026-03-01T12:00:00"]


def test_other_events_do_not_hide_the_cursor(attempt: ScriptedAttempt, context: MakeContext) -> None:
    """However many, of a different query or without an extra."""
    recorded = Recorded()
    commits_through(attempt, 0, NOON + HOUR)
    emit(context, recorded)
    for _ in range(120):
        recorded.add(None)
        recorded.add({"stream_id": "flights", "query_name": "other", "complete_through": "2026-03-09T00:00:00Z"})
    commits_through(attempt, 1, NOON + 2 * HOUR)
    assert emit(context, recorded).keys == ["2026-03-01T13:00:00"]


def test_the_first_one_can_be_named_and_a_run_emits_so_many(attempt: ScriptedAttempt, context: MakeContext) -> None:
    """A stream with a past: the next run continues."""
    recorded = Recorded()
    commits_through(attempt, 0, NOON + HOUR)
    more = {"first_partition_at": "2026-03-01T09:00:00Z", "max_partitions": "3"}
    assert emit(context, recorded, **more).keys == [f"2026-03-01T{hour:02}:00:00" for hour in (9, 10, 11)]
    assert emit(context, recorded, **more).keys == ["2026-03-01T12:00:00"]


def test_length_lateness_and_key_are_the_dags(attempt: ScriptedAttempt, context: MakeContext) -> None:
    """A day is complete when the watermark is an hour behind its end."""
    more = {"partition_seconds": 86_400, "lateness_seconds": 3600, "key_format": "%Y-%m-%d"}
    commits_through(attempt, 0, datetime(2026, 3, 2, 0, 59, tzinfo=timezone.utc))
    assert emit(context, Recorded(), **more).keys == ["2026-02-28"]
    commits_through(attempt, 1, datetime(2026, 3, 2, 1, 0, tzinfo=timezone.utc))
    assert emit(context, Recorded(), **more).keys == ["2026-03-01"]


def test_before_airflow_3_3_one_event_names_all_that_is_new(attempt: ScriptedAttempt, context: MakeContext) -> None:
    """There an event has no partition key."""
    recorded = Recorded()
    commits_through(attempt, 0, NOON + 2 * HOUR)
    task = CompletePartitionsOperator(
        task_id="emit", stream_id="flights", asset=ASSET, first_partition_at="2026-03-01T12:00:00Z"
    )
    outlet = type("Outlet", (), {"extra": {}})()
    cursor = type("Outlet", (), {"extra": {}})()
    said: Any = {
        **context(),
        "inlet_events": ByAsset(**{CURSOR.uri: recorded}),
        "outlet_events": ByAsset(**{ASSET.uri: outlet, CURSOR.uri: cursor}),
    }
    task.execute(said)
    assert outlet.extra["partitions"] == ["2026-03-01T12:00:00", "2026-03-01T13:00:00"]


@pytest.mark.parametrize("more", [{"max_partitions": 0}, {"partition_seconds": 0}, {"first_partition_at": "noon"}])
def test_a_field_that_cannot_be_meant_is_a_mistake(
    attempt: ScriptedAttempt, context: MakeContext, more: dict[str, Any]
) -> None:
    """Reported with its name; nothing is emitted."""
    commits_through(attempt, 0, NOON)
    with pytest.raises(AirflowFailException, match=next(iter(more))):
        emit(context, Recorded(), **more)


def test_the_cursor_is_an_asset_of_its_own_and_the_uri_names_the_home_and_the_stream() -> None:
    """Airflow gives no events of an asset while a run on one is queued. Other inlets and outlets are kept."""
    other = partitions_asset("streams_prod", "orders")
    task = CompletePartitionsOperator(task_id="emit", stream_id="flights", asset=ASSET, inlets=[other])
    assert (task.inlets, task.outlets) == ([other, CURSOR], [ASSET, CURSOR])
    assert (ASSET.uri, other.uri) == (
        "streamstate://streamstate_default/flights/complete",
        "streamstate://streams_prod/orders/complete",
    )
