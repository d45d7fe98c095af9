"""The trigger of asset watchers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.events import StreamCursor
from airflow_streamstate.triggers.asset_events import StreamEventTrigger
from support.airflow_streams import CONN_ID, NamedHome


class AssetState:
    """What Airflow 3.3 keeps with an asset: JSON in its database."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    async def aget(self, key: str, default: Any = None) -> Any:
        return json.loads(self.kept[key]) if key in self.kept else default

    async def aset(self, key: str, value: Any) -> None:
        self.kept[key] = json.dumps(value)


def trigger(state: AssetState | None = None, **named: Any) -> StreamEventTrigger:
    made = StreamEventTrigger(stream_id="flights", streamstate_conn_id=CONN_ID, poll_interval_seconds=0.05, **named)
    made.asset_state_store = state  # type: ignore[assignment]
    return made


def told(one: StreamEventTrigger, count: int, meanwhile: Callable[[], None] = lambda: None) -> list[str]:
    """The kinds of the next events, where ``meanwhile`` happens after the trigger has started; then it is killed."""

    async def story() -> list[str]:
        found: list[str] = []
        has_looked, look = asyncio.Event(), one._look

        async def looked(*arguments: Any) -> Any:
            seen = await look(*arguments)
            has_looked.set()
            return seen

        one._look = looked  # type: ignore[method-assign]
        task = asyncio.create_task(_read(one, count, found))
        await asyncio.wait_for(has_looked.wait(), 60)
        await asyncio.to_thread(meanwhile)
        await asyncio.wait_for(task, 60)
        return found

    return asyncio.run(story())


async def _read(one: StreamEventTrigger, count: int, found: list[str]) -> None:
    events = one.run()
    async for event in events:
        assert json.loads(json.dumps(event.payload)) == event.payload
        found.append(event.payload["kind"])
        if len(found) == count:
            await asyncio.sleep(0)
            break
    await events.aclose()  # type: ignore[attr-defined]


def test_what_happens_becomes_events_in_order(named: NamedHome) -> None:
    """Without any task."""
    attempt = named.stream().deploy().runs()
    assert told(trigger(AssetState()), 1, lambda: attempt.stopped() and None) == ["stopped"]


def test_only_the_kinds_that_were_asked_for(named: NamedHome) -> None:
    """The cursor passes over the others."""
    attempt = named.stream().deploy().runs()

    def happens() -> None:
        attempt.snapshot("live", 1)
        attempt.failed("RuntimeError: no")

    assert told(trigger(AssetState(), kinds=["failed"]), 1, happens) == ["failed"]


def test_the_last_of_several_events_comes_when_airflow_has_begun_the_run_of_the_others(named: NamedHome) -> None:
    """It starts a run with the first one, and leaves what comes before that to a later event."""
    stream, state, said = named.stream(), AssetState(), list[str]()
    stream.deploy().runs().failed("RuntimeError: no")
    stream.resume().runs().stopped()
    asyncio.run(state.aset("streamstate_cursor", StreamCursor("d-0001", 0, 0, has_ended=False).to_json()))
    one = trigger(state)

    async def pauses(_until_seconds: float) -> None:
        said.append("pause")

    one._let_runs_begin = pauses  # type: ignore[method-assign]
    asyncio.run(asyncio.wait_for(_read(one, 4, said), 60))
    assert said == ["failed", "restarted", "pause", "stopped"]


def test_a_triggerer_that_was_away_goes_on_where_it_was(named: NamedHome) -> None:
    """What happened in the meantime is emitted; what it has reported before does not."""
    stream, state = named.stream(), AssetState()
    attempt = stream.deploy().runs()
    told(trigger(state), 1, lambda: attempt.failed("RuntimeError: no"))
    assert told(trigger(state), 1) == ["failed"]  # it was killed right after: the event comes once more

    async def lives_on() -> None:
        kept = dict(state.kept)
        task = asyncio.create_task(_read(trigger(state), 2, []))
        while state.kept == kept:
            await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(asyncio.wait_for(lives_on(), 60))
    stream.resume().runs().stopped()
    assert told(trigger(state), 2) == ["restarted", "stopped"]


def test_before_airflow_3_3_it_begins_with_what_happens_now(named: NamedHome) -> None:
    """There is no place for the cursor."""
    attempt = named.stream().deploy().runs()
    attempt.failed("RuntimeError: no")
    second: Callable[[], Any] = lambda: named.stream().resume().runs()  # noqa: E731
    assert told(trigger(), 1, second) == ["restarted"]


def test_a_stream_that_is_not_there_yet_is_waited_for(named: NamedHome) -> None:
    """Its events come from its first deployment on."""
    assert told(trigger(AssetState()), 1, lambda: named.stream().deploy().runs().stopped() and None) == ["stopped"]


def test_it_can_be_made_again_from_what_it_serializes(named: NamedHome) -> None:
    """Plain JSON, the same each time: Airflow knows the watcher by it."""
    path, kwargs = trigger(kinds=("failed",)).serialize()
    assert path.endswith("triggers.asset_events.StreamEventTrigger")
    assert StreamEventTrigger(**json.loads(json.dumps(kwargs))).serialize() == (path, kwargs)


def test_an_unknown_kind_is_refused() -> None:
    """Where the DAG is read, not at night."""
    with pytest.raises(InvalidRequestError, match="no such kind") as refused:
        StreamEventTrigger(stream_id="flights", kinds=["dead"])
    assert "healthy" in str(refused.value)
