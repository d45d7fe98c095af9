"""From which Spark to which a stream may go."""

from __future__ import annotations

import pytest

from airflow_streamstate.checkpoint.guards import (
    GONE_BACK,
    GONE_BACK_WITHOUT_STATE,
    HDFS_BACKED_PROVIDER,
    MERGE_OPERATOR,
    NO_STATE,
    OLDER_LISTS,
    PROVIDER,
    ROCKSDB_PROVIDER,
    Line,
    line_of,
    offset_log_of,
    pinned_store,
    provider_of,
    refuse_move,
    state_store_of,
    why_not,
)
from airflow_streamstate.checkpoint.log import OffsetEntry
from airflow_streamstate.errors import IncompatibleUpgradeError


@pytest.mark.parametrize(
    ("version", "line"),
    [("4.2.0", (4, 2)), ("4.10.1-SNAPSHOT", (4, 10)), ("", None), ("nightly", None)],
)
def test_a_version_is_of_a_line(version: str, line: tuple[int, int] | None) -> None:
    """Releases of one line read what the others of it wrote; numbers are compared as numbers."""
    assert line_of(version) == line


@pytest.mark.parametrize(
    ("written_by", "runs_on"),
    [("4.0.5", "4.0.0"), ("4.0.5", "4.3.0"), ("4.2.0", "4.10.0"), ("", "4.0.5"), ("4.3.0", ""), ("4.2.1", "4.2.0")],
)
def test_onward_everything_goes(written_by: str, runs_on: str) -> None:
    """To a newer Spark, within one line, and where one of them is not known: nothing is refused."""
    for provider in (HDFS_BACKED_PROVIDER, ROCKSDB_PROVIDER, ""):
        assert why_not(written_by, runs_on, provider) is None
        refuse_move(written_by, runs_on, provider)


@pytest.mark.parametrize("written_by", ["4.2.0", "4.3.0", ""])
def test_offset_log_2_goes_to_no_spark_that_does_not_know_it(written_by: str) -> None:
    """With any state store, from any Spark; Spark 4.2 and newer know it (Law 10)."""
    with pytest.raises(IncompatibleUpgradeError, match="offset log 2"):
        refuse_move(written_by, "4.1.4", HDFS_BACKED_PROVIDER, "v2")
    refuse_move("4.0.5", "4.2.0", HDFS_BACKED_PROVIDER, "v2")
    assert why_not("4.3.0", "4.2.0", ROCKSDB_PROVIDER, "v2") is None
    assert why_not("4.2.0", "4.0.5", HDFS_BACKED_PROVIDER, "v1") is None


@pytest.mark.parametrize(("before", "now"), sorted(GONE_BACK_WITHOUT_STATE))
def test_a_query_without_state_goes_back_by_its_logs_alone(before: Line, now: Line) -> None:
    """The measured moves, in offset log 1; from a Spark that was never tried it is refused (Law 10)."""
    written_by, runs_on = (f"{line[0]}.{line[1]}.9" for line in (before, now))
    assert before > now
    assert why_not(written_by, runs_on, NO_STATE, "v1") is None
    with pytest.raises(IncompatibleUpgradeError):
        refuse_move("5.0.0", runs_on, NO_STATE, "v1")
    with pytest.raises(IncompatibleUpgradeError, match="offset log 2"):
        refuse_move(written_by, "4.1.4", NO_STATE, "v2")


def test_what_an_entry_pins_counts_where_there_is_state() -> None:
    """Spark pins a state store for queries that keep none, too."""
    entry = OffsetEntry(0, 0, {"spark.sql.streaming.stateStore.providerClass": HDFS_BACKED_PROVIDER}, ())
    assert state_store_of(entry, has_state=True) == HDFS_BACKED_PROVIDER
    assert state_store_of(entry, has_state=False) == NO_STATE
    assert state_store_of(None, has_state=False) == ""


