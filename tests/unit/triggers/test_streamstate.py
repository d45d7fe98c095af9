"""The trigger."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.request.requests import change_request, deploy_request
from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import DeadlineExceededError, UnavailableError
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.commands import StopRequest
from airflow_streamstate.protocol.terms.order import UpgradeTerms
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.triggers import streamstate, triggerer
from airflow_streamstate.triggers.streamstate import (
    HEARD_SECONDS,
    HEARD_SHARE,
    MAX_HEARD_SECONDS,
    EventContent,
    StreamStateTrigger,
    read_event,
)
from airflow_streamstate.triggers.triggerer import airflow_connection, controller_of
from support import scripted_driver
from support.airflow_site import eventually
from support.airflow_streams import CONN_ID, NamedHome
from support.airflow_upgrades import run_first_version
from support.fake_clock import FakeClock

WATCH = WaitCondition("drained", "flights", "d-0001")
AIRFLOWS_LOOKUP = "airflow_streamstate.triggers.triggerer.airflow_connection"


def trigger(watch: WaitCondition = WATCH, seconds: float = 30.0, **more: Any) -> StreamStateTrigger:
    deadline_at = format_time(SYSTEM_CLOCK.now() + timedelta(seconds=seconds))
    values = {"deadline_at": deadline_at, "poll_interval_seconds": 0.02, **more}
    return StreamStateTrigger(watch=watch.to_json(), streamstate_conn_id=CONN_ID, **values)


async def first_event(running: StreamStateTrigger) -> EventContent:
    async for event in running.run():
        return read_event(event.payload)
    raise AssertionError("it ended without an event")


def fire(running: StreamStateTrigger) -> EventContent:
    return asyncio.run(first_event(running))


class _Passing(FakeClock):
    """A clock on which the given time passes at every poll."""

    passing_seconds = 0.0

    def monotonic_seconds(self) -> float:
        self.advance(self.passing_seconds)
        return super().monotonic_seconds()


@pytest.mark.parametrize(
    ("delay_seconds", "look_seconds", "slept"),
    [
        (None, 0.0, [HEARD_SECONDS]),
        (None, 1.0, [HEARD_SECONDS - 1.0]),
        (None, 9.0, []),
        (1.0, 0.0, [HEARD_SECONDS - 1.0]),
        (4.0, 0.0, [4.0 * HEARD_SHARE - 4.0]),  # a busy machine: the scheduler is as slow as the triggerer was
        (15.0, 0.0, [15.0 * HEARD_SHARE - 15.0]),
        (40.0, 0.0, [MAX_HEARD_SECONDS - 40.0]),
        (3_600.0, 0.0, []),  # another triggerer, long after
        (-5.0, 0.0, [HEARD_SECONDS]),  # the worker's clock is ahead
    ],
)
def test_it_fires_when_the_scheduler_has_heard_of_the_worker_before(
    named: NamedHome,
    monkeypatch: pytest.MonkeyPatch,
    delay_seconds: float | None,
    look_seconds: float,
    slept: list[float],
) -> None:
    """Woken sooner, Airflow takes the task for failed though its work was done, and a retry is gone."""
    clock, found = _Passing(), list[float]()
    clock.passing_seconds = look_seconds

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(streamstate, "HEARD_SECONDS", HEARD_SECONDS)
    monkeypatch.setattr(streamstate, "SYSTEM_CLOCK", clock)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    deferred_at = None if delay_seconds is None else format_time(clock.now() - timedelta(seconds=delay_seconds))
    unknown = StreamStateTrigger(watch=WATCH.to_json(), streamstate_conn_id=CONN_ID, deferred_at=deferred_at)
    assert fire(unknown).outcome == "over"
    assert found == slept


def test_it_can_be_made_again_from_what_it_serializes(named: NamedHome) -> None:
    """Plain JSON keyword arguments of a class on the Python path."""
    made = trigger(on_kill_action="stop", deferred_at="2026-01-01T00:00:00.000Z")
    path, kwargs = made.serialize()
    assert path == f"{StreamStateTrigger.__module__}.{StreamStateTrigger.__qualname__}"
    assert json.loads(json.dumps(kwargs)) == kwargs
    assert StreamStateTrigger(**kwargs).serialize() == made.serialize()


def test_it_needs_only_what_the_first_release_wrote(named: NamedHome) -> None:
    """A trigger of the database may be older than the triggerer."""
    StreamStateTrigger(watch=WATCH.to_json(), streamstate_conn_id=CONN_ID)


def test_it_fires_when_it_comes(named: NamedHome) -> None:
    """The drain happens while it waits."""
    attempt = named.stream().deploy().runs()

    async def story() -> EventContent:
        waiting = asyncio.create_task(first_event(trigger()))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        attempt.drained()
        return await waiting

    content = asyncio.run(story())
    assert content.outcome == "done"
    assert content.need_result()["snapshot_id"] == "d-0001-drained-000001"


def test_it_fires_at_once_when_it_cannot_come_any_more(named: NamedHome) -> None:
    """The event reports why."""
    named.stream().deploy().runs().stopped()
    content = fire(trigger())
    assert content.outcome == "over"
    assert "stopped" in str(content.error)


def test_of_several_conditions_the_first_that_ends_is_the_event(named: NamedHome) -> None:
    """One trigger waits for all streams of a wave; the others are not waited for any more."""
    named.stream().deploy().runs()
    named.stream("trains").deploy().runs().drained()
    waiting = trigger(or_watches=[WaitCondition("drained", "trains", "d-0001").to_json()])
    content = fire(StreamStateTrigger(**json.loads(json.dumps(waiting.serialize()[1]))))
    assert (content.watch.stream_id, content.outcome) == ("trains", "done")


def test_it_gives_up_at_its_deadline_and_says_what_it_saw(named: NamedHome) -> None:
    """The deadline is a moment, not a length: a new triggerer does not wait again (Law 6)."""
    named.stream().deploy().runs()
    content = fire(trigger(seconds=-1))
    assert content.outcome == "deadline"
    assert isinstance(content.error, DeadlineExceededError)
    assert "delays at batch 0" in str(content.error)


@pytest.mark.parametrize("is_first", [True, False])
def test_its_part_of_a_wait_for_an_upgrade_ends_as_no_failure(
    named: NamedHome, tmp_path: Path, *, is_first: bool
) -> None:
    """A worker looks then, and the wait continues: what Airflow logs of the event must not read as a failure."""
    run_first_version(named, tmp_path)
    client = named.hook().client
    change = change_request("flights", application=scripted_driver.script(tmp_path, "hangs", name="hangs.py"))
    view = client.upgrades.begin(UpgradeRequest(change, UpgradeTerms(warm=False)), "asked")
    watch = WaitCondition("upgrade", "flights", deployment_id=view.upgrade_id)
    client.upgrades.advance("flights", view.upgrade_id)
    other = WaitCondition("drained", "flights", "d-0001")
    first, second = (watch, other) if is_first else (other, watch)
    content = fire(trigger(first, seconds=-1.0, or_watches=[second.to_json()]))
    assert content.outcome == "deadline"
    assert "a worker polls now, and the wait continues" in str(content.error)
    assert "in time" not in str(content.error)


def test_what_is_not_there_is_an_event_and_no_crash(named: NamedHome) -> None:
    """An error of ours keeps its type; a crash would become a text without one."""
    assert fire(trigger()).to_json()["error"]["type"] == "StreamNotFoundError"
    nowhere = StreamStateTrigger(watch=WATCH.to_json(), streamstate_conn_id="nowhere")
    assert "no such connection" in str(fire(nowhere).error)


def test_a_look_that_goes_wrong_is_looked_again(named: NamedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed poll is never reported as a failed job."""
    named.stream().deploy().runs().drained()
    failures = [UnavailableError("no answer"), UnavailableError("no answer")]
    get = LocalStore.get_within

    def fails_twice(store: LocalStore, key: str, most_bytes: int) -> object:
        if failures:
            raise failures.pop()
        return get(store, key, most_bytes)

    monkeypatch.setattr(LocalStore, "get_within", fails_twice)  # the edge to the disk
    assert fire(trigger()).outcome == "done"
    assert failures == []


