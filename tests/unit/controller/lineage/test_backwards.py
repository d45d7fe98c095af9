"""A position that went backwards within a deployment is found, whatever the source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from airflow_streamstate.checkpoint.log import Checkpoint, format_offset_entry
from airflow_streamstate.connectors.plain import SENDS_ONCE
from airflow_streamstate.connectors.registry import known_sources
from airflow_streamstate.controller.observe.lineage import backward_breaks, lineage_of
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import QueryStarted
from airflow_streamstate.protocol.positions import SourceIdentity
from airflow_streamstate.protocol.records import StartPlan
from support.checkpoints import commit_batch, memory_checkpoint, plan_batch
from support.sim_stage import STREAM, Stage

DELTA = '{"sourceVersion":1,"reservoirId":"x","reservoirVersion":%d,"index":%d,"isStartingVersion":false}'
KAFKA = ('{"in":{"0":5,"1":9}}', '{"in":{"0":7,"1":8}}')


def written(checkpoint: Checkpoint, lines: Sequence[str | Sequence[str]], first: int = 0) -> Checkpoint:
    """Batches that end at these offsets, each committed."""
    for batch_id, line in enumerate(lines, first):
        plan_batch(checkpoint, batch_id)
        entry = checkpoint.read_offset(batch_id)
        ends = (line,) if isinstance(line, str) else tuple(line)
        checkpoint.store.put(checkpoint.offset_key(batch_id), format_offset_entry(replace(entry, source_lines=ends)))
        commit_batch(checkpoint, batch_id)
    return checkpoint


def steps(lines: Sequence[str | Sequence[str]], connector: str = "", accepted_to: int | None = None) -> list[str]:
    """What is found of these, as ``first -> second``; those that were accepted in brackets."""
    identities = [SourceIdentity(connector, f"{connector} x")] * 2
    found = backward_breaks(
        written(memory_checkpoint(), lines), "d-0001", "counts", identities, known_sources().connectors, accepted_to
    )
    assert {one.kind for one in found} <= {"backwards"}
    told = [f"{one.ended_at} -> {one.began_at}" for one in found]
    return [f"[{text}]" if one.accepted else text for text, one in zip(told, found, strict=True)]


@pytest.mark.parametrize(
    ("connector", "lines", "found"),
    [
        ("socket", ["3", "-1", "2"], ["3 -> -1"]),
        ("", ["3", "2"], ["3 -> 2"]),
        ("rate", ["30", "60", "4"], ["60 -> 4"]),
        ("kafka", list(KAFKA), [f"{KAFKA[0]} -> {KAFKA[1]}"]),
        ("file", ['{"logOffset":4}', '{"logOffset":3}'], ['{"logOffset":4} -> {"logOffset":3}']),
        ("", ['{"offset":4}', "-"], ['{"offset":4} -> -']),
        ("kafka", ['{"in":{"0":5}}', '{"in":{"0":5,"1":0}}', '{"in":{"0":6,"1":0}}'], []),
        ("socket", ["-", "-1", "-1", "0"], []),
        ("", ["abc", "abb"], []),
        ("", [("1", "9"), ("2", "8")], ["9 -> 8"]),
        ("", ['{"0":5,"1":9}', '{"0":2,"1":12}'], ['{"0":5,"1":9} -> {"0":2,"1":12}']),
        ("", ["[5,9]", "[2,9]", "[3,9]"], ["[5,9] -> [2,9]"]),
        ("", ['{"t":{"p":{"0":5}}}', '{"t":{"p":{"0":3}}}'], ['{"t":{"p":{"0":5}}} -> {"t":{"p":{"0":3}}}']),
        ("", ['{"at":7,"row":3}', '{"at":7,"row":2}'], ['{"at":7,"row":3} -> {"at":7,"row":2}']),
        ("", ['{"at":7,"row":3}', '{"at":8,"row":0}', '{"at":8,"row":2,"old":true}'], []),
        ("", ['{"more":true,"at":7}', '{"more":false,"at":7}', '{"at":7,"row":1}', '["a",null]'], []),
        ("table", [DELTA % (9, 4), DELTA % (10, -1), DELTA % (12, 3)], []),
        ("table", [DELTA % (9, 4), DELTA % (4, 7)], [f"{DELTA % (9, 4)} -> {DELTA % (4, 7)}"]),
    ],
)
def test_a_lower_end_than_the_one_before_is_found(connector: str, lines: list[str], found: list[str]) -> None:
    """Also -1 behind a good position, also in one partition of many, also of a source that no connector knows."""
    assert steps(lines, connector) == found


def test_what_was_asked_for_is_accepted_up_to_where_it_began() -> None:
    """The step at the start was meant; a later one was not."""
    assert steps(["7", "-1", "4", "2"], "socket", accepted_to=1) == ["[7 -> -1]", "4 -> 2"]


def socket_stream(stage: Stage, lines: Sequence[str], batch_id: int | None = None) -> None:
    """A deployment whose query reads a socket, with these ends."""
    stage.deploy()
    stage.come_to_life()
    stage.say(
        QueryStarted, query_name="counts", query_id="id", query_run_id="run", how="fresh", batch_id=batch_id,
        planned_batch_id=None, repairs=(), sink="file:parquet", trigger="default", output_mode="append",
        identities=(SourceIdentity("socket", "socket 127.0.0.1:9999"),),
    )  # fmt: skip
    stage.run_batches(len(lines) - 1)
    written(stage.checkpoint(), lines)


def test_an_audit_names_it_and_is_not_whole(stage: Stage) -> None:
    """A good position that -1 replaced is a break; the source itself is named, too."""
    socket_stream(stage, ["3", "7", "-1"])
    found = lineage_of(stage.home, STREAM)
    assert not found.is_whole
    told = found.to_json()
    (back,) = told["backwards"]
    assert (back["source"], back["ended_at"], back["began_at"]) == ("socket 127.0.0.1:9999", "7", "-1")
    assert told["sent_once"] == [
        {"deployment_id": "d-0001", "query": "counts", "source": "socket 127.0.0.1:9999", "why": SENDS_ONCE}
    ]
    assert lineage_of(stage.home, STREAM, every_entry=False).is_whole, "the handovers alone were asked about"


def test_a_start_that_was_accepted_is_whole(stage: Stage) -> None:
    """``--accept-lost-input`` moved the offset of the batch that it started behind. A socket alone is no break."""
    socket_stream(stage, ["3", "-1", "4"], batch_id=1)
    spec = stage.spec()
    stage.control.home.delete(layout.spec_key(STREAM, "d-0001"))
    stage.control.create_spec(replace(spec, start=StartPlan("fresh", accept_lost_input=("counts",))))
    found = lineage_of(stage.home, STREAM)
    assert (found.is_whole, [one.accepted for one in found.breaks]) == (True, [True])


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        (['{"t":{"p":{"0":5}}}', '{"t":{"p":{"0":3}}}'], "(t.p.0: 5 -> 3)"),
        (["[5,9]", "[5,2]"], "(1: 9 -> 2)"),
        (["5", "3"], "batch 1 ends before batch 0: "),
    ],
)
def test_the_part_that_went_back_is_named(lines: list[str], part: str) -> None:
    """Where no connector knows the source, a person judges whether that number is a position."""
    (found,) = backward_breaks(written(memory_checkpoint(), lines), "d-0001", "counts", (), (), None)
    assert part in found.detail
