"""What deployments leave behind: which of it goes, and which stays."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_streamstate.control.registers import Retention
from airflow_streamstate.control.upgrade_journal import UpgradeJournal
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.retention.kept_snapshots import Needs, needs_of
from airflow_streamstate.controller.retention.retiring import (
    KEPT_DEPLOYMENTS,
    KEPT_UPGRADES,
    SILENT_SECONDS,
    UNUSED_SECONDS,
    Leftover,
    Leftovers,
    SameStream,
)
from airflow_streamstate.errors import ConflictError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Failed
from airflow_streamstate.protocol.ids import deployment_id_for, launch_key_for
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import RequestRecord, StateRewrite
from airflow_streamstate.protocol.scratch import Handover
from airflow_streamstate.protocol.terms.version import Artifact, LauncherChoice, Version
from airflow_streamstate.protocol.upgrades import Phase, Upgrade, UpgradeStep
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from support.examples import example
from support.fake_clock import START_AT
from support.faulty_store import Fault, FaultPlan, FaultyStore, SimulatedCrash
from support.recorded_specs import with_version
from support.sim_stage import STREAM, Stage

CURRENT = KEPT_DEPLOYMENTS + 4
NO_NEEDS = Needs({}, frozenset(), is_moving=False)


@pytest.fixture
def many(tmp_path: Path) -> Stage:
    """Deployments whose drivers have ended, or are silent for years; their checkpoints are outside the home."""
    return grown(Stage(tmp_path, store=MemoryStore("data"), home_store=MemoryStore("home")))


def grown(stage: Stage) -> Stage:
    stage.deploy()
    stage.end()
    for number in range(2, CURRENT + 1):
        record(stage, deployment_id_for(number))
    return stage


def record(stage: Stage, deployment_id: str, sha256: str = "") -> None:
    """The version of a deployment, an upgrade or a rehearsal, that runs this artifact."""
    spec = stage.spec()
    artifact = replace(spec.version.application, sha256=sha256) if sha256 else spec.version.application
    at = START_AT - timedelta(days=1_000)
    stage.control.create_spec(
        replace(with_version(spec, application=artifact), deployment_id=deployment_id, created_at=at)
    )


def remove(
    stage: Stage,
    known_good: str | None = None,
    *,
    needs: Needs = NO_NEEDS,
    kept: Collection[SnapshotManifest] = (),
    is_dry: bool = False,
    home: Home | None = None,
    **facts: bool,
) -> list[Leftover]:
    """A pass behind a prune that keeps these snapshots."""
    controller = stage.controller if home is None else Controller(home, stage.launcher, stage.clock, "tests")
    context = controller.retention._context
    control = context.home.control(STREAM)
    current = deployment_id_for(CURRENT)
    same = SameStream(control, control.spec(current))
    return Leftovers(context, control, needs, kept, current, known_good, same, is_dry=is_dry, **facts).remove()


def which(found: Collection[Leftover], what: str) -> list[str]:
    return [one.which for one in found if one.what == what]


def test_each_leftover_is_told_in_three_words() -> None:
    """What it is, which, and why it goes."""
    assert Leftover("launch", "d-0001-a0001", "old").to_json() == {
        "what": "launch",
        "which": "d-0001-a0001",
        "why": "old",
    }


# deployments


OLDEST = [deployment_id_for(number) for number in range(1, 5)]
GOOD = deployment_id_for(CURRENT - 1)


def manifest(deployment_id: str, *, of_checkpoint: str | None = None) -> SnapshotManifest:
    found = example(SnapshotManifest)
    assert isinstance(found, SnapshotManifest)
    ((name, query),) = found.queries.items()
    place = "" if of_checkpoint is None else layout.checkpoint_place(of_checkpoint)
    files = tuple(replace(entry, shared_from=place) for entry in query.files)
    return replace(found, deployment_id=deployment_id, queries={name: replace(query, files=files)})


@pytest.mark.parametrize(
    ("known_good", "needs", "kept", "gone"),
    [
        (GOOD, NO_NEEDS, (), OLDEST),
        (deployment_id_for(CURRENT), NO_NEEDS, (), OLDEST),
        ("d-0003", NO_NEEDS, (), OLDEST[:2]),
        ("d-0001", NO_NEEDS, (), []),
        (None, NO_NEEDS, (), []),
        (GOOD, replace(NO_NEEDS, deployments=frozenset({"d-0002"})), (), ["d-0001", *OLDEST[2:]]),
        (GOOD, NO_NEEDS, (manifest("d-0003"),), [*OLDEST[:2], "d-0004"]),
        (GOOD, NO_NEEDS, (manifest(GOOD, of_checkpoint="d-0001"),), OLDEST[1:]),
        (GOOD, replace(NO_NEEDS, is_moving=True), (), []),
    ],
)
def test_a_deployment_goes_whole_behind_the_newest_ones(
    many: Stage, known_good: str | None, needs: Needs, kept: tuple[SnapshotManifest, ...], gone: list[str]
) -> None:
    """One that is older than the last known good version, that nothing needs, and of which no snapshot is kept."""
    found = remove(many, known_good, needs=needs, kept=kept)
    assert which(found, "deployment") == gone
    left = [one for one in range(1, CURRENT + 1) if deployment_id_for(one) not in gone]
    assert many.control.deployment_ids() == [deployment_id_for(one) for one in left]
    why = f"older than the {KEPT_DEPLOYMENTS} newest, and than the last known good version"
    assert {one.why for one in found if one.what == "deployment"} <= {why}


def test_nothing_of_deployments_goes_while_a_snapshot_may_name_any_of_their_files(many: Stage) -> None:
    """Its manifest cannot be read. (Law 7)"""
    assert which(remove(many, GOOD, is_dry=True), "deployment") == OLDEST
    assert remove(many, GOOD, is_blind=True) == []


def test_of_a_deployment_that_goes_nothing_stays_anywhere(tmp_path: Path) -> None:
    """Neither in the home, nor with the checkpoints, nor on the machine; a dry run leaves all of it."""
    home, data = LocalStore(tmp_path / "home", fsync=False), LocalStore(tmp_path / "data", fsync=False)
    (tmp_path / "launches").mkdir()
    stage = grown(Stage(tmp_path / "launches", store=data, home_store=home))
    folder = layout.deployment_folder(STREAM, "d-0002")
    home.put(f"{folder}/events/1.json", b"{}")
    data.put(f"{folder}/checkpoints/counts/metadata", b"{}")
    log = stage.home.launch_path(layout.launch_folder(STREAM, "d-0002", "d-0002-a0001")) / "driver.log"
    log.parent.mkdir(parents=True)
    log.write_text("words")
    paths = [home.path_of(folder), data.path_of(folder), log]
    assert "d-0002" in which(remove(stage, GOOD, is_dry=True), "deployment")
    assert all(path.exists() for path in paths)
    assert "d-0002" in which(remove(stage, GOOD), "deployment")
    assert not any(path.exists() for path in paths)


@pytest.mark.parametrize(
    ("silent_seconds", "state", "is_gone"),
    [
        (SILENT_SECONDS, "unknown", False),
        (SILENT_SECONDS + 1, "unknown", True),
        (0.0, "unknown", False),
        (0.0, "running", False),
        (0.0, "exited", True),
    ],
)
def test_a_driver_that_may_wake_up_keeps_its_fence(
    many: Stage, silent_seconds: float, state: str, is_gone: bool
) -> None:
    """Until its launcher proves its end, or a day has passed. (1a.8)"""
    many.come_to_life("d-0001")
    many.end("d-0001", state=state)  # type: ignore[arg-type]
    many.clock.advance(silent_seconds)
    assert ("d-0001" in which(remove(many, GOOD), "deployment")) is is_gone


def test_a_driver_that_has_said_its_last_word_needs_no_fence(many: Stage) -> None:
    """Though its launcher cannot report that it is gone."""
    many.come_to_life("d-0001")
    many.say(Failed, "d-0001", error="no")
    many.end("d-0001", state="unknown")
    assert "d-0001" in which(remove(many, GOOD), "deployment")


def test_a_record_that_cannot_be_read_holds_no_fence(many: Stage) -> None:
    """Nothing of it can be started any more."""
    many.control.home.put(layout.spec_key(STREAM, "d-0002"), b"{")
    assert "d-0002" in which(remove(many, GOOD), "deployment")


# checkpoints and launches


def test_an_old_checkpoint_is_cut_down_with_all_that_was_built_beside_it(tmp_path: Path) -> None:
    """What was built or tried of it goes, and on a disk the folders, too; another checkpoint stays as it is."""
    data = LocalStore(tmp_path / "data", fsync=False)
    stage = grown(Stage(tmp_path, store=data, home_store=MemoryStore("home")))
    old, good = deployment_id_for(CURRENT - 3), GOOD
    for deployment_id in (old, good):
        stage.run_batches(5, deployment_id=deployment_id)
        for room in ("building", "trials"):
            data.put(f"{layout.deployment_folder(STREAM, deployment_id)}/{room}/x/metadata", b"{}")
    whole = [info.key for info in data.list_objects(f"{layout.deployment_folder(STREAM, good)}/")]
    (found,) = [one for one in remove(stage, good, is_dry=True) if one.what == "checkpoints"]
    assert found == Leftover("checkpoints", old, f"{good} is known good: the ends of its logs are enough")
    assert which(remove(stage, good), "checkpoints") == [old]
    folder = data.path_of(layout.deployment_folder(STREAM, old))
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoints"]
    left = [path.name for path in (folder / "checkpoints" / "counts").iterdir() if not path.name.startswith(".")]
    assert sorted(left) == ["commits", "metadata", "offsets"]
    ends = {f"{log}/{crc}{number}{end}" for log in ("offsets", "commits") for number in (3, 4, 5)
            for crc, end in (("", ""), (".", ".crc"))}  # fmt: skip
    prefix = len(f"{layout.deployment_folder(STREAM, old)}/checkpoints/counts/")
    there = {info.key[prefix:] for info in data.list_objects(f"{layout.deployment_folder(STREAM, old)}/")}
    assert there == ends | {"metadata", ".metadata.crc"}
    assert [info.key for info in data.list_objects(f"{layout.deployment_folder(STREAM, good)}/")] == whole
    assert which(remove(stage, good), "checkpoints") == []
    for room in ("building", "trials"):
        data.put(f"{layout.deployment_folder(STREAM, old)}/{room}/x/metadata", b"{}")
        assert which(remove(stage, good), "checkpoints") == [old]
        assert not (folder / room).exists()


def test_a_checkpoint_that_a_snapshot_names_stays_whole(many: Stage) -> None:
    """It has no files of its own."""
    old = deployment_id_for(CURRENT - 3)
    many.run_batches(5, deployment_id=old)
    assert which(remove(many, GOOD, kept=(manifest(GOOD, of_checkpoint=old),)), "checkpoints") == []
    assert which(remove(many, GOOD, kept=(manifest(old),)), "checkpoints") == [old]


def test_the_last_launches_of_a_deployment_stay(many: Stage) -> None:
    """One of an old deployment, three of the current one; by their numbers, and no stray file is in the way."""
    old, current = deployment_id_for(CURRENT - 3), deployment_id_for(CURRENT)
    for deployment_id, attempts in ((old, (1, 2)), (GOOD, (1, 2)), (current, (2, 9, 10, 11))):
        for attempt in attempts:
            key = launch_key_for(deployment_id, attempt)
            many.home.launch_path(layout.launch_folder(STREAM, deployment_id, key)).mkdir(parents=True)
    strays = many.home.launch_path(f"{layout.deployment_folder(STREAM, current)}/launches")
    (strays / "my notes").mkdir()
    (strays / launch_key_for(current, 1)).write_text("a file")
    found = remove(many, GOOD)
    assert [(one.which, one.why) for one in found if one.what == "launch"] == [
        (launch_key_for(old, 1), "not one of the last 1 of its deployment"),
        (launch_key_for(current, 2), "not one of the last 3 of its deployment"),
    ]
    assert {path.name for path in strays.iterdir()} == {
        "my notes", *(launch_key_for(current, attempt) for attempt in (1, 9, 10, 11)),
    }  # fmt: skip
    assert which(remove(many, GOOD), "launch") == []


# upgrades


def upgrade(stage: Stage, number: int, *phases: Phase, runs: str = "", migrates_by: str = "") -> str:
    """One that was started before those of smaller numbers; the digests of its script and of its migration."""
    asked = example(Upgrade)
    assert isinstance(asked, Upgrade)
    upgrade_id = f"u-{number:012x}"
    journal = UpgradeJournal(stage.control)
    if runs:
        rewrite = StateRewrite(migration=Artifact("migration.py", migrates_by))
        asked = replace(asked, target=Version(Artifact("job.py", runs)), rewrite=rewrite)
    journal.create(replace(asked, upgrade_id=upgrade_id, created_at=START_AT - timedelta(days=number)))
    for place, phase in enumerate(phases, 1):
        journal.take(UpgradeStep(STREAM, upgrade_id, place, phase, START_AT, "tests", "w"))
    return upgrade_id


def test_the_last_upgrades_stay_on_record(many: Stage) -> None:
    """By when they were asked for; one that has not ended or started, or cannot be read, stays whatever its age."""
    ids = [upgrade(many, number, "begun", "upgraded") for number in range(KEPT_UPGRADES + 2)]
    open_ones = [upgrade(many, 101, "begun", "started"), upgrade(many, 102)]
    damaged = upgrade(many, 100, "begun", "refused")
    many.control.home.put(layout.upgrade_step_key(STREAM, damaged, 2), b"{")
    before = [info.key for info in many.control.home.list_objects("")]
    would = remove(many, is_dry=True)
    assert [info.key for info in many.control.home.list_objects("")] == before
    why = f"over, and not one of the last {KEPT_UPGRADES}"
    gone = [Leftover("upgrade", one, why) for one in (ids[-1], ids[-2])]
    assert [one for one in would if one.what == "upgrade"] == gone
    assert [one for one in remove(many) if one.what == "upgrade"] == gone
    assert UpgradeJournal(many.control).ids() == sorted([*ids[:-2], damaged, *open_ones])
    assert not [info for one in ids[-2:] for info in many.control.home.list_objects(f"{STREAM}/upgrades/{one}/")]


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_an_upgrade_whose_removal_was_cut_short_is_not_under_way(many: Stage, fault: Fault) -> None:
    """Neither to a prune, which would leave all that deployments left for ever; and the next pass finishes it."""
    oldest = upgrade(many, 100, "begun", "refused")
    for number in range(KEPT_UPGRADES):
        upgrade(many, number, "begun", "upgraded")
    objects = {info.key: many.control.home.get(info.key) for info in many.control.home.list_objects("")}
    for write in range(1, 20):
        plan = FaultPlan(at_write={write: fault})
        store = FaultyStore(many.control.home, plan)
        dying = Home.of(store, many.store, many.folder, many.clock)
        try:
            remove(many, home=dying)
        except SimulatedCrash:
            register = many.control.need_register().value
            assert not needs_of(many.control, register, {}, None).is_moving, write
            remove(many)
        assert not list(many.control.home.list_objects(f"{STREAM}/upgrades/{oldest}/")), write
        if len(plan.writes) < write:
            break
        for key, stored in objects.items():
            assert stored is not None
            many.control.home.put(key, stored.body)


# rehearsals, requests, artifacts


def handed(stage: Stage, number: int, deployment_id: str | None) -> str:
    """A rehearsal whose driver became an attempt of this deployment; None: of none."""
    rehearsal_id = f"r-0b8e3c525f0e-{number:04d}"
    record(stage, rehearsal_id)
    if deployment_id is not None:
        key = launch_key_for(deployment_id, 1)
        stage.control.create_handover(Handover(STREAM, rehearsal_id, deployment_id, 1, key, START_AT, "w"))
    folder = layout.deployment_folder(STREAM, rehearsal_id)
    stage.store.put(f"{folder}/checkpoints/counts/metadata", b"{}")
    stage.home.launch_path(f"{folder}/launches/{rehearsal_id}-a0001").mkdir(parents=True)
    return rehearsal_id


def test_a_rehearsal_goes_with_the_deployment_that_its_driver_became(many: Stage) -> None:
    """In both stores and on the machine; others are looked after by their own sweep."""
    damaged = handed(many, 1, "d-0001")
    many.control.home.put(layout.handover_key(STREAM, damaged), b"{")
    gone, kept, alone = handed(many, 2, "d-0001"), handed(many, 3, GOOD), handed(many, 4, None)
    why = "its driver became an attempt of d-0001, which is gone"
    for is_dry in (True, False):
        found = remove(many, GOOD, is_dry=is_dry)
        assert [one for one in found if one.what == "rehearsal"] == [Leftover("rehearsal", gone, why)]
        assert many.control.scratch_ids() == [damaged, *([gone] if is_dry else []), kept, alone]
    folder = layout.deployment_folder(STREAM, gone)
    assert not list(many.store.list_objects(f"{folder}/"))
    assert not many.home.launch_path(folder).exists()
    for one in (damaged, kept, alone):
        assert list(many.store.list_objects(f"{layout.deployment_folder(STREAM, one)}/"))
        assert many.home.launch_path(f"{layout.deployment_folder(STREAM, one)}/launches").exists()


def test_a_request_goes_with_its_deployment(many: Stage) -> None:
    """Also where an earlier pass removed that; one of a deployment that is still to come, or of a known good one, and
    what cannot be read, stays."""
    for request_id, deployment_id in (
        ("r-gone", "d-0002"),
        ("r-kept", deployment_id_for(CURRENT - 5)),
        ("r-good", GOOD),
        ("r-next", deployment_id_for(CURRENT + 1)),
    ):
        many.control.create_request(RequestRecord(request_id, STREAM, "deploy", "0" * 64, deployment_id, "w", START_AT))
    many.control.home.put(f"{layout.idempotency_folder(STREAM)}/damaged.json", b"{")
    many.control.home.put(f"{layout.idempotency_folder(STREAM)}/no id.json", b"{}")
    assert which(remove(many, None), "request") == []
    why = "it was about d-0002, which is gone"
    for is_dry in (True, False):
        found = [one for one in remove(many, GOOD, is_dry=is_dry) if one.what == "request"]
        assert Leftover("request", "r-gone", why) in found
        assert not {"r-kept", "r-good", "r-next", "damaged", "no id"} & {one.which for one in found}
        assert (many.control.request("r-gone") is not None) is is_dry
    assert all(many.control.request(one) for one in ("r-kept", "r-good", "r-next"))


def artifact(stage: Stage, letter: str) -> str:
    sha256 = letter * 64
    stage.control.home.put(f"{layout.artifacts_folder(STREAM)}/{sha256}/job.py", b"print()")
    return sha256


def there(stage: Stage) -> list[str]:
    own = stage.spec().version.application.sha256
    return [one for one in stage.control.home.list_folders(layout.artifacts_folder(STREAM)) if one != own]


def test_an_artifact_that_no_version_on_record_runs_goes_after_its_time(many: Stage) -> None:
    """Versions of deployments, upgrades and rehearsals; it is noted first, and what is run again is noted no more."""
    unused, later, of_upgrade, of_rehearsal = (artifact(many, letter) for letter in "abcd")
    artifact(many, "e")
    migration = artifact(many, "9")
    many.control.home.put(f"{layout.artifacts_folder(STREAM)}/my own/x", b"x")
    upgrade(many, 10, "begun", runs=of_upgrade, migrates_by=migration)
    record(many, "r-0b8e3c525f0e-0009", of_rehearsal)
    began_at = many.clock.now()
    assert remove(many, is_dry=True) == []
    assert Retention(many.control).read().unused_artifacts == {}
    assert remove(many) == []
    assert Retention(many.control).read().unused_artifacts == dict.fromkeys((unused, later, "e" * 64), began_at)
    record(many, deployment_id_for(CURRENT + 1), "e" * 64)
    many.clock.advance(UNUSED_SECONDS - 1)
    assert remove(many) == []
    assert Retention(many.control).read().unused_artifacts == dict.fromkeys((unused, later), began_at)
    artifact(many, "f")
    many.clock.advance(1)
    gone = [Leftover("artifact", one, "no deployment on record runs it") for one in (unused, later)]
    assert remove(many, is_dry=True) == gone
    assert unused in there(many)
    assert remove(many) == gone
    assert there(many) == [migration, of_upgrade, of_rehearsal, "e" * 64, "f" * 64, "my own"]
    assert Retention(many.control).read().unused_artifacts == {"f" * 64: many.clock.now()}


def test_the_files_of_a_version_are_artifacts_too(many: Stage) -> None:
    """As its script is."""
    library, rules, jar, env = (artifact(many, letter) for letter in "abcd")
    spec = with_version(
        many.spec(),
        py_files=(Artifact("lib.zip", library),),
        files=(Artifact("rules.json", rules),),
        jars=("s3a://jars/x.jar", Artifact("udfs.jar", jar)),
        launcher=LauncherChoice("yarn", python_env=Artifact("env.tar.gz", env)),
    )
    many.control.create_spec(replace(spec, deployment_id=deployment_id_for(CURRENT + 1)))
    for _ in range(2):
        assert remove(many) == []
        many.clock.advance(UNUSED_SECONDS + 1)


def test_no_artifact_goes_while_a_version_cannot_be_read(many: Stage) -> None:
    """Of a deployment or of an upgrade: it may run any; one whose record is gone runs none. (Law 7)"""
    unused, upgrade_id = artifact(many, "a"), upgrade(many, 10, "begun")
    remove(many)
    many.clock.advance(UNUSED_SECONDS + 1)
    for key in (layout.spec_key(STREAM, "d-0005"), layout.upgrade_key(STREAM, upgrade_id)):
        stored = many.control.home.get(key)
        assert stored is not None
        many.control.home.put(key, b"{")
        assert remove(many) == []
        many.control.home.put(key, stored.body)
    many.control.home.put(f"{layout.deployment_folder(STREAM, 'd-0000')}/events/1.json", b"{}")
    assert which(remove(many), "artifact") == [unused]


# halves


def test_the_record_of_an_abandoned_half_goes_with_its_deployment(many: Stage) -> None:
    """Not of a complete snapshot, of a half that still has data, of a deployment that stays; nor in a dry run."""
    ids = {name: f"{deployment_id}-live-00000{number}" for name, deployment_id, number in (
        ("gone", "d-0001", 1), ("with data", "d-0001", 2), ("damaged", "d-0001", 3), ("complete", "d-0001", 4),
        ("kept", GOOD, 1),
    )}  # fmt: skip
    for name, snapshot_id in ids.items():
        folder = layout.snapshot_folder(STREAM, snapshot_id)
        for store in (many.store, many.control.home):
            store.put(f"{folder}/note", b"{}")
        if name == "with data":
            many.store.put(f"{layout.snapshot_data_folder(STREAM, snapshot_id, 'counts')}/x", b"x")
        if name == "damaged":
            many.control.home.put(layout.manifest_key(STREAM, snapshot_id), b"{")
        if name == "complete":
            many.control.create_manifest(replace(manifest("d-0001"), snapshot_id=snapshot_id))

    def left(store: MemoryStore | object) -> set[str]:
        keys = [info.key for info in store.list_objects(f"{layout.snapshots_folder(STREAM)}/")]  # type: ignore[attr-defined]
        return {name for name, snapshot_id in ids.items() if any(snapshot_id in key for key in keys)}

    remove(many, GOOD, is_dry=True)
    assert left(many.store) == left(many.control.home) == set(ids)
    remove(many, GOOD)
    assert left(many.store) == left(many.control.home) == set(ids) - {"gone"}


def test_of_a_stream_that_was_deleted_meanwhile_nothing_goes(many: Stage) -> None:
    """Another one has its name by now. (Law 4)"""
    current = deployment_id_for(CURRENT)
    same = SameStream(many.control, replace(many.spec(current), request_id="another"))
    context = many.controller.retention._context
    for is_dry in (True, False):
        leftovers = Leftovers(context, many.control, NO_NEEDS, (), current, GOOD, same, is_dry=is_dry)
        if is_dry:
            assert which(leftovers.remove(), "deployment") == OLDEST
        else:
            with pytest.raises(ConflictError, match="deleted while it was pruned"):
                leftovers.remove()
    assert many.control.deployment_ids()[0] == "d-0001"
