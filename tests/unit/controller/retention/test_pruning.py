"""Pruning a stream whose drivers a test plays; the rules of ``needs``, ``leftovers``, ``settling``, ``known_good``."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from airflow_streamstate.control.registers import Retention
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.lineage import lineage_of
from airflow_streamstate.controller.observe.views import CommandView
from airflow_streamstate.controller.retention.pruning import Pruned, PrunedMirror
from airflow_streamstate.controller.retention.retiring import KEPT_DEPLOYMENTS, UNUSED_SECONDS, Leftover
from airflow_streamstate.controller.upgrade.upgrades import RollbackRequest
from airflow_streamstate.controller.wait.condition import WaitCondition, has_proven_itself
from airflow_streamstate.errors import DataError, ObjectExistsError, SnapshotNotFoundError, StreamNotFoundError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.events import SnapshotReady
from airflow_streamstate.protocol.ids import deployment_id_for, scratch_id_for
from airflow_streamstate.protocol.policies import LastPrune, RetentionPolicy
from airflow_streamstate.protocol.positions import LagTrend, QueryBeat, SourceLag
from airflow_streamstate.protocol.records import Intent
from airflow_streamstate.protocol.scratch import Reading, ScratchRun
from airflow_streamstate.protocol.terms.order import RollbackTerms
from airflow_streamstate.snapshot.data import shared_bytes
from airflow_streamstate.snapshot.deletion import PARTIAL_SECONDS, Removed, Remover, leased
from airflow_streamstate.snapshot.location import SnapshotPlaces
from airflow_streamstate.snapshot.verify import verify
from airflow_streamstate.store.base import TEMPORARY_PREFIX
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.memory import MemoryStore
from airflow_streamstate.store.transfer import STALE_SECONDS, STALE_UPLOAD_SECONDS
from support.faulty_store import FaultPlan, FaultyStore
from support.sim_stage import STREAM, Stage
from support.uploading_store import UploadingStore

pytestmark = pytest.mark.fast

NOTHING = RetentionPolicy(keep=0)


def grow(stage: Stage, count: int, rows_behind: int = 0, *, first: int = 1) -> list[str]:
    """The given number of deployments one after the other, each stopped but the last, which runs; their snapshots."""
    made = []
    for number in range(first, count + 1):
        deployment_id = deployment_id_for(number)
        stage.deploy(f"print({number})\n")
        checkpoint = stage.checkpoint(deployment_id=deployment_id)
        if number > 1:
            built = stage.checkpoint(deployment_id=deployment_id_for(number - 1))
            for info in list(stage.store.list_objects(f"{built.prefix}/")):
                stage.store.copy(info.key, f"{checkpoint.prefix}{info.key[len(built.prefix) :]}")
        if number == count:
            live(stage, deployment_id, 3 * number, rows_behind)
            break
        stage.clock.sleep(60)
        made.append(stage.stopped(3 * number, deployment_id).snapshot_id)
    return [one for one in made if one is not None]


def live(stage: Stage, deployment_id: str, last: int, rows_behind: int) -> None:
    stage.come_to_life(deployment_id, queries=("counts",))
    stage.run_batches(last, deployment_id=deployment_id)
    at = stage.clock.now()
    lags = (SourceLag("file /in", rows_behind, "rows"),)
    stage.beat(deployment_id, counts=QueryBeat(last, at, is_active=True, lags=lags, lags_at=at))


def prune(stage: Stage, policy: RetentionPolicy = NOTHING, *, is_dry: bool = False) -> Pruned:
    return stage.controller.retention.prune(STREAM, policy, is_dry=is_dry)


def whats(pruned: Pruned, what: str) -> list[str]:
    return [one.which for one in pruned.leftovers if one.what == what]


def mark(stage: Stage, deployment_id: str) -> None:
    Retention(stage.control, "tests").mark_good(deployment_id)


# snapshots


def test_which_end_is_the_last_is_told_by_attempts_and_not_by_clocks(stage: Stage) -> None:
    """The machine of the second attempt is ten minutes behind that of the first: its end is what the next one starts
    from, and stays (Laws 5 and 14)."""
    stage.deploy()
    stage.stopped(3)
    stage.controller.resume(STREAM)
    stage.clock.advance(-600)
    last = stage.stopped(6, attempt=2).snapshot_id
    pruned = prune(stage)
    assert (list(pruned.removed), list(pruned.kept)) == (["d-0001-stopped-000001"], [last])
    assert stage.deploy("print('v2')\n").start.snapshot_id == last


def test_a_foreign_folder_is_left_alone_and_stops_nothing(stage: Stage) -> None:
    """``cp -r`` of a snapshot or a deployment for safety: no id, so nothing of ours, in every room (Law 7)."""
    one, *_ = grow(stage, 4)
    mark(stage, "d-0004")
    strays = [
        f"{STREAM}/{folder}/manifest.json"
        for folder in (
            f"snapshots/{one}.bak",
            "snapshots/.Trash",
            "deployments/d-0001.bak",
            "deployments/x",
            "scratch/r_old",
            "upgrades/u.bak",
        )
    ]
    for key in strays:
        stage.store.put(key, b"{}")
    assert list(prune(stage).removed) == [one]
    assert all(stage.store.get(key) for key in strays)
    mirror = MemoryStore("mirror")
    assert len(list(stage.controller.mirrors.copy(STREAM, [mirror]))) == 2
    assert stage.controller.mirrors_of(STREAM) == {}
    assert len(stage.controller.kept_snapshots(STREAM)) == 2


def test_what_a_prune_before_was_removing_is_kept_by_no_number(stage: Stage) -> None:
    """It continues with that, and does not count it among the newest."""
    one, *_ = grow(stage, 4)
    mark(stage, "d-0004")
    manifest = stage.control.need_manifest(one)
    Remover(stage.control, SnapshotPlaces(stage.store), "killed").condemn({one: manifest}, lambda _register: [one])
    pruned = prune(stage, RetentionPolicy(keep=3))
    assert one not in pruned.kept
    assert stage.control.manifest(one) is None


def test_what_killed_processes_left_goes(tmp_path: Path) -> None:
    """Temporary files in both stores, and the fork that a reading of state made, once their time has ended."""
    home, data = LocalStore(tmp_path / "home"), LocalStore(tmp_path / "data")
    stage = Stage(tmp_path, store=data, home_store=home)
    grow(stage, 1)
    for store in (home, data):
        path = store.path_of(f"{STREAM}/deployments") / f"{TEMPORARY_PREFIX}half"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
        os.utime(path, (0, 0))
    run_id, now, what = scratch_id_for("r", 1), stage.clock.now(), Reading(("d-0001-live-000001",))
    stage.control.create_scratch_run(ScratchRun(STREAM, run_id, "d-0001", what, now, now, "ada", "r", "", "w"))
    data.put(f"{layout.reading_fork_folder(STREAM, run_id, 'd-0001-live-000001', 'counts')}/metadata", b"{}")
    stage.clock.sleep(2 * STALE_SECONDS)
    assert prune(stage, is_dry=True).temporaries == 2
    assert stage.control.scratch_ids() == [run_id]
    assert prune(stage).temporaries == 2
    assert stage.control.scratch_ids() == []
    assert not list(data.list_objects(f"{layout.scratch_folder(STREAM)}/"))


def test_an_incomplete_upload_goes_a_week_after_it_was_begun(tmp_path: Path) -> None:
    """Not sooner: the largest file of all may take days. A dry run only counts it."""
    stage = Stage(tmp_path, store=UploadingStore(STREAM))
    grow(stage, 1)
    stage.clock.sleep(STALE_UPLOAD_SECONDS - 3_600)
    assert prune(stage).temporaries == 0
    stage.clock.sleep(3_601)
    assert [prune(stage, is_dry=True).temporaries, prune(stage).temporaries, prune(stage).temporaries] == [1, 1, 0]


@pytest.mark.full
@pytest.mark.parametrize("asleep_seconds", [0.0, 86_400.0])
def test_what_a_rollback_names_while_it_is_pruned_is_there_or_refused(tmp_path: Path, asleep_seconds: float) -> None:
    """Started at any moment of the prune: it has the snapshot for good, or fails at once, before it stops
    anything.

    Also where the prune then sleeps until the lease of the rollback has expired.
    """
    outcomes = set()
    for number in count(1, 6):
        folder = tmp_path / str(number)
        folder.mkdir()
        stage = Stage(folder)
        one, *_ = grow(stage, 4)
        mark(stage, "d-0004")
        began: list[bool] = []

        def roll_back(stage: Stage = stage, one: str = one, began: list[bool] = began) -> None:
            try:
                stage.controller.upgrades.begin_rollback(
                    RollbackRequest(STREAM, RollbackTerms(snapshot_id=one)), "back"
                )
            except SnapshotNotFoundError:
                began.append(False)
            else:
                began.append(True)
            stage.clock.advance(asleep_seconds)

        plan = FaultPlan(meanwhile={number: roll_back})
        store = FaultyStore(stage.store, plan)
        home = Home.of(store, store, folder, stage.clock)
        Controller(home, stage.launcher, stage.clock, "prunes").retention.prune(STREAM, NOTHING)
        if number > len(plan.calls):
            break
        assert [stage.control.manifest(one) is not None] == began, number
        outcomes.add(began[0])
    assert outcomes == {True, False}


def test_what_is_needed_since_the_first_look_is_not_condemned(tmp_path: Path) -> None:
    """A rollback was recorded between the two polls and its lease expired: the second poll sees it. (Law 5)"""
    key = layout.retention_key(STREAM)

    def pruned(name: str, plan: FaultPlan) -> tuple[Stage, str, Pruned]:
        folder = tmp_path / name
        folder.mkdir()
        stage = Stage(folder)
        one, *_ = grow(stage, 4)
        mark(stage, "d-0004")
        store = FaultyStore(stage.store, plan)
        acts.append(lambda: roll_back(stage, one))
        home = Home.of(store, store, folder, stage.clock)
        controller = Controller(home, stage.launcher, stage.clock, "prunes")
        return stage, one, controller.retention.prune(STREAM, NOTHING)

    def roll_back(stage: Stage, one: str) -> None:
        stage.controller.upgrades.begin_rollback(RollbackRequest(STREAM, RollbackTerms(snapshot_id=one)), "back")
        stage.clock.advance(86_400.0)

    acts: list[Callable[[], None]] = []
    calm = FaultPlan()
    _, one, before = pruned("calm", calm)
    assert one in before.removed
    _, condemns, *_ = [call.number for call in calm.writes if call.key == key]  # behind the record of the audit
    looks = max(call.number for call in calm.calls[: condemns - 1] if call.key == key)
    stage, one, after = pruned("moved", FaultPlan(meanwhile={looks: lambda: acts[-1]()}))
    assert one not in after.removed
    assert stage.control.manifest(one) is not None


def test_a_stream_that_is_retired_keeps_what_it_has(stage: Stage) -> None:
    """Unless its deletion is asked for."""
    stage.deploy()
    stage.stopped()
    retired = stage.controller.retention.retire(STREAM, reason="it has ended")
    assert (retired.retirement.is_deleting, retired.retirement.reason, retired.objects) == (False, "it has ended", 0)
    assert stage.control.manifest("d-0001-stopped-000001") is not None


def test_a_dry_run_ends_no_removal_that_was_begun(stage: Stage) -> None:
    """What a killed prune left, and a half whose time has ended, are there as before."""
    one, *_ = grow(stage, 4)
    manifest = stage.control.need_manifest(one)
    Remover(stage.control, SnapshotPlaces(stage.store), "killed").condemn({one: manifest}, lambda _register: [one])
    stage.store.put(f"{layout.snapshot_data_folder(STREAM, 'd-0001-live-000007', 'counts')}/x", b"half")
    prune(stage)
    Remover(stage.control, SnapshotPlaces(stage.store), "killed").sweep()
    stage.clock.sleep(PARTIAL_SECONDS + 1)
    before = [(info.key, info.version) for info in stage.store.list_objects("")]
    assert prune(stage, is_dry=True).swept == Removed()
    assert [(info.key, info.version) for info in stage.store.list_objects("")] == before
    assert prune(stage).swept.abandoned == ["d-0001-live-000007"]


def test_a_dry_run_says_what_would_go_and_changes_nothing(stage: Stage) -> None:
    """Word for word what the prune itself then reports."""
    grow(stage, 4)
    mark(stage, "d-0004")
    before = [(info.key, info.version) for info in stage.store.list_objects("")]
    would = prune(stage, is_dry=True)
    assert [(info.key, info.version) for info in stage.store.list_objects("")] == before
    did = prune(stage)
    assert (would.removed, would.kept, would.leftovers) == (did.removed, did.kept, did.leftovers)
    assert would.freed == did.freed
    assert min(did.freed.values()) > 0


def test_the_last_known_good_is_kept_beside_newer_ones(stage: Stage) -> None:
    """Its newest snapshot; one that has none of its own is kept by what it started from."""
    snapshots = grow(stage, 5)
    mark(stage, "d-0003")
    rows = {row.manifest.snapshot_id: row for row in stage.controller.kept_snapshots(STREAM)}
    assert [one for one, row in rows.items() if row.is_known_good] == [snapshots[2]]
    mark(stage, "d-0005")
    rows = {row.manifest.snapshot_id: row for row in stage.controller.kept_snapshots(STREAM)}
    assert [one for one, row in rows.items() if row.is_known_good] == [snapshots[3]]


def test_a_pin_of_what_is_not_there_is_refused(stage: Stage) -> None:
    """A typing error must not look like safety."""
    grow(stage, 1)
    for verb in (stage.controller.retention.pin, stage.controller.retention.unpin):
        with pytest.raises(SnapshotNotFoundError):
            verb(STREAM, "d-0009-live-000001")


def test_an_ordered_snapshot_is_pinned_before_it_is_there(stage: Stage) -> None:
    """So that no prune can come in between."""
    grow(stage, 1)
    order = stage.controller.order("snapshot", STREAM, request_id="r-1")
    stage.controller.retention.pin_ordered(order)
    assert list(Retention(stage.control).read().pins) == ["d-0001-live-000001"]


def test_where_a_record_cannot_be_read_nothing_is_removed(stage: Stage) -> None:
    """It may be the one that needs something (Law 7)."""
    grow(stage, 4)
    mark(stage, "d-0004")
    stage.store.put(layout.upgrade_key(STREAM, "u-0b8e3c525f0e"), b"{")
    before = len(list(stage.store.list_objects(f"{STREAM}/snapshots/")))
    with pytest.raises(DataError):
        prune(stage)
    assert len(list(stage.store.list_objects(f"{STREAM}/snapshots/"))) == before


def test_an_order_that_is_answered_pins_what_answers_it(stage: Stage) -> None:
    """The end of a deployment, perhaps; one that can come to nothing pins nothing."""
    grow(stage, 1)
    order = stage.controller.order("snapshot", STREAM, request_id="r-1")
    assert order.number is not None
    stage.controller.retention.pin_ordered(replace(order, number=None, key=None))
    assert Retention(stage.control).read().pins == {}
    manifest = stage.keep("live", attempt=7)
    assert stage.controller.look(WaitCondition.of(order)).outcome == "pending"
    answered = answered_by(stage, order, manifest.snapshot_id)
    stage.controller.retention.pin_ordered(answered)
    assert list(Retention(stage.control).read().pins) == [manifest.snapshot_id]
    assert Retention(stage.control).read().pins[manifest.snapshot_id].pinned_by == "tests"


def answered_by(stage: Stage, order: CommandView, snapshot_id: str) -> CommandView:
    """The order, with the snapshot that its driver took for it."""
    facts = {"command_id": order.command_id, "command_number": order.number, "queries": {}}
    stage.say(SnapshotReady, snapshot_id=snapshot_id, snapshot_kind="live", **facts)
    return replace(order, outcome=stage.controller.look(WaitCondition.of(order)).end)


# what there is


def test_each_snapshot_is_shown_with_what_keeps_it(stage: Stage) -> None:
    """Oldest first: pins, readers that still read, the last use, and what it shares; not what is being removed."""
    snapshots = grow(stage, 5)
    one, two, three, four = snapshots
    mark(stage, "d-0003")
    stage.controller.retention.pin(STREAM, two)
    stage.clock.sleep(60)
    began_at = stage.clock.now()
    with leased(stage.control, three, "bob"), leased(stage.control, three, "ada"):
        rows = stage.controller.kept_snapshots(STREAM)
    assert [row.manifest.snapshot_id for row in rows] == snapshots
    assert [row.is_pinned for row in rows] == [False, True, False, False]
    assert [row.is_known_good for row in rows] == [False, False, True, False]
    assert [row.leases for row in rows] == [(), (), ("ada", "bob"), ()]
    assert rows[2].used_at == format_time(began_at)
    assert [row.used_at for row in rows if row is not rows[2]] == [
        format_time(row.manifest.taken_at) for row in rows if row is not rows[2]
    ]
    shared = shared_bytes(stage.store, [row.manifest for row in rows])
    assert {row.manifest.snapshot_id: row.shared_bytes for row in rows} == shared
    Remover(stage.control, SnapshotPlaces(stage.store), "killed").condemn({one: rows[0].manifest}, lambda _: [one])
    assert [row.manifest.snapshot_id for row in stage.controller.kept_snapshots(STREAM)] == [two, three, four]


def test_a_damaged_record_hides_no_snapshot(stage: Stage) -> None:
    """Pins and leases are unknown then, and shown as none. (Law 7)"""
    snapshots = grow(stage, 2)
    stage.controller.retention.pin(STREAM, snapshots[0])
    stage.store.put(layout.retention_key(STREAM), b"{")
    (row,) = stage.controller.kept_snapshots(STREAM)
    assert (row.manifest.snapshot_id, row.is_pinned, row.is_known_good, row.leases) == (snapshots[0], False, False, ())
    assert row.used_at == format_time(row.manifest.taken_at)


def test_of_a_stream_that_is_not_there_nothing_is_shown_pinned_or_pruned(stage: Stage) -> None:
    """Its name may be wrong."""
    stage.deploy()
    retention = stage.controller.retention
    for act in (
        lambda: stage.controller.kept_snapshots("nosuch"),
        lambda: retention.prune("nosuch", NOTHING),
        lambda: retention.pin("nosuch", "s-1"),
        lambda: retention.unpin("nosuch", "s-1"),
    ):
        with pytest.raises(StreamNotFoundError):
            act()


def test_a_pin_whose_snapshot_is_gone_can_be_taken_away(stage: Stage) -> None:
    """Of one that was promised and never came; a second time there is neither pin nor snapshot."""
    grow(stage, 1)
    retention = stage.controller.retention
    retention.pin(STREAM, "d-0001-live-000009", is_promised=True)
    retention.unpin(STREAM, "d-0001-live-000009")
    assert Retention(stage.control).read().pins == {}
    with pytest.raises(SnapshotNotFoundError):
        retention.unpin(STREAM, "d-0001-live-000009")


def test_without_a_policy_the_recorded_one_decides_and_a_given_one_wins(stage: Stage) -> None:
    """A stream without one is pruned by the default. The prune reports which it was; a dry one records nothing."""
    retention, details = stage.controller.retention, stage.controller.details
    grow(stage, 5)
    mark(stage, "d-0005")
    usual = retention.prune(STREAM)
    assert (usual.policy_source, usual.policy, usual.removed) == ("default", RetentionPolicy(), {})
    assert Retention(stage.control).read().last_prune is None
    assert details.change_retention(STREAM, RetentionPolicy(1)) == details.retention(STREAM) == RetentionPolicy(1)
    given = retention.prune(STREAM, RetentionPolicy(9), is_dry=True)
    assert (given.policy_source, given.policy.keep, given.removed) == ("given", 9, {})
    would = retention.prune(STREAM, is_dry=True)
    assert (would.policy_source, would.policy, len(would.removed)) == ("recorded", RetentionPolicy(1), 2)
    assert Retention(stage.control).read().last_prune is None
    newest = Retention(stage.control).read().newest_snapshot_id
    did = retention.prune(STREAM)
    assert (did.policy_source, did.removed.keys()) == ("recorded", would.removed.keys())
    assert Retention(stage.control).read().last_prune == LastPrune(stage.clock.now(), RetentionPolicy(1), newest)
    assert details.change_retention(STREAM, None) is None
    assert retention.prune(STREAM, is_dry=True).policy_source == "default"


def test_a_deploy_records_the_retention_and_the_next_one_keeps_it(stage: Stage) -> None:
    """Unless it names another one, or none."""
    for number, (asked, found) in enumerate(
        [
            ({"keep": 3}, RetentionPolicy(3)),
            (None, RetentionPolicy(3)),
            ({"older_than_seconds": 60.0}, RetentionPolicy(None, 60.0)),
            ({}, None),
        ],
        1,
    ):
        stage.deploy(f"print({number})\n", retention=asked)
        assert stage.controller.status(STREAM).retention == found
        stage.stopped(1, deployment_id_for(number))


def test_a_prune_is_told_in_json() -> None:
    """Snapshots with their reasons and bytes, and all else that went."""
    leftover = Leftover("launch", "d-0001-a0001", "old")
    mirror = PrunedMirror("/mirror", {}, {}, {}, 3, "away")
    pruned = Pruned(
        STREAM, True, RetentionPolicy(older_than_seconds=60.0), "recorded",
        {"s-1": ("old",), "s-0": ("older", "oldest")}, {"s-1": 17}, {"s-2": ("pinned",)}, (leftover,),
        Removed(7, ["s-3"], ["a problem"]), 2, ("a note",), (mirror,),
    )  # fmt: skip
    assert pruned.to_json() == {
        "stream_id": STREAM,
        "dry_run": True,
        "policy": {"keep": 0, "older_than_seconds": 60.0, "at_mirrors": False, "source": "recorded"},
        "removed": [
            {"snapshot_id": "s-1", "why": ["old"], "freed_bytes": 17},
            {"snapshot_id": "s-0", "why": ["older", "oldest"], "freed_bytes": 0},
        ],
        "kept": [{"snapshot_id": "s-2", "why": ["pinned"]}],
        "leftovers": [leftover.to_json()],
        "abandoned": ["s-3"],
        "files": 7,
        "temporary_files": 2,
        "notes": ["a note"],
        "mirrors": [mirror.to_json()],
    }


def test_what_a_prune_did_is_what_is_gone(stage: Stage) -> None:
    """Files and bytes of snapshots, counted where they were; a second one finds nothing more to do."""
    one, two, three = grow(stage, 4)
    mark(stage, "d-0004")
    folder = f"{layout.snapshots_folder(STREAM)}/"
    before = {info.key: info.size_bytes for info in stage.store.list_objects(folder) if "/data" in info.key}
    pruned = prune(stage)
    left = {info.key for info in stage.store.list_objects(folder)}
    gone = {key: size for key, size in before.items() if key not in left}
    assert (pruned.stream_id, pruned.is_dry, pruned.swept.files, pruned.freed) == (
        STREAM, False, len(gone), {one: sum(gone.values())},
    )  # fmt: skip
    assert (pruned.swept.problems, pruned.notes, pruned.temporaries, pruned.mirrors) == ([], (), 0, ())
    assert list(pruned.kept) == [three, two]
    assert pruned.kept[three][0] == "last known good: d-0004 started from it"
    assert pruned.kept[two][0] == "the deployment before the current one, d-0003, started from it"
    again = prune(stage)
    assert (again.removed, again.freed, again.swept.files, list(again.kept)) == ({}, {}, 0, [three, two])


def test_a_manifest_that_cannot_be_read_is_named(stage: Stage) -> None:
    """Nothing of its snapshot goes or is kept; without snapshots that name checkpoints, leftovers go all the same."""
    one, *_ = grow(stage, 4)
    mark(stage, "d-0004")
    stage.store.put(layout.manifest_key(STREAM, one), b"{")
    pruned = prune(stage)
    assert one not in {**pruned.removed, **pruned.kept}
    assert f"the manifest of {one} cannot be read, and is neither kept nor removed" in pruned.notes
    assert whats(pruned, "checkpoints") == ["d-0001", "d-0002", "d-0003"]


# last known good


def test_a_version_that_was_waited_for_is_known_good(stage: Stage) -> None:
    """By the wait itself; an older one never takes its place again."""
    grow(stage, 1)
    stage.controller.wait(WaitCondition("healthy", STREAM, "d-0001"), 10.0)
    good = Retention(stage.control).read().known_good
    assert good is not None
    assert good.deployment_id == "d-0001"
    mark(stage, "d-0007")
    mark(stage, "d-0003")
    assert Retention(stage.control).read().known_good.deployment_id == "d-0007"  # type: ignore[union-attr]


def test_the_prune_itself_finds_that_a_version_is_known_good(stage: Stage) -> None:
    """Three batches past its start, and nothing left to read."""
    grow(stage, 2)
    assert has_proven_itself(stage.controller.retention._context, stage.seen())
    prune(stage)
    good = Retention(stage.control).read().known_good
    assert good is not None
    assert good.deployment_id == "d-0002"


def test_a_version_that_has_not_proven_itself_lets_nothing_go(stage: Stage) -> None:
    """Its predecessor's checkpoint stays whole, and the prune reports why."""
    grow(stage, 3, rows_behind=7)
    pruned = prune(stage)
    assert pruned.leftovers == ()
    assert "no version has proven itself" in pruned.notes[0]


