"""The truth table of upgrades, each row tried: what a comparison promises is what Spark and the rows show.

With ``STREAMSTATE_TRUTH=full`` every row that needs a drain is drained and seeded, and not one of each kind, and rows
that need Python's workers are tried, too;
``STREAMSTATE_RECORD=1`` records what was seen for ``docs/reference/changes.md``, and the plans for the unit tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_streamstate.checkpoint.guards import HDFS_BACKED_PROVIDER
from airflow_streamstate.plan.comparison import compare, compare_deployments
from airflow_streamstate.plan.model import QueryPlan
from airflow_streamstate.plan.rules import match_sources
from support.truth_lab import FROM_SECONDS, TruthLab
from support.truth_record import Recorder
from support.truth_table import (
    MARKED,
    PARTITIONS,
    PROVIDER,
    ROCKSDB,
    ROWS,
    SEEDED,
    SUMS,
    UNSEEN,
    VARIABLES,
    Row,
    Script,
    processor,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
NO_SOURCE = -1
IN_FULL = os.environ.get("STREAMSTATE_TRUTH") == "full"
TRIED = tuple(row for row in ROWS if IN_FULL or not row.needs_workers)


@pytest.fixture(scope="module")
def lab(shared_spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TruthLab]:
    """One warm session for all rows."""
    session = shared_spark.newSession()
    # Batches of a few rows: neither generated code nor a checksum alongside each file of a checkpoint pays.
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("fs.AbstractFileSystem.file.impl", "org.apache.hadoop.fs.local.RawLocalFs")
    session.conf.set("spark.sql.streaming.pollingDelay", "10ms")
    yield TruthLab(session, tmp_path_factory.mktemp("truth"))
    for query in session.streams.active:
        query.stop()


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    """Holds what is seen against what was recorded, or records it."""
    found = Recorder(writes=os.environ.get("STREAMSTATE_RECORD") == "1")
    yield found
    found.write()


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
@pytest.mark.parametrize("row", TRIED, ids=lambda row: row.name)
def test_a_verdict_is_what_spark_and_the_rows_show(lab: TruthLab, recorder: Recorder, row: Row) -> None:
    """A restore that is promised writes what the new script would have written; one that is not is refused or mixes,
    and a seed is exact."""
    old, new = lab.plan(row.old), lab.plan(row.new)
    found = compare(old, new)
    gravest = [each for each in found.differences if each.verdict == found.verdict]
    assert (found.verdict, tuple(dict.fromkeys(each.code for each in gravest))) == (row.verdict, row.codes)
    restored = lab.restored(row.old, row.new)
    if isinstance(restored, str):
        shown, said = "refused", restored
    else:
        shown, said = ("right" if restored == lab.from_the_beginning(row.new) else "mixed"), ""
    assert (shown, said) == (row.spark, said)
    assert (shown == "right") == (row.verdict in ("same", "state-compatible"))
    is_seeded = row.verdict == "needs-drain" and (row.name in SEEDED or IN_FULL)
    if is_seeded:
        seed_and_compare(lab, row, old, new)
    recorder.saw(row, (old, new), said, is_seeded=is_seeded)


def seed_and_compare(lab: TruthLab, row: Row, old: QueryPlan, new: QueryPlan) -> None:
    pairs = match_sources(old, new)
    lines = {number: pairs.get(number, NO_SOURCE) for number in range(len(new.sources))}
    keeps = old.watermarks == new.watermarks
    known = {source.identity.partition(" ")[2] for source in old.sources}
    seeded = lab.seeded(row.old, row.new, lines, keeps_watermark=keeps)
    # What is late for a window is another thing than what is late for a row, or for a longer window.
    wanted = [lab.after_the_drain(row.new, known)]
    wanted += [lab.after_the_drain(row.new, known, second) for second in FROM_SECONDS if keeps and seeded not in wanted]
    assert seeded in wanted


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
def test_what_a_plan_does_not_show_is_said(lab: TruthLab) -> None:
    """The body of a function: Spark mixes, no plan differs, and the advice names where to look."""
    old, new = UNSEEN
    found = compare(lab.plan(old), lab.plan(new))
    assert found.verdict == "same"
    assert "function-unseen" in [each.code for each in found.advice]
    assert lab.restored(old, new) != lab.from_the_beginning(new)


@pytest.mark.skipif(not IN_FULL, reason="Python's workers take seconds to start: STREAMSTATE_TRUTH=full")
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
def test_variables_of_a_processor_come_and_go_and_keep_their_types(lab: TruthLab) -> None:
    """Why one more and one less need no drain, and another type does (``variable-added``, ``variable-changed``)."""
    one, two, other = processor(), processor(*VARIABLES["added"]), processor(*VARIABLES["changed"])
    assert lab.restored(one, two) == lab.from_the_beginning(two)
    assert lab.restored(two, one) == lab.from_the_beginning(one)
    assert lab.restored(one, other) == "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"


@pytest.mark.parametrize(
    ("setting", "was", "asked"), [(PARTITIONS, "1", "3"), (PROVIDER, HDFS_BACKED_PROVIDER, ROCKSDB)]
)
def test_a_restore_keeps_what_the_checkpoint_began_with(lab: TruthLab, setting: str, was: str, asked: str) -> None:
    """The session may ask for another number of partitions, or another store: it has no effect."""
    fork = lab.fork(Script(SUMS))
    lab.run(Script(SUMS, settings={setting: asked}), fork, "all")
    entry = fork.read_offset(fork.offset_ids()[-1])
    assert entry is not None
    assert entry.conf[setting] == was


def test_another_path_passes_in_silence_where_the_last_batch_is_empty(lab: TruthLab) -> None:
    """What Spark looks at is the last batch: without a file in it, nothing distinguishes the paths."""
    checkpoint = lab.place("idle")
    lab.run(Script(SUMS), checkpoint, "before")
    other = SUMS.replace("rows()", 'rows("b")')
    assert any(rows for rows in lab.run(Script(other), checkpoint, "all").values())


def test_two_queries_that_swap_names_go_on_with_each_others_state(lab: TruthLab) -> None:
    """Spark accepts it in silence where their shapes are the same; the comparison of the two versions finds it."""
    sums = Script(SUMS.replace(".groupBy", '.withColumn("v", col("v") + 1).groupBy'))
    others = Script(SUMS.replace(".groupBy", '.withColumn("v", col("v") * 2).groupBy'))
    first, second = lab.plan(sums), lab.plan(others)
    found = compare_deployments({"a": first, "b": second}, {"a": second, "b": first})
    assert found.verdict == "hazardous"
    assert [found.queries[name].codes[0] for name in "ab"] == ["queries-swapped"] * 2
    restored = lab.restored(sums, others)
    assert not isinstance(restored, str)
    assert restored != lab.from_the_beginning(others)


def test_a_sink_that_holds_the_ids_leaves_rows_out(lab: TruthLab) -> None:
    """Why another target of a sink that skips batches by their ids is a matter for a person."""
    script = Script(MARKED + '.select("k", "v")')
    lab.write_files(script, "own", "before", checkpoint="own query")
    taken = lab.write_files(script, "taken", "all", checkpoint="another query")
    assert lab.write_files(script, "taken", "all", checkpoint="own query") == taken
