"""The parts of a seed that need no Spark."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from airflow_streamstate.checkpoint.log import MARK_KEY, SOURCES_NAMED, Checkpoint
from airflow_streamstate.checkpoint.seed import (
    PINNED_CONF_KEYS,
    SeedPlan,
    finish_seed,
    prepare_seed,
    renumbered_logs,
    source_files_of,
)
from airflow_streamstate.checkpoint.state_files import files_of
from airflow_streamstate.errors import ConflictError, DataError, InvalidRequestError, UnsupportedCheckpointError
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.memory import MemoryStore
from support.checkpoints import (
    QUERY_ID,
    commit_batch,
    end_offsets,
    rocksdb_zip,
    write_hdfs_state,
    write_operator_metadata,
    write_source_log,
    write_with_crc,
)
from support.faulty_store import KILL_POINTS, Fault, FaultPlan, FaultyStore, SimulatedCrash

CONF = {key: f"value of {key}" for key in PINNED_CONF_KEYS}
DRAINED = Checkpoint(MemoryStore(), "orders/snapshots/d-0001-drained-000001/data/counts")
PLAN = SeedPlan(QUERY_ID, 7, ('{"logOffset":3}',), 5000)


def areas(store: Store) -> tuple[Checkpoint, Checkpoint]:
    return Checkpoint(store, "d/building/counts"), Checkpoint(store, "d/checkpoints/counts")


def drained_sources(store: Store, last: int = 3) -> dict[str, str]:
    drained = Checkpoint(store, DRAINED.prefix)
    write_source_log(drained, last)
    start = len(drained.prefix) + 1
    files = {info.key[start:]: info.key for info in store.list_objects(f"{drained.prefix}/")}
    return source_files_of(files)


def run_batch_0(building: Checkpoint, *, provider: str = "hdfs") -> None:
    """What Spark leaves of the empty batch."""
    commit_batch(building, 0)
    write_operator_metadata(building)
    for partition in (0, 1):
        if provider == "hdfs":
            write_hdfs_state(building, range(1, 2), folders=[f"0/{partition}"])
        else:
            write_with_crc(building.store, building.key(f"state/0/{partition}/1.zip"), rocksdb_zip(["a.sst"]))
            write_with_crc(building.store, building.key(f"state/0/{partition}/SSTs/a.sst"), b"sst")


def ready(
    store: Store | None = None, plan: SeedPlan = PLAN, *, provider: str = "hdfs"
) -> tuple[Checkpoint, Checkpoint]:
    building, target = areas(store or MemoryStore())
    prepare_seed(building, plan, conf=CONF, batch_timestamp_ms=1000)
    run_batch_0(building, provider=provider)
    return building, target


def content(checkpoint: Checkpoint) -> dict[str, bytes]:
    store, start = checkpoint.store, len(checkpoint.prefix) + 1
    return {info.key[start:]: store.get(info.key).body for info in store.list_objects(f"{checkpoint.prefix}/")}


def test_prepared_checkpoint_plans_an_empty_batch_0() -> None:
    """Batch 0 is planned with no offset for any source of the new plan, under the same query id (Law 9)."""
    building, _ = areas(MemoryStore())
    plan = replace(PLAN, source_lines=('{"logOffset":3}', "-"))
    prepare_seed(building, plan, conf=CONF, batch_timestamp_ms=1000)
    position = building.position()
    assert (building.query_id(), position.batch_id, position.planned_id) == (QUERY_ID, None, 0)
    assert position.planned.source_lines == ("-", "-")
    assert (dict(position.planned.conf), position.planned.batch_watermark_ms) == (CONF, 0)


def test_a_seed_is_written_in_the_offset_log_that_the_session_asks_for() -> None:
    """Both of its entries, with the names of the sources, whatever log was drained (1a.10)."""
    store = MemoryStore()
    plan = replace(PLAN, source_lines=('{"logOffset":3}', "-"), source_keys=("rows", "side"))
    conf = {**CONF, SOURCES_NAMED: "true"}
    building, target = areas(store)
    prepare_seed(building, plan, conf=conf, batch_timestamp_ms=1000)
    planned = building.position().planned
    assert (planned.version, planned.source_names, planned.source_lines) == ("v2", ("rows", "side"), ("-", "-"))
    run_batch_0(building, provider="hdfs")
    finish_seed(building, plan, {}, target)
    for batch_id in (6, 7):
        entry = target.read_offset(batch_id)
        assert (entry.version, entry.source_names) == ("v2", ("rows", "side"))
        assert (entry.source_lines, dict(entry.conf)) == (plan.source_lines, conf)


def test_preparing_wipes_what_an_earlier_try_left() -> None:
    """A crash before the end: start again (1a.10)."""
    building, _ = ready()
    prepare_seed(building, PLAN, conf=CONF, batch_timestamp_ms=1000)
    assert set(content(building)) == {"metadata", "offsets/0"}


def test_settings_that_spark_pins_must_all_be_given() -> None:
    """A setting that is missing would bring back the state formats of Spark 2 in silence."""
    building, _ = areas(MemoryStore())
    conf = {key: value for key, value in CONF.items() if not key.endswith("shuffle.partitions")}
    with pytest.raises(InvalidRequestError) as error:
        prepare_seed(building, PLAN, conf=conf, batch_timestamp_ms=0)
    assert error.value.context["missing"] == ["spark.sql.shuffle.partitions"]


def test_plan_that_does_not_fit_is_refused() -> None:
    """A drain is batch 1 at least; a key is of one offset."""
    for plan in (replace(PLAN, batch_id=0), replace(PLAN, source_keys=("one", "more"))):
        with pytest.raises(InvalidRequestError):
            prepare_seed(areas(MemoryStore())[0], plan, conf=CONF, batch_timestamp_ms=0)


def test_a_drain_in_the_very_first_batches_can_be_seeded_from() -> None:
    """A flush is batch 1 at the earliest: the seed then has the entries 0 and 1, and continues with batch 2. (Law 9)"""
    first = replace(PLAN, batch_id=1)
    building, target = ready(MemoryStore(), first)
    assert finish_seed(building, first, {}, target)
    assert (target.offset_ids(), target.commit_ids()) == ([0, 1], [0, 1])
    assert target.position().next_batch_id == 2


def test_the_log_that_a_source_is_given_is_the_one_and_only_file_of_it() -> None:
    """Nothing of the drained log is left alongside it: a file in neither is read, one in both is not. (Law 14)"""
    store = MemoryStore()
    building, target = ready(store)
    drained = {**drained_sources(store), "1/0": DRAINED.key("sources/0/0"), "2/0": DRAINED.key("sources/0/1")}
    drained["0/deeper/0"] = DRAINED.key("sources/0/2")
    finish_seed(building, PLAN, drained, target, books={"0": b"v1\nall that was read", "1": b""})
    sources = {path: body for path, body in content(target).items() if path.startswith("sources/")}
    other = store.get(DRAINED.key("sources/0/1"))
    assert sources == {"sources/0/0": b"v1\nall that was read", "sources/2/0": other.body}


@pytest.mark.parametrize("provider", ["hdfs", "rocksdb"])
def test_finished_seed_goes_on_at_the_drained_batch(provider: str) -> None:
    """Entries N-1 and N, state as version N + 1, drained offsets, watermark and query id; the area is gone (1a.10)."""
    store = MemoryStore()
    building, target = ready(store, provider=provider)
    assert finish_seed(building, PLAN, drained_sources(store), target)
    assert (target.offset_ids(), target.commit_ids(), target.query_id()) == ([6, 7], [6, 7], QUERY_ID)
    assert (end_offsets(target), target.watermark_ms()) == (('{"logOffset":3}',), 5000)
    entry = target.read_offset(7)
    assert (entry.batch_watermark_ms, entry.batch_timestamp_ms, dict(entry.conf)) == (5000, 1000, CONF)
    assert MARK_KEY not in entry.conf
    kind = "snapshot" if provider == "hdfs" else "zip"
    state = {path for path in content(target) if path.startswith("state/")}
    assert {f"state/0/0/8.{kind}", f"state/0/0/.8.{kind}.crc", f"state/0/1/8.{kind}"} <= state
    assert not [path for path in state if path.endswith(("/1.delta", "/1.zip", "/.1.zip.crc"))]
    assert {"state/0/_metadata/metadata", "state/0/0/_metadata/schema"} <= state
    assert {f"sources/0/{number}" for number in range(4)} <= set(content(target))
    assert content(building) == {}


def test_finished_seed_has_the_files_of_its_position() -> None:
    """A seed can be captured and forked like any other checkpoint."""
    store = MemoryStore()
    building, target = ready(store)
    finish_seed(building, PLAN, drained_sources(store), target)
    listed = {key[len(target.prefix) + 1 :] for key in files_of(target, target.position())}
    assert listed == set(content(target))


def test_finishing_twice_is_finishing_once() -> None:
    """The seed may have run since: it is left as it is (Law 2)."""
    store = MemoryStore()
    building, target = ready(store)
    sources = drained_sources(store)
    finish_seed(building, PLAN, sources, target)
    after = content(target)
    assert not finish_seed(building, PLAN, sources, target)
    assert content(target) == after


@pytest.mark.parametrize("fault", KILL_POINTS)
def test_half_built_seed_is_built_again(fault: Fault) -> None:
    """Killed at any call of the finishing: started again it ends as one that was never disturbed (1a.10)."""
    plain = MemoryStore()
    counting = FaultyStore(plain, FaultPlan())
    ready(plain)
    building, target = areas(counting)
    finish_seed(building, PLAN, drained_sources(plain), target)
    whole = content(Checkpoint(plain, target.prefix))
    for number in range(1, len(counting.calls) + 1):
        inner = MemoryStore()
        ready(inner)
        sources = drained_sources(inner)
        building, target = areas(FaultyStore(inner, FaultPlan({number: fault})))
        with contextlib.suppress(Exception, SimulatedCrash):  # what the caller sees is not the point here
            finish_seed(building, PLAN, sources, target)
        building, target = areas(inner)
        if not target.exists():
            building, target = ready(inner)
        finish_seed(building, PLAN, sources, target)
        assert content(target) == whole


@pytest.mark.parametrize("state", ["not run", "not committed", "ran on"])
def test_seed_whose_batch_0_did_not_run_alone_is_refused(state: str) -> None:
    """Only the empty batch 0, committed, is what a seed is made of."""
    store = MemoryStore()
    building, target = areas(store)
    if state != "not run":
        prepare_seed(building, PLAN, conf=CONF, batch_timestamp_ms=1000)
    if state == "ran on":
        run_batch_0(building)
        store.put(building.offset_key(1), store.get(building.offset_key(0)).body)
    with pytest.raises(ConflictError):
        finish_seed(building, PLAN, {}, target)
    assert not target.exists()


def test_seed_in_format_2_keeps_the_ids_of_its_state() -> None:
    """The files are renumbered and keep their ids, which the commit of batch N names as that of batch 0 did."""
    store = MemoryStore()
    building, target = ready(store)
    unique = "0b1a8f0e-2f0a-4f0c-9d0b-5f3c0c7e9a11"
    store.put(building.key(f"state/3/0/1_{unique}.zip"), b"zip")
    store.put(building.key(f"state/3/0/.1_{unique}.zip.crc"), b"crc")
    ids = b'"stateUniqueIds":{"3":[["0b1a8f0e-2f0a-4f0c-9d0b-5f3c0c7e9a11"]]}}'
    store.put(building.commit_key(0), b'v2\n{"nextBatchWatermarkMs":0,' + ids)
    finish_seed(building, PLAN, {}, target)
    state = {path for path in content(target) if path.startswith("state/3/")}
    assert state == {f"state/3/0/{PLAN.batch_id + 1}_{unique}.zip", f"state/3/0/.{PLAN.batch_id + 1}_{unique}.zip.crc"}
    commit = store.get(target.commit_key(PLAN.batch_id))
    assert commit.body == b'v2\n{"nextBatchWatermarkMs":%d,' % PLAN.watermark_ms + ids


@pytest.mark.parametrize("name", ["1.changelog", ".1.changelog.crc", "1_0b1a8f0e-2f0a-4f0c-9d0b-5f3c0c7e9a11.delta"])
def test_seed_in_another_format_is_refused(name: str) -> None:
    """Changelog checkpointing would ask for changelogs 1 to N (Law 10)."""
    store = MemoryStore()
    building, target = ready(store)
    store.put(building.key(f"state/0/0/{name}"), b"")
    with pytest.raises(UnsupportedCheckpointError):
        finish_seed(building, PLAN, {}, target)
    assert not target.exists()


def test_state_of_two_versions_is_refused() -> None:
    """State beyond batch 0 is no empty state."""
    building, target = ready()
    write_hdfs_state(building, range(2, 3), folders=["0/0"])
    with pytest.raises(DataError):
        finish_seed(building, PLAN, {}, target)


def test_temporary_files_of_batch_0_stay_behind() -> None:
    """What a task left half written is no state."""
    store = MemoryStore()
    building, target = ready(store)
    store.put(building.key("state/0/0/.1.delta.0b1a8f0e.TID3.tmp"), b"x")
    store.put(building.key("state/0/0/..1.delta.0b1a8f0e.TID3.tmp.crc"), b"x")
    finish_seed(building, PLAN, drained_sources(store), target)
    assert not [path for path in content(target) if "tmp" in path]


def test_another_querys_checkpoint_is_not_taken_for_the_seed() -> None:
    """A checkpoint with another query id at the target is a conflict, and untouched."""
    building, target = ready()
    building.store.put(target.metadata_key, b'{"id":"another"}')
    with pytest.raises(ConflictError):
        finish_seed(building, PLAN, {}, target)


def test_seed_that_ran_and_lost_its_metadata_is_not_wiped() -> None:
    """Batches of its own in its log: never built again (Law 14)."""
    store = MemoryStore()
    building, target = ready(store)
    finish_seed(building, PLAN, drained_sources(store), target)
    commit_batch(target, 8)
    store.delete(target.metadata_key)
    building, target = ready(store)
    with pytest.raises(DataError):
        finish_seed(building, PLAN, drained_sources(store), target)


def test_logs_of_sources_get_the_numbers_that_the_sources_have_now() -> None:
    """A source that moved takes its log along; one that is not read any more leaves it behind."""
    logs = {"0/0": "a", "0/.0.crc": "b", "1/9.compact": "c", "2/0": "d", "named/0": "e", "1/deeper/3": "f"}
    moved = {"1/0": "a", "1/.0.crc": "b", "0/9.compact": "c", "0/deeper/3": "f"}
    assert renumbered_logs(logs, {"0": "1", "1": "0"}) == moved
    assert renumbered_logs(logs, {"named": "other", "2": "rows"}) == {"other/0": "e", "rows/0": "d"}
