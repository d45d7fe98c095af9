"""What the rewriting of state relies on in Spark, and what a migration that goes wrong comes to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from airflow_streamstate.driver.attempt.ports import RewriteOrder
from airflow_streamstate.errors import DataError, IncompatibleUpgradeError, InvalidRequestError, StreamStateError
from support.rewrite_lab import RewriteLab, rewriting_in
from support.rewrite_table import MIGRATED, ROWS, Row, migrating
from support.truth_table import PARTITIONS, TIME_ZONE, Script

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
SUMS = next(row for row in ROWS if row.name == "aggregate, text keys: 3 to 5 partitions")
SESSIONS = next(row for row in ROWS if row.name == "session window: 3 to 5 partitions")
JOINED = next(row for row in ROWS if row.name == "left outer join: 3 to 5 partitions")
MAXIMA = 'rows().withWatermark("t", "10 seconds").groupBy(window("t", "10 seconds"), "k").agg({})'


@pytest.fixture(scope="module")
def lab(shared_spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RewriteLab]:
    with rewriting_in(shared_spark, tmp_path_factory.mktemp("rewriting")) as found:
        yield found


def rewriting(lab: RewriteLab, row: Row, *, is_rocksdb: bool = True) -> Any:
    """The rewriting of the old state of a row over a checkpoint of the new version."""
    from airflow_streamstate.driver.spark.state_rewriting import _Rewriting

    before, after = (lab.uri_of(lab.fork(script)) for script in (row.old, row.new))
    partitions = {0: int(row.new.settings[PARTITIONS])}
    return _Rewriting(lab.spark, RewriteOrder(before, 1, 1, is_rocksdb, after, partitions, 1))


def test_the_bytes_behind_sparks_serializer_are_those_of_its_state_writer(lab: RewriteLab) -> None:
    """A typed row, encoded here, is what the store holds: texts and nested rows among them."""
    from airflow_streamstate.driver.spark.state_rewriting import _keyed

    found = rewriting(lab, SUMS)
    raw = found._raw(0, "default")
    typed = _keyed(found._typed(0, "default"), raw.schema).repartition(3, "partition_key")
    wanted = {(bytes(row["key_bytes"]), bytes(row["value_bytes"])) for row in raw.collect()}
    encoded = found._encoded(typed, "default").collect()
    assert {(bytes(row["key_bytes"]), bytes(row["value_bytes"])) for row in encoded} == wanted
    assert len(wanted) > 10


def test_spark_names_operator_and_store_in_the_plan_of_a_states_rows(lab: RewriteLab) -> None:
    """Only by that name does the function know which rows are asked for."""
    found = rewriting(lab, JOINED)
    frame = found._raw(0, "right-keyToNumValues")
    name = str(frame._jdf.queryExecution().analyzed().table().name())
    assert re.fullmatch(
        r"StateTable \[stateCkptLocation=.*\]\[batchId=1\]\[operatorId=0\]\[storeName=right-keyToNumValues\].*", name
    )


def test_spark_writes_into_rocksdb_alone(lab: RewriteLab) -> None:
    """So another number of partitions alone is refused for the HDFS-backed store, before anything is read."""
    hdfs = next(row for row in ROWS if row.name == "aggregate, text keys: HDFS-backed to RocksDB, 3 to 5").old
    wider = Script(hdfs.text, hdfs.mode, {**hdfs.settings, PARTITIONS: "5"})
    row = Row("x", "x", "x", hdfs, wider, {"partitions": 5})
    with pytest.raises(InvalidRequestError, match="Spark rewrites state into RocksDB alone"):
        lab.rewritten(row)
    from airflow_streamstate.driver.spark.state_rewriting import rewrite_state

    order = rewriting(lab, row, is_rocksdb=False)._order
    with pytest.raises(IncompatibleUpgradeError, match="Spark cannot rewrite this state") as refused:
        rewrite_state(lab.spark, order)
    assert "UNSUPPORTED_PROVIDER" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_rows_that_get_lost_on_the_way_are_seen(lab: RewriteLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the number of keys that RocksDB reports, without reading the new state."""
    from airflow_streamstate.driver.spark.state_rewriting import _Rewriting

    whole = _Rewriting._raw
    lost = "hash(key_bytes) % 3 != 0"
    monkeypatch.setattr(_Rewriting, "_raw", lambda self, *store: whole(self, *store).where(lost))
    with pytest.raises(DataError, match="not all rows of the old state were written"):
        lab.rewritten(SUMS, is_rehearsed=False)
    with pytest.raises(DataError, match="the state that was written differs from the one that was read"):
        lab.rewritten(SUMS)


