"""Whether the move of a state to another Spark was tried, by operator and state store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_streamstate.checkpoint.guards import (
    ENCODING,
    HDFS_BACKED_PROVIDER,
    MERGE_OPERATOR,
    PROVIDER,
    ROCKSDB_PROVIDER,
)
from airflow_streamstate.checkpoint.log import OffsetEntry
from airflow_streamstate.plan.comparison import (
    ACCEPTS_NULL,
    KINDS,
    Kept,
    fate_of,
    moved_streams,
    notes_of_state,
    state_words,
    states_of,
)
from airflow_streamstate.plan.model import Expression, QueryPlan, StateLayout, StateOperator, StateVariable
from support.built_plans import operator, plan, processor, without_state
from support.plan_golden import golden

ANSI = "spark.sql.ansi.enabled"
LISTS = "Spark 4.1 and older fail on the lists of transformWithState in RocksDB of a stream that a newer Spark started"


def entry(provider: str = ROCKSDB_PROVIDER, version: str = "v1", **pins: str) -> OffsetEntry:
    return OffsetEntry(3, 0, {PROVIDER: provider, **pins}, ("-",), version=version, source_keys=("0",))


def note(
    plan: QueryPlan, written_by: str, runs_on: str, found: OffsetEntry | None = None, unfit: str = "", **facts: Any
) -> str:
    kept = Kept(replace(plan, spark_version=written_by, **facts), found or entry(), unfit)
    [text] = notes_of_state({"counts": kept}, runs_on)
    return text.removeprefix("query counts: state of ")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tumbling", "windowed aggregates"),
        ("unbounded", "aggregates (no window)"),
        ("session", "session windows"),
        ("deduplicated", "dropDuplicates"),
        ("deduplicated_within", "dropDuplicatesWithinWatermark"),
        ("joined_left", "left outer joins"),
        ("limited", "limits"),
        ("pandas_state", "applyInPandasWithState (processing-time timeouts)"),
        ("tws_pandas", "transformWithState (unknown variables, event-time timers)"),
    ],
)
def test_a_state_is_named_by_what_distinguishes_it(name: str, words: str) -> None:
    """By the plans that Spark writes."""
    assert [state_words(state) for state in states_of(golden(name))] == [words]


def test_operators_one_above_the_other_are_another_state() -> None:
    """No stream that was moved had them; those side by side count each by itself."""
    assert all("chain" in state for state in states_of(golden("chained")))
    assert states_of(golden("union")) == [("aggregate", "window")] * 2


@pytest.mark.parametrize(
    ("provider", "words"), [(ROCKSDB_PROVIDER, "RocksDB"), (HDFS_BACKED_PROVIDER, "the HDFS-backed store")]
)
def test_a_move_that_was_tried_is_told_with_what_it_needs(provider: str, words: str) -> None:
    """A setting is named where the stream has another value of it."""
    moved = f"windowed aggregates in {words}, from Spark 3.5 to 4.2: tried, exact"
    found = entry(provider)
    assert note(plan(), "3.5.9", "4.2.1", found, settings={ANSI: "false"}) == moved
    assert note(plan(), "3.5.9", "4.2.1", found) == f"{moved} with {ANSI}=false"
    joined = note(golden("joined_inner"), "3.5.9", "4.0.5", found, settings={ANSI: "false"})
    assert joined == f"inner joins in {words}, from Spark 3.5 to 4.0: tried, exact with {ACCEPTS_NULL}"
    joined = note(golden("joined_semi"), "3.5.9", "4.3.0", found, settings={ANSI: "false"})
    assert joined == f"left semi joins in {words}, from Spark 3.5 to 4.3: tried, exact with {ACCEPTS_NULL}"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("deduplicated", "dropDuplicates"),
        ("unbounded", "aggregates (no window)"),
        ("joined_full", "full outer joins"),
    ],
)
def test_state_that_never_ends_was_moved_and_so_were_all_joins(name: str, words: str) -> None:
    """To Spark 4, back, and from one Spark 4 to the next, in both state stores."""
    for before, now in (("3.5.9", "4.2.1"), ("4.2.0", "3.5.9"), ("4.0.5", "4.1.4"), ("4.1.4", "4.0.5")):
        for provider in (ROCKSDB_PROVIDER, HDFS_BACKED_PROVIDER):
            found = note(golden(name), before, now, entry(provider), settings={ANSI: "false"})
            store = "RocksDB" if provider == ROCKSDB_PROVIDER else "the HDFS-backed store"
            assert found.startswith(f"{words} in {store}, from Spark "), found
            assert found.endswith(": tried, exact"), found


@pytest.mark.parametrize(
    ("operator_of", "facts"),
    [
        (operator(kind="global_limit"), {}),
        (operator(kind="deduplicate", keys=(Expression("k", "string", "k"),) * 5), {}),
        (operator(kind="deduplicate_within_watermark", keys=(Expression("k", "string", "k"),) * 5), {}),
        (operator(), {"state": StateLayout(200, ROCKSDB_PROVIDER, changelog=True)}),
        (operator(), {"state": StateLayout(200, ROCKSDB_PROVIDER, 2)}),
        (operator(), {"found": entry(**{ENCODING: "avro"})}),
        (operator(), {"found": entry(version="v2")}),
        (processor(known=False), {}),
    ],
)
def test_what_no_stream_had_is_not_called_exact(operator_of: StateOperator, facts: dict[str, Any]) -> None:
    """Another operator, more than four keys, another form of the state: each may have a trap (Law 13)."""
    assert note(plan(operator_of), "4.0.5", "4.2.0", **facts).endswith("from Spark 4.0 to 4.2: not tried")


def test_a_processor_goes_by_its_variables() -> None:
    """Fewer than a stream had that was moved are moved, too; those of two streams together are not."""
    value, listed, mapped = (StateVariable(kind, kind) for kind in ("value", "list", "map"))
    timer = StateVariable("", "timer")
    for variables, is_exact in (
        ((value,), True),
        ((value, listed, timer), True),
        ((value, mapped), True),
        ((mapped, listed), False),
        ((replace(value, has_ttl=True),), False),
    ):
        found = note(plan(processor(*variables)), "4.1.4", "4.3.0")
        assert found.endswith("exact" if is_exact else "not tried"), variables
    ticking = processor(replace(mapped, has_ttl=True), time_mode="ProcessingTime")
    assert note(plan(ticking), "4.1.4", "4.3.0").endswith("tried, exact")
    assert note(plan(replace(ticking, has_initial_state=True)), "4.1.4", "4.3.0").endswith("not tried")


@pytest.mark.parametrize(
    ("plan_of", "written_by", "runs_on", "facts", "words"),
    [
        (plan(), "4.2.0", "4.1.4", {"found": entry(**{MERGE_OPERATOR: "2"})}, LISTS),
        (plan(), "5.0.0", "4.1.4", {}, "this move back loses something, or was never tried"),
        (plan(), "4.2.0", "3.5.9", {"found": entry(**{ENCODING: "avro"})}, "this move back loses something"),
        (plan(), "4.2.0", "4.1.4", {"found": entry(HDFS_BACKED_PROVIDER, "v2")}, "it does not know offset log 2"),
        (plan(processor()), "4.2.0", "3.5.9", {}, "Spark 3.5 does not have it"),
    ],
)
def test_what_is_refused_has_its_reason(
    plan_of: QueryPlan, written_by: str, runs_on: str, facts: dict[str, Any], words: str
) -> None:
    """The same that a deploy would give."""
    assert f": refused, {words}" in note(plan_of, written_by, runs_on, **facts)


def test_a_version_that_does_not_continue_is_not_called_exact() -> None:
    """Keys in another order are no matter of the Spark alone; without the difference the move was tried."""
    assert note(plan(), "4.0.5", "4.2.0", unfit="keys-reordered").endswith(": does not fit (keys-reordered)")
    newer = entry(**{MERGE_OPERATOR: "2"})
    assert note(plan(), "4.2.0", "4.1.4", newer, unfit="spark-goes-back").endswith(f": refused, {LISTS}")


def test_queries_with_one_answer_share_a_sentence() -> None:
    """Without state, or on the same line of Spark, nothing moves."""
    kept = {
        "a": Kept(plan(spark_version="4.0.5"), entry()),
        "b": Kept(plan(spark_version="4.0.5"), None),
        "raw": Kept(without_state(spark_version="4.0.5"), entry()),
    }
    told = "queries a, b: state of windowed aggregates in RocksDB, from Spark 4.0 to 4.2: tried, exact"
    assert notes_of_state(kept, "4.2.0") == (told,)
    assert notes_of_state(kept, "4.0.0") == notes_of_state(kept, "") == ()


def test_each_stream_of_the_table_has_states_that_have_a_name() -> None:
    """A new kind of state gets its words, and what was moved is exact by them."""
    streams = moved_streams()
    for stream in streams:
        for state in stream.states:
            assert state[0] in KINDS
            assert all(fate_of(state, stream.store, *move, streams)[0] == "exact" for move in stream.exact)
