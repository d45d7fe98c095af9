"""The mirrors of a stream, from the controller's side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home
from airflow_streamstate.errors import (
    ConflictError,
    InvalidRequestError,
    SnapshotIncompleteError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import SnapshotMirrored
from airflow_streamstate.protocol.manifest import FileEntry, SnapshotManifest
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.snapshot.deletion import Remover
from airflow_streamstate.snapshot.location import SnapshotPlaces
from airflow_streamstate.store.base import StoredObject
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from support.asked_store import AskedStore
from support.sim_stage import STREAM, Stage


def rewrite(stage: Stage, manifest: SnapshotManifest, **changes: object) -> None:
    """Replace the manifest of a snapshot."""
    stage.store.delete(layout.manifest_key(STREAM, manifest.snapshot_id))
    stage.control.create_manifest(replace(manifest, **changes))  # type: ignore[arg-type]


def test_every_snapshot_is_copied_once(stage: Stage) -> None:
    """What is there is not copied again, nor what two snapshots share."""
    stage.deploy(mirrors=("/mnt/second",))
    stage.stopped()
    stage.keep("live", attempt=2)
    mirrors, mirror = stage.controller.mirrors, MemoryStore("mirror")
    assert mirrors.of(STREAM) == ("/mnt/second",)
    done = {one.snapshot_id: one.files for one in mirrors.copy(STREAM, [mirror]) if one.mirror == mirror.uri}
    assert sorted(done) == ["d-0001-live-000002", "d-0001-stopped-000001"]
    assert sum(done.values()) > 0
    assert [one.files for one in mirrors.copy(STREAM, [mirror])] == [0, 0]


@pytest.mark.parametrize(("named", "is_cut"), [(None, True), (4_096, False)])
def test_it_fetches_as_the_deployment_is_set_or_as_is_said(tmp_path: Path, named: int | None, is_cut: bool) -> None:
    """What is set for this call wins."""
    stage = Stage(tmp_path, AskedStore())
    stage.deploy(settings=AgentSettings(fetch_batch_bytes=1_024))
    stage.stopped()
    list(stage.controller.mirrors.copy(STREAM, [MemoryStore("mirror")], batch_bytes=named))
    assert (stage.store.later_pieces > 0) is is_cut


def test_a_home_that_is_silent_is_left_after_the_time_that_is_said(tmp_path: Path) -> None:
    """By the controller's clock; a time that is none is refused. (Law 6)"""
    stage = Stage(tmp_path, AskedStore())
    stage.deploy()
    stage.stopped()
    speak = stage.store.fall_silent(stage.clock, 77.5)
    try:
        with pytest.raises(UnavailableError) as caught:
            list(stage.controller.mirrors.copy(STREAM, [MemoryStore("mirror")], timeout_seconds=77))
    finally:
        speak()
    assert "did not answer within 77 s" in str(caught.value)
    with pytest.raises(InvalidRequestError, match="cannot have this value"):
        list(stage.controller.mirrors.copy(STREAM, [MemoryStore("mirror")], timeout_seconds=0))


def test_what_is_being_pruned_holds_the_others_up_at_no_mirror(stage: Stage) -> None:
    """It goes, and the rest is copied."""
    stage.deploy()
    stage.stopped()
    kept, gone = stage.keep("live", attempt=2), stage.control.need_manifest("d-0001-stopped-000001")
    Remover(stage.control, SnapshotPlaces(stage.store), "test").condemn(
        {gone.snapshot_id: gone}, lambda _register: [gone.snapshot_id]
    )
    done = stage.controller.mirrors.copy(STREAM, [MemoryStore("mirror")])
    assert [one.snapshot_id for one in done] == [kept.snapshot_id]