WRONG = {
    'raise KeyError("no such\\nairport")': r"the migration raised KeyError at key \{.*\}: 'no such",
    'return {"max": "soon"}': r"the migration returned a wrong value at key .*max.*soon",
    "return {}": "the migration returned other fields than the new state has, at key .*: max is missing",
    'return {**state, "n": 1}': "the migration returned other fields .*: n is unknown, sum is unknown",
    'return {"max": state["max"].replace(tzinfo=None)}': "the migration returned a wrong value .*has no time zone",
    "return [1]": "the migration returned list at key",
    'import uuid; return {"max": state["max"].replace(microsecond=uuid.uuid4().int % 1000000)}': (
        "the migration is not deterministic"
    ),
}


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
def test_a_migration_that_goes_wrong_is_one_sentence_with_its_table(lab: RewriteLab) -> None:
    """Whatever it does, the key that it did it at is named, and what there is to do; no trace of Java or Python."""
    old = MAXIMA.format('max("t").alias("m"), sum("v").alias("s")')
    for body, sentence in WRONG.items():
        row = migrating(old, MAXIMA.format('max("t").alias("m")'), body)
        with pytest.raises(IncompatibleUpgradeError, match=sentence) as refused:
            lab.rewritten(row)
        assert refused.value.context["table"] == "0-stateStoreSave/rows"
        assert refused.value.next_step
        assert not re.search(r"\n|Traceback|Exception", str(refused.value)), str(refused.value)
    with pytest.raises(IncompatibleUpgradeError, match="the migration raised ZeroDivisionError at key"):
        lab.rewritten(migrating(old, MAXIMA.format('max("t").alias("m")'), "1 / 0"), is_rehearsed=False)


WRONG_IN_COLUMNS = {
    'return rows.select("key")': r"the migration returned \['key'\], and not a DataFrame with the columns key",
    "return rows.state": "the migration returned Column, and not a DataFrame",
    "return rows.nothing": "the migration raised PySparkAttributeError: .*nothing",
    "return rows": "the migration returned other fields than the new state has.*sum",
    'return rows.withColumn("state", F.struct(F.lit("soon").alias("max")))': (
        "the migration returned a wrong type for max: timestamp cannot hold every string"
    ),
    'return rows.withColumn("state", F.struct(F.timestamp_seconds(F.rand() * 1e9).alias("max")))': (
        "the migration is not deterministic"
    ),
    'return rows.withColumn("state", F.struct(F.now().alias("max")))': "the migration is not deterministic",
    'found = rows.withColumn("state", rows.state.dropFields("sum")); return found.union(found)': (
        "the migration returned a key twice"
    ),
    'found = rows.withColumn("state", rows.state.dropFields("sum")); return found.union(found).localCheckpoint()': (
        "the migration returned a key twice"
    ),
    'found = rows.withColumn("state", rows.state.dropFields("sum"))\n'
    '    return found.withColumn("key", found.key.withField("k", F.lit("b")))': "the migration returned a key",
}


def in_columns(old: str, new: str, body: str, variable: str = "") -> Row:
    """A row with a vectorized migration of this body."""
    row = migrating(old, new, body, variable)
    head, tail = (
        "from pyspark.sql import functions as F\n",
        (")\ndef new(key, state):", ", vectorized=True)\ndef new(rows):"),
    )
    return replace(row, migration=head + row.migration.replace(*tail))


