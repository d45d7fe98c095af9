"""When each wait of a home looks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from airflow_streamstate.control.objects import FeedReader, FeedWriter
from airflow_streamstate.errors import UnavailableError
from airflow_streamstate.store.memory import MemoryStore
from airflow_streamstate.triggers import triggerer
from airflow_streamstate.triggers.triggerer import StreamWatcher
from support.airflow_site import eventually
from support.fake_clock import FakeClock

LONG_SECONDS = 600.0


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def at_once(call: Callable[..., Any], *arguments: Any) -> Any:
    """What runs a call, without a pool."""
    return call(*arguments)


def watching(store: MemoryStore) -> StreamWatcher:
    return StreamWatcher(FeedReader(store, FakeClock()), FakeClock(), at_once)


def append(store: MemoryStore, *stream_ids: str) -> None:
    writer = FeedWriter(store, FakeClock(seed=len(stream_ids)))
    for stream_id in stream_ids:
        writer.append(stream_id)
    writer.flush()


def test_few_waits_look_at_their_own_pace(store: MemoryStore) -> None:
    """And the feed costs them nothing."""
    few = watching(store)
    with few.turn("orders", 5.0):
        assert few.pause_seconds(5.0) == 5.0
        assert few._reading is None


def test_many_waits_share_the_looks(store: MemoryStore) -> None:
    """A thousand waits of five seconds would be 12,000 looks a minute."""

    async def story() -> float:
        many = watching(store)
        with ExitStack() as turns:
            for number in range(1_000):
                turns.enter_context(many.turn(f"stream-{number}", 5.0))
            return many.pause_seconds(5.0)

    assert asyncio.run(story()) == 60 * 1_000 / triggerer.LOOKS_PER_MINUTE


def test_an_entry_of_the_feed_calls_the_waits_of_its_stream_and_no_other(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long their own pause is."""
    monkeypatch.setattr(triggerer, "LOOKS_PER_MINUTE", 0.01)
    monkeypatch.setattr(triggerer, "FEED_SECONDS", 0.01)

    async def story() -> tuple[set[str], set[str]]:
        shared = watching(store)
        with shared.turn("orders", 1.0) as one, shared.turn("orders", 1.0) as two, shared.turn("flights", 1.0) as other:
            names = {"one": one, "two": two, "other": other}
            waiting = {asyncio.create_task(turn.pause(LONG_SECONDS), name=name) for name, turn in names.items()}
            await asyncio.sleep(0)
            append(store, "orders")
            done: set[asyncio.Task[None]] = set()
            while len(done) < 2:
                found, waiting = await asyncio.wait(waiting, timeout=20, return_when=asyncio.FIRST_COMPLETED)
                assert found
                done |= found
            for task in waiting:
                task.cancel()
            return {task.get_name() for task in done}, {task.get_name() for task in waiting}

    assert asyncio.run(story()) == ({"one", "two"}, {"other"})


def test_what_is_written_while_a_wait_looks_is_seen_by_its_next_look(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that comes between the beginning of a poll and its pause is not lost."""
    monkeypatch.setattr(triggerer, "LOOKS_PER_MINUTE", 0.01)

    async def story() -> None:
        with watching(store).turn("orders", 1.0) as turn:
            turn.begin_look()
            turn.call()
            await turn.pause(LONG_SECONDS)

    asyncio.run(asyncio.wait_for(story(), 20))


def test_a_store_that_is_away_leaves_each_wait_its_own_pace(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is reported once, and the feed is read on when the store answers."""
    monkeypatch.setattr(triggerer, "LOOKS_PER_MINUTE", 0.01)
    monkeypatch.setattr(triggerer, "FEED_SECONDS", 0.01)
    errors = [UnavailableError("no answer"), UnavailableError("no answer")]
    news = FeedReader.news

    def fails_twice(reader: FeedReader) -> set[str]:
        if errors:
            raise errors.pop()
        return news(reader)

    monkeypatch.setattr(FeedReader, "news", fails_twice)  # the edge to the store

    async def story() -> None:
        with watching(store).turn("orders", 1.0) as turn:
            append(store, "orders")
            await turn.pause(LONG_SECONDS)

    asyncio.run(asyncio.wait_for(story(), 20))
    assert caplog.text.count("does not answer") == 1


def test_a_triggerer_supervises_while_any_wait_is_there(store: MemoryStore) -> None:
    """Where it is asked to, in one thread; again where waits come back."""
    begun, ended = list[int](), threading.Semaphore(0)

    def supervise(is_over: Callable[[], bool]) -> None:
        begun.append(threading.get_ident())
        eventually(is_over, "the end of all waits", 20, every=0.01)
        ended.release()

    shared = StreamWatcher(FeedReader(store, FakeClock()), FakeClock(), at_once, supervise)
    for _ in range(2):
        with shared.turn("orders", 5.0), shared.turn("flights", 5.0):
            pass
        assert ended.acquire(timeout=20)
        if shared._supervising is not None:
            shared._supervising.join(20)
    assert len(begun) == 2
    assert threading.get_ident() not in begun