def test_what_is_damaged_or_away_holds_up_nothing_else_and_is_told_at_the_end(stage: Stage, tmp_path: Path) -> None:
    """An older snapshot of which a file is gone, one at a place that is lost, and a mirror that does not answer: the
    younger one is at the other mirror."""

    class Away(MemoryStore):
        def put(self, key: str, body: bytes) -> str:
            raise UnavailableError("it does not answer", key=key)

    stage.deploy()
    stage.stopped()
    lost, younger = stage.keep("live", attempt=2), stage.keep("live", attempt=3)
    rewrite(stage, lost, data_uri=str(tmp_path / "lost"))
    older = stage.control.need_manifest("d-0001-stopped-000001")
    missing = {name: replace(one, files=(FileEntry("gone", 1, ""), *one.files)) for name, one in older.queries.items()}
    rewrite(stage, older, queries=missing)
    mirror = MemoryStore("mirror")
    copying = stage.controller.mirrors.copy(STREAM, [Away("away"), mirror])
    done = next(copying)
    assert (done.mirror, done.snapshot_id) == (mirror.uri, younger.snapshot_id)
    with pytest.raises(UnavailableError, match="it does not answer"):
        next(copying)
    with pytest.raises(UnavailableError, match="not the place"):
        list(stage.controller.mirrors.copy(STREAM, [mirror]))
    stage.store.delete(layout.manifest_key(STREAM, lost.snapshot_id))
    with pytest.raises(SnapshotIncompleteError):
        list(stage.controller.mirrors.copy(STREAM, [mirror]))


def test_a_place_that_is_no_place_any_more_holds_up_nothing_that_lies_elsewhere(stage: Stage) -> None:
    """As where its bucket was deleted, or may not be read: that is no outage, and is reported at the end, too."""
    stage.deploy()
    stage.run_batches(1)
    lost, younger = stage.keep("live", attempt=1), stage.keep("live", attempt=2)
    rewrite(stage, lost, data_uri=f"/{'x' * 300}")  # no disk can have it
    copying = stage.controller.mirrors.copy(STREAM, [MemoryStore("mirror")])
    assert next(copying).snapshot_id == younger.snapshot_id
    with pytest.raises(InvalidRequestError, match="name"):
        next(copying)


def test_a_place_that_is_away_is_asked_once_for_all_that_lies_there(stage: Stage, tmp_path: Path) -> None:
    """Each answer that does not come takes its time."""
    asked: list[str] = []

    class Away(MemoryStore):
        def get(self, key: str) -> StoredObject | None:
            asked.append(key)
            raise UnavailableError("it does not answer", key=key)

    stage.deploy()
    stage.run_batches(1)
    for number in (1, 2, 3):
        lost = stage.keep("live", attempt=number)
        rewrite(stage, lost, data_uri="s3://away/place")
    stores, allowed = (stage.home.home, stage.home.checkpoints), stage.allowed
    home = Home.of(*stores, tmp_path / "too", stage.clock, lambda _uri: Away("away"), allowed=allowed)
    mirrors = Controller(home, stage.launcher, stage.clock).mirrors
    with pytest.raises(UnavailableError, match="does not answer"):
        list(mirrors.copy(STREAM, [MemoryStore("mirror")]))
    assert len(asked) == 1


def test_what_is_at_the_mirror_already_needs_no_place_that_is_lost(stage: Stage, tmp_path: Path) -> None:
    """Each copy would end in an error for as long as the home has those snapshots, with nothing left to be done."""
    stage.deploy()
    stage.run_batches(1)
    lost, mirror = stage.keep("live", attempt=1), MemoryStore("mirror")
    list(stage.controller.mirrors.copy(STREAM, [mirror]))
    rewrite(stage, lost, data_uri=str(tmp_path / "lost"))
    [done] = stage.controller.mirrors.copy(STREAM, [mirror])
    assert (done.snapshot_id, done.files) == (lost.snapshot_id, 0)