def test_the_event_loop_never_waits_for_the_store(named: NamedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that does not answer holds one thread, and no other trigger."""
    named.stream().deploy().runs()
    may_answer, asked = threading.Event(), threading.Event()
    get = LocalStore.get_within

    def holds(store: LocalStore, key: str, most_bytes: int) -> object:
        assert threading.current_thread() is not threading.main_thread()
        asked.set()
        may_answer.wait(20)
        return get(store, key, most_bytes)

    monkeypatch.setattr(LocalStore, "get_within", holds)  # the edge to the disk

    async def story() -> int:
        waiting = asyncio.create_task(first_event(trigger(seconds=0.1)))
        ticks = 0
        while not asked.is_set() or ticks < 10:
            await asyncio.sleep(0.01)
            ticks += 1
        may_answer.set()
        await waiting
        return ticks

    assert asyncio.run(story()) >= 10


def test_two_of_them_see_the_same(named: NamedHome) -> None:
    """After a failover two triggerers may run one trigger: looking changes nothing."""
    named.stream().deploy().runs().drained()

    async def story() -> list[EventContent]:
        return list(await asyncio.gather(first_event(trigger()), first_event(trigger())))

    one, other = asyncio.run(story())
    assert one.to_json() == other.to_json()


@pytest.mark.parametrize(("action", "orders"), [("leave", []), ("stop", [StopRequest])])
def test_what_was_asked_for_happens_when_a_user_ends_the_task(
    named: NamedHome, action: str, orders: list[type]
) -> None:
    """Airflow notifies the trigger, since no worker has the task."""
    stream = named.stream()
    stream.deploy().runs()
    asyncio.run(trigger(on_kill_action=action).on_kill())
    assert [type(slot.command) for slot in stream.control.journal("d-0001").commands()] == orders


def test_what_was_asked_for_happens_though_the_triggerer_cancels_again(
    named: NamedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow 3.3.2 cancels a trigger at every turn of its loop until it has ended, ``on_kill`` or not."""
    stream = named.stream()
    stream.deploy().runs()
    asked = threading.Event()

    async def is_slow(conn_id: str) -> Any:
        asked.set()
        await asyncio.sleep(0.3)
        return await airflow_connection(conn_id)

    monkeypatch.setattr(AIRFLOWS_LOOKUP, is_slow)

    async def story() -> None:
        killing = asyncio.create_task(trigger(on_kill_action="stop").on_kill())
        while not asked.is_set():
            await asyncio.sleep(0.01)
        killing.cancel("user-action")
        with pytest.raises(asyncio.CancelledError):
            await killing
        while not stream.control.journal("d-0001").commands():
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(story(), 20))