def test_a_vectorized_migration_that_goes_wrong_is_one_sentence_with_its_table(lab: RewriteLab) -> None:
    """As one row by row; it may also change the rows themselves."""
    old, new = MAXIMA.format('max("t").alias("m"), sum("v").alias("s")'), MAXIMA.format('max("t").alias("m")')
    for body, sentence in WRONG_IN_COLUMNS.items():
        with pytest.raises(IncompatibleUpgradeError, match=sentence) as refused:
            lab.rewritten(in_columns(old, new, body))
        assert refused.value.context["table"] == "0-stateStoreSave/rows"
        assert refused.value.next_step
        assert not re.search(r"\n|Traceback", str(refused.value)), str(refused.value)
    for body in list(WRONG_IN_COLUMNS)[-3:]:  # not rehearsed, either
        with pytest.raises(IncompatibleUpgradeError, match="the migration returned a key"):
            lab.rewritten(in_columns(old, new, body), is_rehearsed=False)


def test_a_vectorized_migration_gives_no_null_where_the_state_has_none(lab: RewriteLab) -> None:
    """Spark would read it as zero. Rows may be dropped, and joins are migrated row by row."""
    counted = MAXIMA.format('count("*").alias("n")')
    old = MAXIMA.format('count("*").alias("n"), sum("v").alias("s")')
    body = 'return rows.withColumn("state", F.struct(F.when(rows.state["sum"] > 0, None).otherwise(1).alias("count")))'
    for is_rehearsed in (True, False):
        with pytest.raises(IncompatibleUpgradeError, match="returned null for count, which the new state always has"):
            lab.rewritten(in_columns(old, counted, body), is_rehearsed=is_rehearsed)
    body = 'return rows.where("key.k = \'a\'").withColumn("state", rows.state.dropFields("sum"))'
    lab.rewritten(in_columns(old, counted, body))
    (table,) = lab.last.tables
    assert table.rows is not None
    assert table.dropped is not None
    assert 0 < table.dropped < table.rows
    (joined,) = (row for row in MIGRATED if row.name == "left outer join: migration: a column removed from one side")
    with pytest.raises(IncompatibleUpgradeError, match="a vectorized migration cannot be for a join or a list"):
        lab.rewritten(in_columns(joined.old.text, joined.new.text, "return rows", "left"))


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
@pytest.mark.parametrize("dropped", ['rows.where("state.value.n < 0")', 'rows.withColumn("state", F.lit(None))'])
def test_a_vectorized_migration_drops_no_row_that_spark_counts_elsewhere(lab: RewriteLab, dropped: str) -> None:
    """Nor where no rehearsal has seen it: Spark has an index of what expires."""
    (row,) = (row for row in MIGRATED if row.operator == "transformWithState, time to live")
    head, _, tail = row.migration.partition("variable='total')")
    body, _, others = tail.partition("@migrate")
    twice = 'rows.state.withField("value", rows.state.value.withField("twice", rows.state.value.n * 2))'
    found = f"rows = rows.withColumn('state', {twice})\n    return {dropped}"
    if "None" in dropped:
        found = f"kind = rows.withColumn('state', {twice}).schema['state'].dataType\n"
        found += f"    return {dropped[:-1]}.cast(kind))"
    text = f"{head}variable='total', vectorized=True)\ndef total(rows):\n    {found}\n@migrate{others}"
    assert body.startswith("\ndef total(key, state)")
    with pytest.raises(IncompatibleUpgradeError, match="dropped a row of state with a time to live"):
        lab.rewritten(replace(row, migration=f"from pyspark.sql import functions as F\n{text}"), is_rehearsed=False)


