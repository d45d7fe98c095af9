"""The lease of a reader of a snapshot."""

from __future__ import annotations

import pytest

from airflow_streamstate.control.registers import Retention
from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.snapshot.deletion import leased
from airflow_streamstate.store.memory import MemoryStore
from support.faulty_store import Fault, FaultPlan, FaultyStore
from support.snapshots import QUERY, SNAPSHOT, STREAM, Shelf, run_stateful


class ReadOnlyStore(MemoryStore):
    """A store that refuses writes, or changes of the register, from a moment on."""

    is_closed = False
    is_busy = False

    def replace(self, key: str, body: bytes, version: str) -> str:
        if self.is_busy and key == layout.retention_key(STREAM):
            raise UnavailableError("slow down", key=key)
        return super().replace(key, body, version)

    def put(self, key: str, body: bytes) -> str:
        if self.is_closed:
            raise InvalidRequestError("permission denied", key=key)
        return super().put(key, body)


def kept(store: MemoryStore) -> Shelf:
    shelf = Shelf(store)
    run_stateful(shelf.checkpoint(), 2)
    shelf.capture()
    return shelf


def test_it_is_there_while_the_reader_reads_and_counts_as_a_use() -> None:
    """And not a moment longer, also where the reading fails."""
    shelf = kept(MemoryStore())

    def read_badly() -> None:
        with leased(shelf.control, SNAPSHOT, "ada"):
            (lease,) = Retention(shelf.control).read().leases.values()
            assert (lease.snapshot_id, lease.reader) == (SNAPSHOT, "ada")
            shelf.clock.sleep(30)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        read_badly()
    register = Retention(shelf.control).read()
    assert (register.leases, register.used) == ({}, {SNAPSHOT: shelf.clock.now()})


def test_a_reader_without_the_right_to_write_needs_none() -> None:
    """An auditor has no right to write, and reads all the same."""
    store = ReadOnlyStore()
    shelf = kept(store)
    store.is_closed = True
    with leased(shelf.control, SNAPSHOT, "auditor"):
        pass


def test_a_store_that_does_not_answer_is_told_unless_the_snapshot_is_kept_anyhow() -> None:
    """What the current deployment starts from is never pruned."""
    shelf = kept(MemoryStore())
    store = FaultyStore(shelf.checkpoints, FaultPlan(every_write=Fault.UNAVAILABLE))
    mute = Shelf(store, clock=shelf.clock)
    with pytest.raises(UnavailableError), leased(mute.control, SNAPSHOT, "ada"):
        pass
    with leased(mute.control, SNAPSHOT, "start", is_kept_anyhow=True):
        pass


def test_nothing_is_gathered_without_a_lease() -> None:
    """A prune would take it for what a dead reader left; what is in one folder is read all the same."""
    store = ReadOnlyStore()
    shelf = kept(store)
    run_stateful(shelf.checkpoint(), 3, first=3)
    second = shelf.capture(snapshot_id="d-0001-live-000002", kind="live")
    store.is_busy = True
    for manifest, is_refused in ((shelf.control.need_manifest(SNAPSHOT), False), (second, True)):
        with leased(shelf.control, manifest.snapshot_id, "start", is_kept_anyhow=True) as lease:
            for look in (lease.folder_of, lease.logs_of):
                if not is_refused:
                    assert look(store, manifest, QUERY).exists()
                    continue
                with pytest.raises(UnavailableError):
                    look(store, manifest, QUERY)
    assert store.list_folders(layout.gathered_folders(STREAM)) == []


def test_what_a_rehearsal_forked_needs_none() -> None:
    """It goes with its rehearsal, and the register of the stream does not know it."""
    shelf = Shelf()
    with leased(shelf.control, "r-5f0c1b7e6a0c-0001", "rehearsal"):
        assert shelf.checkpoints.head(layout.retention_key(STREAM)) is None