def test_airflows_word_that_a_user_did_it_is_not_lost(named: NamedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the message of the cancellation, and whatever is awaited at that moment may drop it."""

    asked = threading.Event()

    async def drops_messages(conn_id: str) -> None:
        asked.set()
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            raise asyncio.CancelledError from None

    monkeypatch.setattr(AIRFLOWS_LOOKUP, drops_messages)

    async def runs_as_airflow_runs_it() -> asyncio.CancelledError:
        with pytest.raises(asyncio.CancelledError) as raised:  # here: before Python 3.11 a task keeps its message
            await first_event(trigger())
        return raised.value

    async def story() -> asyncio.CancelledError:
        waiting = asyncio.create_task(runs_as_airflow_runs_it())
        while not asked.is_set():
            await asyncio.sleep(0.01)
        waiting.cancel("user-action")
        return await waiting

    assert asyncio.run(asyncio.wait_for(story(), 20)).args == ("user-action",)


def test_a_driver_that_a_triggerer_starts_has_none_of_airflows_secrets(
    named: NamedHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that a worker starts: here the flush of a deployment that has failed just before the user's click."""
    hook = named.hook()
    hook.client.deploy(deploy_request("flights", scripted_driver.script(tmp_path, "fails"), master="local[2]"))
    eventually(lambda: hook.client.status("flights").state == "failed", "the deployment has failed", 30, every=0.05)
    inherited = tmp_path / "inherited"
    submit = Path(os.environ["SPARK_HOME"]) / "bin" / "spark-submit"
    submit.write_text(f"#!/bin/sh\nenv > {inherited}.part && mv {inherited}.part {inherited}\n")
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", "a-secret")
    monkeypatch.setenv("SPARK_ORDINARY", "yes")

    asyncio.run(trigger(on_kill_action="drain").on_kill())

    eventually(inherited.exists, "a driver that was started", 30, every=0.05)
    names = {line.partition("=")[0] for line in inherited.read_text().splitlines()}
    assert "SPARK_ORDINARY" in names
    assert [name for name in names if name.startswith("AIRFLOW_CONN_")] == []


def test_nothing_happens_to_the_stream_when_a_triggerer_ends(named: NamedHome) -> None:
    """A rolling restart of triggerers must not stop a stream."""
    stream = named.stream()
    stream.deploy().runs()
    asyncio.run(trigger(on_kill_action="stop").cleanup())
    assert stream.control.journal("d-0001").commands() == []


def test_a_wait_writes_a_line_for_each_change_and_none_for_a_look(named: NamedHome) -> None:
    """Into the log of the task, which a person reads while it waits."""
    named.stream().deploy()
    lines = list[str]()
    waiting = trigger(seconds=1.0)
    waiting._log = SimpleNamespace(info=lambda form, *words: lines.append(form % words))  # type: ignore[assignment]
    assert fire(waiting).outcome == "deadline"  # some 40 looks later
    assert len(lines) == 1
    assert lines[0].startswith("Waiting for flights: ")


def test_triggers_that_begin_at_once_share_one_controller(named: NamedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each controller has its own connections and caches: a thousand would need a gigabyte."""
    named.stream().deploy().runs()
    made = threading.Event()
    make = triggerer.controller_on_this_machine

    def is_slow(*arguments: Any) -> Any:
        made.wait(0.2)  # as long as it takes to connect to S3
        return make(*arguments)

    monkeypatch.setattr(triggerer, "controller_on_this_machine", is_slow)
    triggerer._made.cache_clear()

    async def story() -> set[int]:
        return {id(one) for one in await asyncio.gather(*(controller_of(CONN_ID) for _ in range(64)))}

    assert len(asyncio.run(story())) == 1
