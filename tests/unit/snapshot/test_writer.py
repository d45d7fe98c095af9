"""A snapshot in the making."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from airflow_streamstate.control.registers import MAKING_SECONDS, Retention
from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.snapshot import capture
from airflow_streamstate.snapshot.capture import snapshot_writer
from airflow_streamstate.snapshot.deletion import REMEMBERED_SECONDS
from airflow_streamstate.snapshot.verify import verify
from airflow_streamstate.store import transfer
from airflow_streamstate.store.base import Link, ObjectInfo
from airflow_streamstate.store.memory import MemoryStore
from support.faulty_store import Fault, FaultPlan, FaultyStore, SimulatedCrash
from support.server_store import ServerStore
from support.shelf_acts import IDS, prune
from support.snapshots import DEPLOYMENT, PLACE, QUERY, STREAM, Shelf, run_stateful

REHEARSAL = "r-5f0c1b7e6a0c-0001"


class SlowStore(MemoryStore):
    """A server that takes twenty minutes for each file of a snapshot, while another process prunes."""

    shelf: Shelf | None = None

    def link(self, source_key: str, target_key: str) -> None:
        super().link(source_key, target_key)
        self._take_long(target_key)

    def head(self, key: str) -> ObjectInfo | None:  # a put looks for the file first
        self._take_long(key)
        return super().head(key)

    def _take_long(self, key: str) -> None:
        if self.shelf is not None and "/data/" in key:
            self.shelf.clock.sleep(MAKING_SECONDS / 3)
            prune(self.shelf)


class SlowServer(ServerStore):
    """One that takes as long for each list of files."""

    shelf: Shelf | None = None

    def link_many(self, links: Sequence[Link]) -> list[str]:
        if self.shelf is not None:
            self.shelf.clock.sleep(MAKING_SECONDS / 3)
            prune(self.shelf)
        return super().link_many(links)


class SlowerServer(SlowServer):
    """One that takes hours for one list of files: a large one is among them."""

    def link_many(self, links: Sequence[Link]) -> list[str]:
        for _ in range(6 if self.shelf is not None else 0):
            self._take_half()
        return ServerStore.link_many(self, links)

    def _take_half(self) -> None:
        """Half of the time after which it counts as abandoned, until its writer has renewed the record."""
        assert self.shelf is not None
        self.shelf.clock.sleep(MAKING_SECONDS / 2)
        is_renewed, pause = False, threading.Event()
        for _ in range(2_000):
            (making,) = Retention(self.shelf.control).read().makings.values()
            is_renewed = (making.expires_at - self.shelf.clock.now()).total_seconds() > MAKING_SECONDS * 0.6
            if is_renewed or pause.wait(0.01):
                break
        assert is_renewed
        prune(self.shelf)


def test_it_is_recorded_for_as_long_as_it_is_made() -> None:
    """Not longer: neither where it is complete nor where it was refused; of a crash the record stays (Law 1)."""
    shelf = Shelf()
    run_stateful(shelf.checkpoint(), 2)
    retention = Retention(shelf.control)
    shelf.capture()
    assert (retention.read().makings, retention.read().newest_snapshot_id) == ({}, "d-0001-stopped-000001")
    with pytest.raises(InvalidRequestError):
        shelf.capture({}, snapshot_id="d-0001-live-000001", kind="live")
    assert retention.read().makings == {}
    dying = FaultyStore(shelf.checkpoints, FaultPlan(at_write={3: Fault.CRASH_BEFORE}))
    run_stateful(shelf.checkpoint(), 3, first=3)
    with pytest.raises(SimulatedCrash):
        Shelf(dying, clock=shelf.clock).capture(snapshot_id="d-0001-live-000002", kind="live")
    (made,) = retention.read().makings.values()
    assert (made.snapshot_id, made.base_ids) == ("d-0001-live-000002", ("d-0001-stopped-000001",))


def test_what_a_rehearsal_forks_is_none_that_is_kept() -> None:
    """It goes with its rehearsal: no record, and nothing shared."""
    shelf = Shelf()
    with snapshot_writer(shelf.control, REHEARSAL, DEPLOYMENT, "controller", ()) as made:
        assert (made.take, made.bases, made.begun) == (1, None, None)
    assert shelf.checkpoints.head(f"{STREAM}/retention.json") is None


@pytest.mark.parametrize("kept_at", ["", PLACE])
def test_what_takes_hours_is_not_abandoned_while_its_writer_lives(kept_at: str) -> None:
    """Its record is renewed between its files, wherever they go: a stop of a large stream ends alongside any prunes."""
    slow = SlowStore("slow")
    shelf = Shelf(MemoryStore() if kept_at else slow, elsewhere={PLACE: slow})
    run_stateful(shelf.checkpoint(), 2)
    shelf.places.claim(shelf.control, kept_at)
    slow.shelf, began_at = shelf, shelf.clock.now()
    manifest = shelf.capture(kept_at=kept_at)
    slow.shelf = None
    assert (shelf.clock.now() - began_at).total_seconds() > 3 * MAKING_SECONDS
    assert (manifest.take, verify(shelf.control, slow, manifest.snapshot_id)) == (1, [])


def test_a_server_is_told_some_files_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It copies many side by side; between two lists of them the writer renews its record."""
    monkeypatch.setattr(capture, "LINKS_AT_ONCE", 3)
    server = SlowServer()
    shelf = Shelf(server)
    run_stateful(shelf.checkpoint(), 2)
    server.shelf = shelf
    manifest = shelf.capture()
    server.shelf = None
    files = manifest.queries[QUERY].files
    assert (sum(server.lists), max(server.lists)) == (len(files), 3)
    assert (manifest.take, verify(shelf.control, server, manifest.snapshot_id)) == (1, [])


def test_a_file_that_a_server_copies_for_hours_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer renews its record while the server copies."""
    monkeypatch.setattr(transfer, "LOOK_SECONDS", 0.01)
    server = SlowerServer()
    shelf = Shelf(server)
    run_stateful(shelf.checkpoint(), 2)
    server.shelf, began_at = shelf, shelf.clock.now()
    manifest = shelf.capture()
    server.shelf = None
    assert (shelf.clock.now() - began_at).total_seconds() >= 3 * MAKING_SECONDS
    assert (manifest.take, verify(shelf.control, server, manifest.snapshot_id)) == (1, [])


def test_a_writer_that_slept_for_days_completes_nothing_that_was_removed_since() -> None:
    """Another one had completed the same snapshot, and a prune has removed it and forgotten its id: no manifest stays
    over files that are gone (Laws 3 and 4)."""
    shelf = Shelf()
    run_stateful(shelf.checkpoint(), 2)

    def others() -> None:
        shelf.capture(snapshot_id=IDS[0], kind="live")
        assert [prune(shelf), prune(shelf)] == [[], [IDS[0]]]  # at first its record reports that it is being taken
        shelf.clock.sleep(REMEMBERED_SECONDS + 1)
        prune(shelf)
        assert Retention(shelf.control).read().condemned == {}

    plan = FaultPlan(meanwhile={5: others})  # at its first call to the home since it had started: all is linked
    zombie = Shelf(shelf.checkpoints, FaultyStore(shelf.checkpoints, plan), shelf.clock)
    with pytest.raises(UnavailableError, match="abandoned"):
        zombie.capture(snapshot_id=IDS[0], kind="live")
    assert [call.method for call in plan.calls[3:5]] == ["create", "get"]
    assert shelf.control.snapshot_slot(IDS[0]) is None
