"""A seed at other offsets: input that it skips or reads again is noted, and refused without consent."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_streamstate.checkpoint.log import SOURCES_NAMED, format_offset_entry
from airflow_streamstate.controller.decide import Refused, Start, decide_start
from airflow_streamstate.controller.deploy.start_plan import decide_elsewhere
from airflow_streamstate.controller.observe.views import DeploymentView
from airflow_streamstate.errors import IncompatibleUpgradeError, InvalidRequestError, StreamStateError
from airflow_streamstate.protocol.events import Stopped
from airflow_streamstate.protocol.manifest import FileEntry, QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.positions import QueryPosition, SourceIdentity
from airflow_streamstate.protocol.records import StartPlan
from support.sim_stage import STREAM, Stage

FILES = (SourceIdentity("file", "file /in"),)
AT = datetime(2026, 3, 1, tzinfo=timezone.utc)
SAFE: dict[str, Any] = {"start": "seed", "allow_state_loss": True}
NONSENSE = "[" + "x" * 300
END = "d-0001-stopped-000001"
STOOD = {"source": "file /in", "stood_at": '{"logOffset":3}'}
AGAIN = 'file /in: 2 files read again ({"logOffset":3} to {"logOffset":1})'


def at(offset: int) -> dict[str, tuple[str, ...]]:
    return {"counts": (f'{{"logOffset":{offset}}}',)}


def stopped(stage: Stage, last: int = 3) -> SnapshotManifest:
    """A deployment that was stopped behind this batch, each of which read a file."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(last)
    return end(stage)


def end(stage: Stage, identities: tuple[SourceIdentity, ...] = FILES) -> SnapshotManifest:
    manifest = stage.keep(identities=identities)
    positions = {name: query.position for name, query in manifest.queries.items()}
    stage.say(Stopped, snapshot_id=manifest.snapshot_id, queries=positions)
    stage.end()
    return manifest


def decided(stage: Stage, manifest: SnapshotManifest | None, **fields: Any) -> Start | Refused:
    """How a request for this would start behind that snapshot."""
    return decide_elsewhere(stage.home, stage.request(**fields), "d-0001", manifest, ())


def test_what_is_read_again_is_said_before_anything_starts_and_recorded(stage: Stage) -> None:
    """In files, by Spark's own book of them. (Laws 5 and 14)"""
    stopped(stage)
    said: list[DeploymentView] = []
    request = stage.request("print('v2')\n", offsets=at(1), accept_repeated_input=("counts",), **SAFE)
    view = stage.controller.deploy(request, said.append)
    assert view.start.mode == "seed"
    assert stage.spec("d-0002").start.offsets == at(1)
    assert stage.spec("d-0002").start.accept_repeated_input == ("counts",)
    assert f"query counts, source {AGAIN}" in said[0].notes


@pytest.mark.parametrize(
    ("fields", "error", "said", "facts"),
    [
        ({"offsets": at(1), **SAFE}, IncompatibleUpgradeError, "--accept-repeated-input counts", {"moves": [AGAIN]}),
        (
            {"offsets": at(3), "start": "seed"},
            IncompatibleUpgradeError,
            "a seed would drop",
            {"snapshot_id": END, "state_rows": None},
        ),
        (
            {"offsets": {"nosuch": ("1",)}, **SAFE},
            InvalidRequestError,
            "no position of this query",
            {"query_name": "nosuch", "snapshot_id": END, "queries": ["counts"]},
        ),
        ({"offsets": {"counts": ("1", "2")}, **SAFE}, InvalidRequestError, "number", {"offsets": 2, "sources": 1}),
        (
            {"offsets": {"counts": (NONSENSE,)}, **SAFE},
            InvalidRequestError,
            "this is not an offset of the source",
            {**STOOD, "offset": NONSENSE[:200]},
        ),
        (
            {"offsets": at(4), **SAFE},
            InvalidRequestError,
            "no offset is ahead",
            {**STOOD, "offset": at(4)["counts"][0]},
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_recorded(
    stage: Stage, fields: dict[str, Any], error: type[StreamStateError], said: str, facts: dict[str, object]
) -> None:
    """With all that a user needs to correct it, or the options that consent. (Laws 1, 5 and 16)"""
    stopped(stage)
    with pytest.raises(error) as refused:
        stage.deploy("print('v2')\n", **fields)
    assert said in f"{refused.value} {refused.value.next_step}"
    assert refused.value.context == {"query_name": "counts", **facts}
    assert stage.controller.status(STREAM).deployment_id == "d-0001"
    assert stage.controller.status(STREAM).intent == ""


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"offsets": at(1)}, "only a seed can start elsewhere"),
        ({"begins_at": AT, "start": "restore"}, "only a seed can start elsewhere"),
        ({"begins_at": AT, "offsets": at(1), "start": "seed"}, "exclude each other"),
        ({"begins_at": datetime(2026, 3, 1), "start": "seed"}, "no time zone"),  # noqa: DTZ001 - just that
    ],
)
def test_a_request_that_contradicts_itself_is_none(stage: Stage, fields: dict[str, Any], said: str) -> None:
    """Reported in one sentence."""
    with pytest.raises(InvalidRequestError, match=said):
        stage.request(**fields)