# what deployments leave


@pytest.mark.parametrize(
    ("least", "read", "is_good"),
    [((30, 40), 1_000, True), ((900, 400), 1_000, False), ((30, 40), 100, False), ((30, 90), 100, False)],
)
def test_a_version_whose_input_never_pauses_is_known_good_when_no_more_than_two_batches_are_left(
    stage: Stage, least: tuple[int, int], read: int, *, is_good: bool
) -> None:
    """One that still catches up, or falls behind, is not; else a stream that is never without input would keep each of
    its snapshots."""
    grow(stage, 3)
    at = stage.clock.now()
    trend = LagTrend(10, read, 100.0, 1_000, 100.0, *least, least[1])
    lags = (SourceLag("kafka subscribe flights", 500, "rows", trend=trend),)
    stage.beat("d-0003", counts=QueryBeat(9, at, is_active=True, lags=lags, lags_at=at))
    assert has_proven_itself(stage.controller._context, stage.seen("d-0003")) is is_good


def test_a_checkpoint_stays_whole_to_which_a_snapshot_refers_that_was_completed_meanwhile(tmp_path: Path) -> None:
    """On servers a new one names the files of an older one, until it is recorded that this one goes."""
    stage = Stage(tmp_path, LocalStore(tmp_path / "home", fsync=False))
    stage.deploy(snapshots="none")
    one = str(stage.stopped().snapshot_id)
    grow(stage, 4, first=2)
    mark(stage, "d-0004")
    base, made = stage.control.need_manifest(one), "d-0004-live-000009"
    plan = FaultPlan()

    def complete() -> None:
        is_recorded = one in Retention(stage.control).read().condemned
        if not is_recorded and plan.calls[-1].writes and plan.calls[-1].key == layout.retention_key(STREAM):
            changed = replace(base, snapshot_id=made, deployment_id="d-0004", write_id="another")
            with suppress(ObjectExistsError):
                stage.control.create_manifest(changed)

    plan.meanwhile = dict.fromkeys(range(1, 1000), complete)
    store = FaultyStore(stage.store, plan)
    home = Home.of(store, store, tmp_path, stage.clock)
    pruned = Controller(home, stage.launcher, stage.clock, "prunes").retention.prune(STREAM, NOTHING)
    assert one in pruned.removed
    assert verify(stage.control, stage.store, made) == []


