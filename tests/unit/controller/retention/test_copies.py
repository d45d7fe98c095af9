"""Complete copies at mirrors that the home has let go of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.mirrors import Restoring
from airflow_streamstate.controller.retention.pruning import PrunedMirror
from airflow_streamstate.errors import ConflictError, InvalidRequestError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.policies import RetentionPolicy
from airflow_streamstate.snapshot.data import key_of
from airflow_streamstate.snapshot.mirror_copies import carry_records
from airflow_streamstate.snapshot.verify import verify
from airflow_streamstate.store.local import LocalStore
from support.sim_stage import STREAM, Stage

pytestmark = pytest.mark.fast

LIVES = [f"d-0001-live-{number:06d}" for number in range(1, 6)]


@pytest.fixture
def mirror(stage: Stage, tmp_path: Path) -> LocalStore:
    """A mirror with copies of five snapshots of a stream that runs."""
    mirror = LocalStore(tmp_path / "second")
    mirror.root.mkdir()
    stage.deploy(mirrors=(mirror.uri,))
    stage.come_to_life(queries=("counts",))
    for number in range(1, 6):
        stage.run_batches(3 * number)
        stage.keep("live", attempt=number)
        stage.clock.sleep(60)
    copy(stage, mirror)
    return mirror


def copy(stage: Stage, mirror: LocalStore) -> None:
    assert list(stage.controller.mirrors.copy(STREAM, [mirror]))


def prune(stage: Stage, keep: int = 2, *, is_dry: bool = False) -> PrunedMirror:
    retention = stage.controller.retention
    (found,) = retention.prune(STREAM, RetentionPolicy(keep), is_dry=is_dry, at_mirrors=True).mirrors
    return found


def whole_at(mirror: LocalStore, stage: Stage) -> list[str]:
    """The copies there, each verified."""
    control = StreamControl(mirror, STREAM, stage.clock)
    found = [one for one in control.snapshot_ids() if control.readable_manifest(one) is not None]
    assert {one: verify(control, mirror, one) for one in found} == {one: [] for one in found}
    return found


def files_at(mirror: LocalStore) -> set[str]:
    keys = [info.key for info in mirror.list_objects(layout.snapshots_folder(STREAM) + "/")]
    return {key for key in keys if layout.take_of(key.split("/")[3]) is not None}


def needed_at(mirror: LocalStore, stage: Stage) -> set[str]:
    """The files to which the complete copies refer."""
    control = StreamControl(mirror, STREAM, stage.clock)
    manifests = [manifest for one in control.snapshot_ids() if (manifest := control.manifest(one)) is not None]
    return {
        key_of(one, name, entry) for one in manifests for name, query in one.queries.items() for entry in query.files
    }


def test_each_copy_is_told_with_its_reasons_and_its_bytes(stage: Stage, mirror: LocalStore) -> None:
    """The same by a dry run, which removes no file; and what was freed is what is gone. Without a problem in JSON."""

    def size() -> int:
        return sum(info.size_bytes for info in mirror.list_objects("") if info.key in files_at(mirror))

    before = size()
    dry = prune(stage, is_dry=True)
    pruned = prune(stage)
    assert (dry.uri, dry.files, dry.problem) == (mirror.uri, 0, "")
    assert (pruned.removed, pruned.freed, pruned.kept) == (dry.removed, dry.freed, dry.kept)
    assert sum(pruned.freed.values()) == before - size() > 0
    assert list(pruned.removed) == list(pruned.freed) == LIVES[2::-1]
    assert all("nothing needs it" in why for (why,) in pruned.removed.values())
    newest = "the newest one of the current deployment, d-0001"
    assert pruned.kept == {
        LIVES[4]: ("the home has it", newest, "one of the newest 2"),
        LIVES[3]: ("the home has it", "one of the newest 2"),
    }
    assert pruned.to_json() == {
        "mirror": mirror.uri,
        "removed": [
            {"snapshot_id": one, "why": list(why), "freed_bytes": pruned.freed[one]}
            for one, why in pruned.removed.items()
        ],
        "kept": [{"snapshot_id": one, "why": list(why)} for one, why in pruned.kept.items()],
        "files": pruned.files,
        "problem": "",
    }
    assert PrunedMirror("/m", {"s-1": ("old",)}, {}, {}).to_json()["removed"] == [
        {"snapshot_id": "s-1", "why": ["old"], "freed_bytes": 0}
    ]


def test_a_copy_is_as_young_at_the_mirror_as_in_the_home(stage: Stage, mirror: LocalStore) -> None:
    """By age alone, too, at least one copy stays."""
    retention, policy = stage.controller.retention, RetentionPolicy(older_than_seconds=3_600.0)
    (found,) = retention.prune(STREAM, policy, at_mirrors=True).mirrors
    assert (found.removed, sorted(found.kept)) == ({}, LIVES)
    assert "not longer than 3,600 s" in found.kept[LIVES[0]][1]
    stage.clock.sleep(3_601.0)
    (found,) = retention.prune(STREAM, policy, at_mirrors=True).mirrors
    assert (sorted(found.removed), sorted(found.kept)) == (LIVES[:4], LIVES[4:])
    assert "one of the newest 1" in found.kept[LIVES[4]]


def test_a_half_that_the_home_never_heard_of_goes_from_the_mirror(stage: Stage, mirror: LocalStore) -> None:
    """Of a stream that was restored, perhaps: only this prune removes it there."""
    half = layout.snapshot_data_folder(STREAM, "d-0001-live-000099", "counts") + "/offsets/1"
    mirror.put(half, b"half")
    pruned = prune(stage, keep=5)
    assert (pruned.removed, pruned.files, pruned.problem) == ({}, 1, "")
    assert mirror.get(half) is None
    assert whole_at(mirror, stage) == LIVES


def test_a_prune_of_the_home_alone_leaves_the_mirrors(stage: Stage, mirror: LocalStore) -> None:
    """Unless ``at_mirrors`` is set, a mirror keeps every copy."""
    assert stage.controller.retention.prune(STREAM, RetentionPolicy(2)).mirrors == ()
    assert whole_at(mirror, stage) == LIVES


def test_a_mirror_is_not_emptied_after_a_home_that_lost_its_snapshots(stage: Stage, mirror: LocalStore) -> None:
    """Snapshots removed there by hand are at the mirror alone (Law 7)."""
    for one in LIVES:
        for info in list(stage.store.list_objects(f"{layout.snapshot_folder(STREAM, one)}/")):
            stage.store.delete(info.key)
    pruned = prune(stage, keep=0)
    assert pruned.removed == {}
    assert all("the home has none that is newer" in why for why in pruned.kept.values())
    assert whole_at(mirror, stage) == LIVES


def test_the_newest_copy_stays_whatever_is_asked_for(stage: Stage, mirror: LocalStore) -> None:
    """Also where the home has a newer one, which has not come to the mirror yet."""
    stage.run_batches(18)
    stage.keep("live", attempt=6)
    assert LIVES[4] in prune(stage, keep=0).kept
    assert whole_at(mirror, stage) == LIVES[4:]
    copy(stage, mirror)
    assert whole_at(mirror, stage) == [LIVES[4], "d-0001-live-000006"]
    assert list(prune(stage, keep=0).removed) == [LIVES[4]]


def test_pinned_ones_are_pinned_everywhere(stage: Stage, mirror: LocalStore) -> None:
    """The home keeps it, and so does the mirror."""
    stage.controller.retention.pin(STREAM, LIVES[0])
    assert LIVES[0] in prune(stage).kept
    assert whole_at(mirror, stage) == [LIVES[0], *LIVES[3:]]


@pytest.mark.parametrize("damage", ["gone", "unreadable", "another", "damaged copy", "no such folder"])
def test_a_mirror_that_is_not_understood_loses_nothing(stage: Stage, mirror: LocalStore, damage: str) -> None:
    """Its problem is reported, and the home is pruned all the same (Law 7)."""
    spec = layout.spec_key(STREAM, "d-0001")
    if damage == "gone":
        mirror.delete(spec)
    elif damage == "another":
        text = mirror.root.joinpath(spec).read_text()
        mirror.root.joinpath(spec).write_text(json.dumps({**json.loads(text), "request_id": "of another home"}))
    elif damage == "unreadable":
        mirror.root.joinpath(spec).write_bytes(b"{")
    elif damage == "damaged copy":
        mirror.root.joinpath(layout.manifest_key(STREAM, LIVES[1])).write_bytes(b"{")
    else:
        shutil.move(mirror.root, mirror.root.with_name("away"))
    pruned = prune(stage)
    assert pruned == PrunedMirror(mirror.uri, {}, {}, {}, problem=pruned.problem)
    assert pruned.problem.startswith("the prune there is not complete: ")
    assert [one.snapshot_id for one in stage.controller.snapshots.all(STREAM)] == LIVES[3:]
    if damage != "no such folder":
        assert set(LIVES) - {LIVES[1]} <= set(whole_at(mirror, stage))


@pytest.mark.parametrize("is_dry", [True, False])
def test_while_a_manifest_of_the_home_cannot_be_read_no_copy_goes(
    stage: Stage, mirror: LocalStore, is_dry: bool
) -> None:
    """It may be of what refers to any file there; and a dry run promises nothing else (Law 7)."""
    stage.store.put(layout.manifest_key(STREAM, LIVES[4]), b"{")
    pruned = prune(stage, is_dry=is_dry)
    assert (pruned.removed, pruned.files) == ({}, 0)
    assert LIVES[4] in pruned.problem
    assert whole_at(mirror, stage) == LIVES


def test_a_mirror_that_is_the_home_by_another_name_loses_nothing(tmp_path: Path) -> None:
    """A symlink, a bind mount: each copy there is the snapshot itself. (Law 4)"""
    store = LocalStore(tmp_path / "home", fsync=False)
    store.root.mkdir()
    alias = tmp_path / "alias"
    alias.symlink_to(store.root)
    stage = Stage(tmp_path, store=store)
    stage.deploy(mirrors=(LocalStore(alias).uri,))
    stage.come_to_life(queries=("counts",))
    for number in range(1, 4):
        stage.run_batches(3 * number)
        stage.keep("live", attempt=number)
    pruned = prune(stage, keep=1)
    assert (pruned.removed, pruned.files) == ({}, 0)
    assert "the prune there is not complete" in pruned.problem
    assert verify(stage.control, store, LIVES[2]) == []


def test_a_stream_without_mirrors_is_told_so(stage: Stage) -> None:
    """Before anything is removed in the home."""
    stage.deploy()
    stage.stopped()
    with pytest.raises(InvalidRequestError, match="no mirrors"):
        stage.controller.retention.prune(STREAM, RetentionPolicy(0), at_mirrors=True)


def test_a_pruned_mirror_is_one_to_go_on_from(stage: Stage, mirror: LocalStore, tmp_path: Path) -> None:
    """A home is restored from its newest copy, and deploys."""
    stage.keep("stopped", attempt=6)
    copy(stage, mirror)
    assert prune(stage).removed
    new = tmp_path / "new"
    new.mkdir()
    store = LocalStore(new)
    home = Home.of(store, store, tmp_path / "launches", stage.clock, allowed=stage.allowed)
    restored = Restoring(home, [mirror], "tests").restore(STREAM, accept_duplicates=True)
    assert restored.snapshot_id in whole_at(mirror, stage)
    deployed = Controller(home, stage.launcher, stage.clock, "tests").deploy(stage.request("print('v2')\n"))
    assert deployed.start.snapshot_id == restored.snapshot_id


def test_a_home_that_was_gone_on_from_elsewhere_removes_nothing(
    stage: Stage, mirror: LocalStore, tmp_path: Path
) -> None:
    """Its stream continues in a home that was restored from the mirror, and which copies that one needs it cannot know:
    it was away, and is back. (Law 4)"""
    new = tmp_path / "new"
    new.mkdir()
    store = LocalStore(new)
    home = Home.of(store, store, tmp_path / "launches", stage.clock, allowed=stage.allowed)
    Restoring(home, [mirror], "tests").restore(STREAM, accept_duplicates=True)
    there = Controller(home, stage.launcher, stage.clock, "tests")
    there.deploy(stage.request("print('v2')\n", mirrors=(mirror.uri,)))
    carry_records(home.control(STREAM), mirror, "d-0002")
    half = layout.snapshot_folder(STREAM, "d-0002-live-000001") + "/take-0001/counts/offsets/1"
    mirror.put(half, b"it is just being copied")
    pruned = prune(stage)
    assert (pruned.removed, pruned.files) == ({}, 0)
    assert "d-0002" in pruned.problem
    with pytest.raises(ConflictError, match="continued elsewhere"):
        copy(stage, mirror)
    assert mirror.get(half) is not None
    assert whole_at(mirror, stage) == LIVES


def test_a_recorded_retention_prunes_the_mirrors_where_it_says_so(stage: Stage, mirror: LocalStore) -> None:
    """A caller may decide otherwise."""
    retention, details = stage.controller.retention, stage.controller.details
    details.change_retention(STREAM, RetentionPolicy(2, at_mirrors=True))
    (would,) = retention.prune(STREAM, is_dry=True).mirrors
    assert (would.uri, sorted(would.removed), sorted(would.kept)) == (mirror.uri, LIVES[:3], LIVES[3:])
    assert retention.prune(STREAM, is_dry=True, at_mirrors=False).mirrors == ()
    assert retention.prune(STREAM, RetentionPolicy(2), is_dry=True).mirrors == ()


def test_a_recorded_retention_is_for_mirrors_that_the_stream_has(stage: Stage) -> None:
    """Where its deployment has none, that is a note and no failure."""
    stage.deploy(retention={"keep": 2, "at_mirrors": True})
    stage.stopped()
    pruned = stage.controller.retention.prune(STREAM)
    assert (pruned.mirrors, pruned.policy.at_mirrors) == ((), True)
    assert "the policy is for its mirrors, too, and it has none" in pruned.notes