def test_every_other_request_starts_as_ever(stage: Stage) -> None:
    """Without offsets, or without a position to move away from."""
    manifest = stopped(stage)
    named = stage.request(offsets=at(1), **SAFE)
    for request, predecessor_id, snapshot in (
        (stage.request(), "d-0001", manifest),
        (named, None, manifest),
        (named, "d-0001", None),
        (named, "d-0001", replace(manifest, queries={})),
    ):
        for carried in ((), ("counts",)):
            found = decide_elsewhere(stage.home, request, predecessor_id, snapshot, carried)
            assert str(found) == str(decide_start(request, predecessor_id, snapshot, carried))


def test_the_start_has_the_beginning_beside_all_else_that_was_asked_for(stage: Stage) -> None:
    """And the notes of any start before its own. (Law 14)"""
    manifest = stopped(stage)
    others: dict[str, Any] = {"allow_new_queries": ("new",), "accept_lost_input": ("lost",)}
    found = decide_elsewhere(
        stage.home,
        stage.request(offsets=at(1), accept_repeated_input=("counts",), **others, **SAFE),
        "d-0001",
        manifest,
        ("counts",),
    )
    assert isinstance(found, Start)
    assert found.plan == StartPlan(
        "seed", manifest.snapshot_id, "d-0001", True, **others, offsets=at(1), accept_repeated_input=("counts",)
    )
    assert [note.partition(":")[0] for note in found.notes] == [
        "query counts was never started by d-0001",
        "query counts, source file /in",
    ]
    since = decided(stage, manifest, begins_at=AT, **SAFE)
    assert isinstance(since, Start)
    assert since.plan == StartPlan("seed", manifest.snapshot_id, "d-0001", True, begins_at=AT)


def test_where_a_query_stood_is_where_it_may_begin(stage: Stage) -> None:
    """Nothing is passed over, and nothing read again."""
    found = decided(stage, stopped(stage), offsets=at(3), **SAFE)
    assert isinstance(found, Start)
    assert found.notes == ('query counts, source file /in: where it was ({"logOffset":3})',)


@pytest.mark.parametrize("has_names", [False, True])
def test_files_are_counted_in_the_book_of_their_source(stage: Stage, has_names: bool) -> None:
    """Spark keeps it below the name of a source that has one, and else below its number. (1a.10)"""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    checkpoint = stage.run_batches(3)
    if has_names:
        for batch_id in range(4):
            entry = checkpoint.read_offset(batch_id)
            assert entry is not None
            conf = {**entry.conf, SOURCES_NAMED: "true"}
            named = replace(entry, version="v2", source_keys=("rows",), conf=conf)
            checkpoint.store.put(checkpoint.offset_key(batch_id), format_offset_entry(named))
            book = checkpoint.store.get(checkpoint.key(f"sources/0/{batch_id}"))
            assert book is not None
            checkpoint.store.put(checkpoint.key(f"sources/rows/{batch_id}"), book.body)
            checkpoint.store.delete(checkpoint.key(f"sources/0/{batch_id}"))
    manifest = end(stage)
    found = decided(stage, manifest, offsets=at(1), accept_repeated_input=("counts",), **SAFE)
    assert isinstance(found, Start)
    (note,) = found.notes
    assert "2 files read again" in note


SOCKET = SourceIdentity("", "socket here")


def test_input_that_cannot_be_counted_is_passed_over_and_read_again_by_name_alone(running: Stage) -> None:
    """Either consent by itself is not enough; each is asked for by its own option. (Laws 5 and 14)"""
    manifest = end(running, (SOCKET,))
    lost, repeated = "--accept-lost-input counts", "--accept-repeated-input counts"
    for accepted, missing in (
        ({}, f"{lost} and {repeated}"),
        ({"accept_lost_input": ("counts",)}, repeated),
        ({"accept_repeated_input": ("counts",)}, lost),
    ):
        found = decided(running, manifest, offsets=at(1), **accepted, **SAFE)
        assert isinstance(found, Refused)
        assert found.error.next_step == f"If that is meant, deploy with {missing}."
    both = {"accept_lost_input": ("counts",), "accept_repeated_input": ("counts",)}
    assert isinstance(decided(running, manifest, offsets=at(1), **both, **SAFE), Start)