def test_a_stream_that_goes_on_elsewhere_during_a_copy_keeps_what_is_partial_copied(stage: Stage) -> None:
    """A copy may take hours, and what is cleared is cleared at its end."""
    stage.deploy()
    stage.stopped()
    mirror = MemoryStore("mirror")
    copying = stage.controller.mirrors.copy(STREAM, [mirror])
    next(copying)
    spec = stage.control.spec("d-0001")
    StreamControl(mirror, STREAM, stage.clock).create_spec(replace(spec, deployment_id="d-0002"))
    half = f"{layout.snapshot_folder(STREAM, 'd-0002-live-000001')}/take-0001/counts/offsets/1"
    mirror.put(half, b"it is just being copied")
    with pytest.raises(ConflictError, match="continued elsewhere"):
        next(copying)
    assert mirror.get(half) is not None


def test_a_mirror_that_cannot_be_one_keeps_the_next_one_from_nothing(stage: Stage) -> None:
    """No right to write there any more; or another stream of this name. It is the error, when the others have it."""

    class Closed(MemoryStore):
        def put(self, key: str, body: bytes) -> str:
            raise InvalidRequestError("access is denied", key=key)

    stage.deploy()
    stage.stopped()
    others, key = MemoryStore("others"), layout.spec_key(STREAM, "d-0001")
    spec = stage.control.cells.read(key, DeploymentSpec)
    assert spec is not None
    StreamControl(others, STREAM, stage.clock).create_spec(replace(spec.value, request_id="another"))
    for wrong, why in ((Closed("closed"), "access is denied"), (others, "another deployment")):
        mirror = MemoryStore("mirror")
        copying = stage.controller.mirrors.copy(STREAM, [wrong, mirror])
        assert next(copying).mirror == mirror.uri
        with pytest.raises(StreamStateError, match=why):
            next(copying)


def test_where_a_snapshot_lies_is_what_its_driver_said(stage: Stage) -> None:
    """Each mirror once, however often it was reported."""
    stage.deploy()
    for uri in ("gs://b/p", "/mnt/second", "gs://b/p"):
        stage.say(SnapshotMirrored, snapshot_id="d-0001-live-000001", mirror_uri=uri, files=1, size_bytes=2)
    assert stage.controller.mirrors_of(STREAM) == {"d-0001-live-000001": ["gs://b/p", "/mnt/second"]}


def test_the_home_is_no_mirror(stage: Stage) -> None:
    """A copy in the same place would be none."""
    with pytest.raises(InvalidRequestError, match="another place"):
        stage.controller.mirrors.open(stage.controller.home.home.uri)


@pytest.mark.parametrize("which", ["home", "checkpoints"])
def test_neither_is_it_by_another_name(tmp_path: Path, which: str) -> None:
    """Every snapshot would count as copied; or what is being taken as a half of what is gone. Nothing stays there."""
    (tmp_path / which).mkdir()
    stores = {name: LocalStore(tmp_path / name) for name in ("home", "checkpoints")}
    stage = Stage(tmp_path, stores["checkpoints"], home_store=stores["home"])
    stage.deploy()
    stage.stopped()
    (tmp_path / "alias").symlink_to(tmp_path / which)
    before = sorted((tmp_path / which).rglob("*"))
    with pytest.raises(InvalidRequestError, match="the same one by another name"):
        list(stage.controller.mirrors.copy(STREAM, [LocalStore(tmp_path / "alias")]))
    assert sorted((tmp_path / which).rglob("*")) == before


def test_a_mirror_at_which_nothing_may_be_deleted_takes_copies(stage: Stage) -> None:
    """A bucket that is locked: what was put there to try it stays, one object however often."""

    class Locked(MemoryStore):
        def delete(self, key: str, version: str | None = None) -> None:
            raise UnavailableError("nothing is deleted here", key=key)

    stage.deploy()
    stage.stopped()
    mirror = Locked("mirror")
    assert [one.files > 0 for one in stage.controller.mirrors.copy(STREAM, [mirror])] == [True]
    assert [one.files for one in stage.controller.mirrors.copy(STREAM, [mirror])] == [0]
    assert [info.key for info in mirror.list_objects(f"{STREAM}/trial")] == [f"{STREAM}/trial.json"]