@pytest.mark.parametrize(("name", "value"), [("encodingFormat", "avro"), ("rowChecksum.enabled", "true")])
def test_rows_in_another_form_go_back_to_no_older_spark(name: str, value: str) -> None:
    """Spark 3.5 ignores what an entry pins of it, and would take those bytes for rows (Law 10)."""
    pins = {"spark.sql.streaming.stateStore.providerClass": ROCKSDB_PROVIDER}
    usual = OffsetEntry(0, 0, {**pins, "spark.sql.streaming.stateStore.encodingFormat": "unsaferow"}, ())
    other = OffsetEntry(0, 0, {**pins, f"spark.sql.streaming.stateStore.{name}": value}, ())
    assert state_store_of(usual, has_state=True) == OLDER_LISTS
    assert state_store_of(other, has_state=False) == NO_STATE
    refuse_move("4.2.0", "3.5.9", state_store_of(usual, has_state=True))
    refuse_move("4.2.0", "4.3.0", state_store_of(other, has_state=True))
    with pytest.raises(IncompatibleUpgradeError):
        refuse_move("4.2.0", "3.5.9", state_store_of(other, has_state=True))


def test_back_from_a_spark_that_was_never_tried_is_refused() -> None:
    """What a Spark to come writes is not known to be readable by an older one (Law 10)."""
    with pytest.raises(IncompatibleUpgradeError) as error:
        refuse_move("5.0.0", "4.3.0", HDFS_BACKED_PROVIDER, query_name="counts")
    assert (error.value.context["written_by"], error.value.context["runs_on"]) == ("5.0.0", "4.3.0")
    assert error.value.context["query_name"] == "counts"


@pytest.mark.parametrize(
    ("provider", "before", "now"), [(provider, *way) for provider, ways in GONE_BACK.items() for way in sorted(ways)]
)
def test_a_way_back_that_was_gone_is_let_through(provider: str, before: Line, now: Line) -> None:
    """Each way of the table leads to an older Spark, whatever the patch release, with that state store alone."""
    written_by, runs_on = (f"{line[0]}.{line[1]}.9" for line in (before, now))
    assert before > now
    assert why_not(written_by, runs_on, provider) is None
    refuse_move(written_by, runs_on, provider)
    assert why_not(written_by, runs_on, "") is not None


@pytest.mark.parametrize(("written_by", "runs_on"), [("4.2.0", "4.1.4"), ("4.2.0", "4.0.5"), ("4.3.0", "4.1.4")])
def test_lists_that_an_older_spark_cannot_read_are_refused(written_by: str, runs_on: str) -> None:
    """RocksDB's lists of 4.2 and newer are no lists for 4.1 and older: the query dies in the middle of a batch. A
    checkpoint that an older one has begun keeps lists as that one does, and may go back (Law 10)."""
    pins = {PROVIDER: ROCKSDB_PROVIDER}
    with pytest.raises(IncompatibleUpgradeError, match="the lists of transformWithState"):
        refuse_move(written_by, runs_on, pinned_store({**pins, MERGE_OPERATOR: "2"}))
    for conf in (pins, {**pins, MERGE_OPERATOR: "1"}):
        refuse_move(written_by, runs_on, pinned_store(conf))


def test_the_state_store_is_the_one_that_the_entry_pins() -> None:
    """What the session is set to now does not matter: Spark goes by its log."""
    entry = OffsetEntry(0, 0, {"spark.sql.streaming.stateStore.providerClass": ROCKSDB_PROVIDER}, ())
    assert provider_of(entry) == ROCKSDB_PROVIDER
    assert provider_of(OffsetEntry(0, 0, {}, ())) == provider_of(None) == ""


def test_the_writer_of_a_batch_that_was_not_committed_is_called_unknown() -> None:
    """It may have arrived with the snapshot of an older Spark; what is committed is asked no doubt of."""
    with pytest.raises(IncompatibleUpgradeError, match="either of them may have written the batch"):
        refuse_move("5.0.0", "4.3.0", HDFS_BACKED_PROVIDER, committed_by="4.2.0")
    for committed_by in ("5.0.0", None):
        with pytest.raises(IncompatibleUpgradeError) as error:
            refuse_move("5.0.0", "4.3.0", HDFS_BACKED_PROVIDER, committed_by=committed_by)
        assert "either of them" not in str(error.value)
    refuse_move("4.3.0", "4.3.0", HDFS_BACKED_PROVIDER, committed_by="4.2.0")


def test_the_offset_log_of_an_entry_is_its_version() -> None:
    """Which an older Spark may not know; without an entry nothing is set."""
    assert offset_log_of(OffsetEntry(4, 0, {}, ("-",), version="v2", source_keys=("0",))) == "v2"
    assert offset_log_of(None) == ""