@pytest.mark.parametrize(
    ("position", "drained", "files", "asked", "said"),
    [
        (QueryPosition(3, ("-",), planned_batch_id=4), False, (), {}, "planned and not committed"),
        (QueryPosition(0, ("-",)), False, (), {}, "a seed needs two committed batches"),
        (QueryPosition(1, ("-",)), False, (), {}, None),
        (QueryPosition(3, ("-",)), False, ("state/0/0/1.delta",), {}, "a seed would drop"),
        (QueryPosition(3, ("-",)), False, ("offsets/3", "commits/3", "my-state/x"), {}, None),
        (QueryPosition(3, ("-",)), False, ("state/0/0/1.delta",), {"allow_state_loss": True}, None),
        (QueryPosition(3, ("-",), state_rows_left=0), True, ("state/0/0/1.delta",), {}, None),
        (QueryPosition(None), False, (), {}, "no position of this query"),
    ],
)
def test_only_a_query_that_stands_and_has_no_state_is_moved(
    stage: Stage,
    position: QueryPosition,
    drained: bool,
    files: tuple[str, ...],
    asked: dict[str, Any],
    said: str | None,
) -> None:
    """State belongs to the offsets that it was built from; a batch in the making may be in the sink. (Laws 14, 16)"""
    entries = tuple(FileEntry(path, 1, "0a1b2c3d") for path in files)
    query = QuerySnapshot("id", position, entries, drained=drained)
    manifest = SnapshotManifest("s-1", "stopped", STREAM, "d-0001", 1, 1, AT, "agent", {"counts": query}, "w", "")
    fields = {"offsets": at(1)} if position.batch_id is None else {"begins_at": AT}
    found = decided(stage, manifest, start="seed", **fields, **asked)
    if said is None:
        assert isinstance(found, Start), found
    else:
        assert isinstance(found, Refused)
        assert said in found.error.message


def test_a_time_moves_every_query_that_has_begun(stage: Stage) -> None:
    """One that never committed a batch starts where its options specify."""
    stood = QuerySnapshot("id", QueryPosition(3, ("-",)), ())
    new = QuerySnapshot("id", QueryPosition(None), ())
    queries = {"b": stood, "new": new, "a": stood}
    manifest = SnapshotManifest("s-1", "stopped", STREAM, "d-0001", 1, 1, AT, "agent", queries, "w", "")
    found = decided(stage, manifest, begins_at=AT, start="seed")
    assert isinstance(found, Start)
    since = "starts with the input since 2026-03-01T00:00:00.000Z: its sources are asked for it"
    assert found.notes[1:] == (f"query a {since}", f"query b {since}")
    assert found.notes[0].startswith("query new never committed a batch")


def test_each_query_that_is_moved_is_told(stage: Stage) -> None:
    """Sorted by their names, whatever the order in which they were named."""
    stage.deploy()
    stage.come_to_life(queries=("a", "b"))
    for name in "ab":
        stage.run_batches(3, name)
    manifest = stage.keep(names=("a", "b"), identities=FILES)
    offsets = {name: at(offset)["counts"] for name, offset in (("b", 1), ("a", 2))}
    found = decided(stage, manifest, offsets=offsets, accept_repeated_input=("a", "b"), **SAFE)
    assert isinstance(found, Start)
    assert [note.partition(" read again")[0] for note in found.notes] == [
        "query a, source file /in: 1 file",
        "query b, source file /in: 2 files",
    ]


def test_files_are_counted_in_a_snapshot_that_lies_at_a_place_of_its_own(stage: Stage) -> None:
    """Its logs are copied for as long as they are read."""
    disk = stage.folder / "disk"
    stage.deploy(snapshots=str(disk))
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    manifest = end(stage)
    assert manifest.data_uri
    before = [info.key for info in stage.store.list_objects("")]
    found = decided(stage, manifest, offsets=at(1), accept_repeated_input=("counts",), **SAFE)
    assert isinstance(found, Start)
    assert "2 files read again" in found.notes[0]
    assert [info.key for info in stage.store.list_objects("") if "retention" not in info.key] == [
        key for key in before if "retention" not in key
    ]
