"""A checkpoint of somewhere else, copied here."""

from __future__ import annotations

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint, Position
from airflow_streamstate.errors import ObjectMissingError, SnapshotCorruptError
from airflow_streamstate.snapshot import copies as copying
from airflow_streamstate.snapshot import copy
from airflow_streamstate.snapshot.copies import copy_checkpoint
from airflow_streamstate.store.memory import MemoryStore
from support.asked_store import AskedStore
from support.checkpoints import HookedStore, once
from support.snapshots import run_stateful


@pytest.fixture
def source() -> Checkpoint:
    """Batches 0 to 3, and what is above them."""
    return run_stateful(Checkpoint(MemoryStore(), "counts"), 4)


@pytest.fixture
def target() -> Checkpoint:
    """A place with something half built."""
    made = Checkpoint(MemoryStore(), "orders/x")
    made.store.put("orders/x/offsets/9", b"left over")
    return made


def test_it_is_copied_byte_for_byte_up_to_the_position(source: Checkpoint, target: Checkpoint) -> None:
    """What is above it, and what was at the place, is not there; the source is as it was."""
    before = {info.key: source.store.get(info.key) for info in source.store.list_objects("")}
    assert_copied(source, target)
    assert {info.key: source.store.get(info.key) for info in source.store.list_objects("")} == before


def assert_copied(source: Checkpoint, target: Checkpoint) -> None:
    """Batches 0 to 3 of the source, word for word, and counted."""
    copied = copy_checkpoint(source, Position(3), target)
    assert (target.position(), target.query_id()) == (Position(3), source.query_id())
    there = list(target.store.list_objects("orders/x/"))
    assert (copied.files, copied.size_bytes) == (len(there), sum(info.size_bytes for info in there))
    for info in there:
        original = source.store.get(info.key.replace("orders/x", "counts"))
        assert target.store.get(info.key).body == original.body


def test_an_altered_file_is_told(source: Checkpoint, target: Checkpoint) -> None:
    """By Spark's checksums; what was copied is no checkpoint."""
    source.store.put("counts/state/0/0/3.delta", b"other bytes")
    with pytest.raises(SnapshotCorruptError):
        copy_checkpoint(source, Position(4), target)
    assert not target.exists()


def test_a_missing_file_is_told(source: Checkpoint, target: Checkpoint) -> None:
    """So is one that its state needs."""
    source.store.delete("counts/offsets/4")
    with pytest.raises(ObjectMissingError):
        copy_checkpoint(source, Position(4), target)


def test_what_its_driver_tidies_meanwhile_is_no_damage(target: Checkpoint) -> None:
    """A driver that lives, and claims no batch any more, makes a full file of its state, and removes what that needs no
    longer: what is there now is copied."""
    source = run_stateful(Checkpoint(HookedStore(), "counts"), 3)
    store = source.store

    def tidy() -> None:
        for partition in "01":
            store.put(f"counts/state/0/{partition}/4.snapshot", b"all of it")
            for version in (1, 2, 3):
                store.delete(f"counts/state/0/{partition}/{version}.delta")

    store.before = once(tidy, "get", "/1.delta")
    copy_checkpoint(source, Position(3), target)
    assert target.position() == Position(3)
    names = [info.key for info in target.store.list_objects("orders/x/state/")]
    assert any(name.endswith("/4.snapshot") for name in names)
    assert not any(name.endswith("/1.delta") for name in names)


class TestLargeFiles:
    """Those that come piece by piece: here all but empty ones."""

    @pytest.fixture(autouse=True)
    def _large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(copy, "LARGE_BYTES", 0)
        monkeypatch.setattr(copying, "COPY_BATCH_BYTES", 16)

    def test_they_are_copied_byte_for_byte(self, target: Checkpoint) -> None:
        """From a server that gives parts of them."""
        source = run_stateful(Checkpoint(AskedStore(), "counts"), 4)
        assert_copied(source, target)
        assert source.store.later_pieces > 0

    def test_an_altered_one_is_never_seen(self, source: Checkpoint, target: Checkpoint) -> None:
        """Spark's checksums speak against it before it is at the target."""
        source.store.put("counts/state/0/0/3.delta", b"other bytes")
        with pytest.raises(SnapshotCorruptError):
            copy_checkpoint(source, Position(4), target)
        assert target.store.get("orders/x/state/0/0/3.delta") is None

    def test_one_that_is_replaced_in_the_middle_is_copied_anew(self, target: Checkpoint) -> None:
        """Never half of the one and half of the other."""
        source = run_stateful(Checkpoint(AskedStore(), "counts"), 4)
        path, first, second = "state/0/0/3.delta", b"a" * 40, b"b" * 40
        source.store.delete(source.key("state/0/0/.3.delta.crc"))
        source.store.put(source.key(path), first)

        replaced: list[str] = []

        def replace(key: str) -> None:
            is_later = any(start for asked, start, _ in source.store.asked if asked == key)
            if key.endswith(path) and not replaced and is_later:
                replaced.append(key)
                source.store.put(key, second)

        source.store.before = replace
        copy_checkpoint(source, Position(3), target)
        assert target.store.get(f"orders/x/{path}").body == second

    def test_a_caller_that_gives_up_in_the_middle_of_one_leaves_nothing_of_it(
        self, source: Checkpoint, target: Checkpoint
    ) -> None:
        """It is reported again and again while it is copied."""

        class StopError(Exception):
            """Another has continued with it."""

        told: list[int] = []

        def stop() -> None:
            told.append(1)
            raise StopError

        with pytest.raises(StopError):
            copy_checkpoint(source, Position(3), target, go_on=stop)
        assert len(told) == 1
        assert list(target.store.list_objects("orders/x/")) == []