def test_what_cannot_be_migrated_is_said(lab: RewriteLab) -> None:
    """A row of a join is counted elsewhere; other state is not there."""
    (joined,) = (row for row in MIGRATED if row.name == "left outer join: migration: a column removed from one side")
    for body, sentence in (("return None", "a row of a join"), ("return state", "lj is unknown")):
        with pytest.raises(IncompatibleUpgradeError, match=sentence):
            lab.rewritten(migrating(joined.old.text, joined.new.text, body, "left"))
    with pytest.raises(IncompatibleUpgradeError, match="the migration is for state that is not there"):
        lab.rewritten(migrating(joined.old.text, joined.new.text, "return state", "middle"))


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
def test_each_moment_of_a_doubled_hour_stays_itself(lab: RewriteLab) -> None:
    """02:30 comes twice on 2026-10-25 in Berlin, where session and worker are."""
    moment = "timestamp_seconds(1792888200 + (v % 2) * 3600)"
    keyed = f'rows().withWatermark("t", "10 seconds").groupBy(window("t", "10 seconds"), expr("{moment}").alias("at"))'
    both = keyed + f'.agg(max(expr("{moment}")).alias("m"), sum("v").alias("s"))'
    body = 'assert str(state["max"]) in ("2026-10-25 00:30:00+00:00", "2026-10-25 01:30:00+00:00")\n'
    body += '    assert key["_groupingexpression"] == state["max"]\n    return {"max": state["max"]}'
    row = migrating(both, keyed + f'.agg(max(expr("{moment}")).alias("m"))', body, **{TIME_ZONE: "Europe/Berlin"})
    environment = lab.spark.sparkContext.environment
    environment["TZ"] = "Europe/Berlin"
    try:
        checkpoint = lab.rewritten(row)
    finally:
        del environment["TZ"]
    assert lab.state_of(checkpoint) == lab.state_of(lab.begun(row.new))


def test_a_planned_batch_runs_first_on_the_new_state(lab: RewriteLab) -> None:
    """What the batch had already written of the next version of the state is left behind."""
    old = lab.fork(SESSIONS.old)
    lab.run(SESSIONS.old, old, "all")
    lab.forget_commits_from(old, 2)
    assert old.position().planned_id == 2
    checkpoint = lab.written_anew(old, SESSIONS)
    assert checkpoint.position().planned_id == 2
    assert lab.told(SESSIONS.new, checkpoint) == lab.going_on(SESSIONS.new)


def test_a_query_that_never_committed_begins_with_the_new_number(lab: RewriteLab) -> None:
    """There is no state yet; its planned batch runs first."""
    old = lab.fork(SESSIONS.old)
    lab.forget_commits_from(old, 0)
    checkpoint = lab.written_anew(old, SESSIONS)
    entry = checkpoint.read_offset(0)
    assert entry is not None
    assert entry.conf[PARTITIONS] == "5"
    assert lab.told(SESSIONS.new, checkpoint) == lab.told(SESSIONS.new, lab.place("whole"))


def test_an_operator_that_is_new_begins_with_nothing(lab: RewriteLab) -> None:
    """Next to one that keeps its state; one that replaces a different operator is refused."""
    text = SUMS.new.text.replace(".groupBy", '.dropDuplicates(["k", "t"]).groupBy')
    more = Row("x", "x", "x", SUMS.old, Script(text, SUMS.new.mode, SUMS.new.settings), {"partitions": 5})
    rows = lab.state_of(lab.rewritten(more))
    assert rows == lab.state_of(lab.begun(SUMS.new))
    other = Row("x", "x", "x", SESSIONS.old, SUMS.new, {"partitions": 5})
    with pytest.raises(IncompatibleUpgradeError, match="this state has no place in the new version"):
        lab.rewritten(other)


def test_other_state_than_the_new_versions_is_refused_without_a_migration(lab: RewriteLab) -> None:
    """With both types."""
    row = MIGRATED[0]
    without = Row("x", "x", "x", row.old, row.new, row.asks)
    with pytest.raises(StreamStateError, match="the new version keeps this state in another form") as refused:
        lab.rewritten(without)
    assert "--migration" in refused.value.next_step