def test_no_checkpoint_is_cut_down_to_which_a_damaged_manifest_may_refer(tmp_path: Path) -> None:
    """Once that is put back, the snapshot is complete."""
    stage = Stage(tmp_path, LocalStore(tmp_path / "home", fsync=False))
    stage.deploy(snapshots="none")
    end = str(stage.stopped().snapshot_id)
    grow(stage, 4, first=2)
    mark(stage, "d-0004")
    key = layout.manifest_key(STREAM, end)
    kept = stage.store.get(key)
    assert kept is not None
    stage.store.put(key, b"half a fi")
    pruned = prune(stage)
    assert whats(pruned, "checkpoints") == []
    assert any(end in note and "cannot be read" in note for note in pruned.notes)
    stage.store.put(key, kept.body)
    assert verify(stage.control, stage.store, end) == []


def test_while_a_deploy_is_under_way_only_snapshots_go(stage: Stage) -> None:
    """The deploy may need any leftover (Law 1)."""
    grow(stage, 4)
    mark(stage, "d-0004")
    intent = Intent("r", "d-0005", stage.clock.now(), "ada")
    stage.control.update_register(lambda now: replace(now, intent=intent), by="test")
    pruned = prune(stage)
    assert pruned.leftovers == ()
    assert pruned.removed
    assert "under way" in pruned.notes[0]


