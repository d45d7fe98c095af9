"""The feed of a home."""

from __future__ import annotations

import atexit
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_streamstate.control import objects
from airflow_streamstate.control.objects import KEPT_PERIODS, PERIOD_MINUTES, FeedReader, FeedWriter
from airflow_streamstate.control.presence import GuardedHome, HomePresence
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.records import StreamRegister
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from support.airflow_site import eventually
from support.examples import example
from support.fake_clock import FakeClock


def test_a_reader_finds_each_stream_once() -> None:
    """What was written before is news at the first poll, and none at the second."""
    store, clock = MemoryStore(), FakeClock()
    written(store, clock, "orders", "flights")
    reader = FeedReader(store, clock)
    assert reader.news() == {"orders", "flights"}
    assert reader.news() == set()
    written(store, clock, "orders")
    assert reader.news() == {"orders"}


def test_clocks_may_be_minutes_apart() -> None:
    """A writer that is ahead or behind writes into a folder alongside the reader's."""
    store, reads = MemoryStore(), FakeClock()
    reader = FeedReader(store, reads)
    for name, minutes in (("behind", -5), ("ahead", 5), ("hours-away", 180)):
        written(store, FakeClock(reads.now() + timedelta(minutes=minutes)), name)
    assert reader.news() == {"behind", "ahead"}


def test_of_more_entries_than_any_home_has_some_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may write to a home cannot make a reader list for ever; a stream left out is looked at without a feed."""
    store, clock = MemoryStore(), FakeClock()
    written(store, clock, "b", "c", "a")
    monkeypatch.setattr(objects, "MOST_ENTRIES", 2)
    assert FeedReader(store, clock).news() == {"a", "b"}


def test_old_entries_are_removed_and_young_ones_stay() -> None:
    """The feed does not grow for ever; what a reader may still look at stays."""
    store, clock = MemoryStore(), FakeClock()
    written(store, clock, "old")
    clock.advance(60.0 * PERIOD_MINUTES * (KEPT_PERIODS + 1))
    written(store, clock, "young")
    keys = [info.key for info in store.list_objects(f"{layout.FEED_FOLDER}/")]
    assert [layout.stream_of_feed(key) for key in keys] == ["young"]


def test_a_home_that_is_away_gets_no_entry(tmp_path: Path) -> None:
    """An empty folder in the place of the home must stay empty, and the writer continues."""
    clock, home = FakeClock(), LocalStore(tmp_path)
    written(GuardedHome(HomePresence(home, clock)), clock, "orders")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("key", "is_told"),
    [
        (layout.register_key("orders"), True),
        (layout.alerts_key("orders"), True),
        (layout.event_key("orders", "d-0001", 3), True),
        (layout.upgrade_step_key("orders", "u-0123456789ab", 2), True),
        (layout.verdict_key("orders", "r-0123456789ab-0001"), True),
        (layout.heartbeat_key("orders", "d-0001"), False),
        (layout.command_key("orders", "d-0001", 1), False),
        (layout.home_key(), False),
    ],
)
def test_what_ends_a_wait_is_told(key: str, *, is_told: bool) -> None:
    """And nothing that is written every few seconds."""
    assert layout.is_told_in_feed(key) == is_told


def test_a_write_of_a_stream_is_told() -> None:
    """By the one place through which each record and register is written."""
    store, clock = MemoryStore(), FakeClock()
    reader = FeedReader(store, clock)
    StreamControl(store, "orders", clock, feed=FeedWriter(store, clock)).create_register(example(StreamRegister))
    eventually(lambda: reader.news() == {"orders"}, "the entry", 20, every=0.01)


def written(store: Store, clock: FakeClock, *stream_ids: str) -> None:
    """Append these streams, and wait until the entries are there."""
    writer = FeedWriter(store, clock)
    for stream_id in stream_ids:
        writer.append(stream_id)
    writer.flush(20)


class HangingStore(MemoryStore):
    """A store that never answers a put."""

    def put(self, key: str, body: bytes) -> str:
        threading.Event().wait()
        raise AssertionError(key)


def test_no_writer_and_no_end_of_a_process_waits_for_a_store_that_hangs() -> None:
    """The entry is lost, as it may be; the thread is one that no process waits for."""
    writer = FeedWriter(HangingStore(), FakeClock())
    writer.append("orders")
    writer.append("flights")
    writer.flush(0.05)
    assert writer._thread is not None
    assert writer._thread.daemon
    atexit.unregister(writer.flush)


@pytest.mark.parametrize("place", [layout.FEED_FOLDER, f"{layout.FEED_FOLDER}/0", "of this period"])
def test_no_link_leads_a_writer_or_a_reader_out_of_the_feed(tmp_path: Path, place: str) -> None:
    """Old periods are removed, and what a link in their place leads to stays; a reader sees no entry there."""
    store, clock = LocalStore(tmp_path / "home", fsync=False), FakeClock()
    (tmp_path / "victim" / "0").mkdir(parents=True)
    for precious in ("precious", "0/precious"):
        (tmp_path / "victim" / precious).write_text("x")
    name = layout.feed_folder(objects._period_of(clock.now())) if place == "of this period" else place
    link = tmp_path / "home" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "victim")
    written(store, clock, "orders")
    assert FeedReader(store, clock).news() == ({"orders"} if place.endswith("/0") else set())
    found = sorted(str(path.relative_to(tmp_path / "victim")) for path in (tmp_path / "victim").rglob("*"))
    assert found == ["0", "0/precious", "precious"]