def test_deployments_beyond_the_newest_go_whole_and_the_audit_stays_whole(stage: Stage) -> None:
    """With their requests; what the audit had found of them is kept (Law 1)."""
    grow(stage, KEPT_DEPLOYMENTS + 4)
    newest = deployment_id_for(KEPT_DEPLOYMENTS + 4)
    mark(stage, newest)
    was_whole = lineage_of(stage.home, STREAM).is_whole
    pruned = prune(stage)
    assert whats(pruned, "deployment") == ["d-0001", "d-0002", "d-0003", "d-0004"]
    assert stage.control.deployment_ids()[0] == "d-0005"
    assert len(whats(pruned, "request")) == 4
    lineage = lineage_of(stage.home, STREAM)
    assert (lineage.is_whole, lineage.unread) == (was_whole, ())
    assert lineage.settled is not None
    assert lineage.settled.through == deployment_id_for(KEPT_DEPLOYMENTS + 3)
    assert [one.deployment_id for one in lineage.deployments if one.queries] == [newest]


def test_the_owner_of_a_kept_snapshot_stays_on_record(stage: Stage) -> None:
    """A start from it asks what its deployment was (1a.12)."""
    one, *_ = grow(stage, KEPT_DEPLOYMENTS + 3)
    mark(stage, deployment_id_for(KEPT_DEPLOYMENTS + 3))
    stage.controller.retention.pin(STREAM, one)
    assert whats(prune(stage), "deployment") == ["d-0002", "d-0003"]


def test_artifacts_go_some_time_after_their_last_deployment(stage: Stage) -> None:
    """One that is just being deployed has its record by then (Law 15)."""
    grow(stage, KEPT_DEPLOYMENTS + 3)
    mark(stage, deployment_id_for(KEPT_DEPLOYMENTS + 3))
    assert whats(prune(stage), "artifact") == []
    stage.clock.sleep(UNUSED_SECONDS + 1)
    assert len(whats(prune(stage), "artifact")) == 3
    folders = stage.store.list_folders(layout.artifacts_folder(STREAM))
    assert len(folders) == KEPT_DEPLOYMENTS
