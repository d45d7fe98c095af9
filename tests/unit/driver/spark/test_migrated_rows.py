"""The user's migration on one row: what it gets, what it may return, and the sentence for all else."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    LongType,
    MapType,
    Row,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from airflow_streamstate.driver.spark.migrated_rows import (
    MigrationError,
    failure_in,
    in_utc,
    migrate_row,
    plain,
    spark_value,
)

INNER = StructType([StructField("at", TimestampType()), StructField("d", DecimalType(10, 2))])
STATE = StructType(
    [
        StructField("n", LongType()),
        StructField("inner", INNER),
        StructField("all", ArrayType(INNER)),
        StructField("by", MapType(StringType(), LongType())),
    ]
)
NOON = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)
OLD = Row("n", "inner")(1, Row("at", "d")(NOON, Decimal("1.50")))
KEY = Row("k")("a")


def migrated(function: Any, *, may_drop: bool = True) -> Any:
    return migrate_row(function, STATE, KEY, OLD, "0-stateStoreSave/rows", may_drop)


def test_it_gets_plain_dicts_and_returns_whole_rows() -> None:
    """A field that is left out of a nested row is null; at the top it has to be there."""
    seen = []

    def function(key: Any, state: Any) -> Any:
        seen.append((key, state))
        inner = state["inner"]
        return {"n": state["n"] + 1, "inner": inner, "all": [inner, {"at": None, "d": None}], "by": {"x": 1}}

    found = migrated(function)
    assert seen == [({"k": "a"}, {"n": 1, "inner": {"at": NOON, "d": Decimal("1.50")}})]
    assert found == {
        "n": 2,
        "inner": {"at": NOON, "d": Decimal("1.50")},
        "all": [{"at": NOON, "d": Decimal("1.50")}, {"at": None, "d": None}],
        "by": {"x": 1},
    }


def test_none_drops_a_row_where_rows_can_be_dropped() -> None:
    """Spark counts rows of joins and elements of lists elsewhere."""
    assert migrated(lambda _key, _state: None) is None
    with pytest.raises(MigrationError, match="cannot be dropped"):
        migrated(lambda _key, _state: None, may_drop=False)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ({"n": 1}, "all is missing, by is missing, inner is missing"),
        ({"n": 1, "inner": None, "all": None, "by": None, "m": 2}, "m is unknown"),
        ({"n": "one", "inner": None, "all": None, "by": None}, "a wrong value"),
        ({"n": 2**63, "inner": None, "all": None, "by": None}, "a wrong value"),
        ({"n": 1, "inner": {"at": NOON, "d": None, "x": 1}, "all": None, "by": None}, r"it has the fields"),
        ({"n": 1, "inner": {"at": NOON}, "all": None, "by": None}, r"needs \['at', 'd'\]"),
        ({"n": 1, "inner": {"at": NOON.replace(tzinfo=None), "d": None}, "all": None, "by": None}, "has no time zone"),
        ([1], "the migration returned list"),
    ],
)
def test_what_is_no_state_is_one_sentence_with_the_key(returned: object, words: str) -> None:
    """Missing and unknown fields, wrong types, a moment without a zone, no dict at all."""
    with pytest.raises(MigrationError, match=words) as found:
        migrated(lambda _key, _state: returned)
    assert "at key {'k': 'a'}" in str(found.value)
    assert "\n" not in str(found.value)


def test_a_failure_is_read_out_of_sparks_report() -> None:
    """The last one: a report names the user's own error first, whatever that is."""

    def function(_key: Any, _state: Any) -> Any:
        raise ValueError("MigrationError: [x] y\nMigrationError: [other] z")

    with pytest.raises(MigrationError) as found:
        migrated(function)
    report = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        '  File "x", line 1, in f\nValueError: MigrationError: [x] y\nMigrationError: [other] z\n\n'
        "The above exception was the direct cause of the following exception:\n\n"
        f"airflow_streamstate.driver.spark.migrated_rows.MigrationError: {found.value}\n SQLSTATE: 39000"
    )
    failure = failure_in(report)
    assert failure is not None
    assert failure[0] == "0-stateStoreSave/rows"
    assert failure[1].startswith("the migration raised ValueError at key {'k': 'a'}: MigrationError: [x] y")
    assert failure_in("[DIVIDE_BY_ZERO] Division by zero") is None


def test_moments_are_in_utc_and_local_times_stay() -> None:
    """At any depth; Spark gives moments in the zone of its worker, without it."""
    kind = StructType(
        [
            StructField("at", TimestampType()),
            StructField("local", TimestampNTZType()),
            StructField("all", ArrayType(INNER)),
        ]
    )
    naive = NOON.astimezone().replace(tzinfo=None)
    value = Row("at", "local", "all")(naive, naive, [Row("at", "d")(naive, None), None])
    found = plain(in_utc(value, kind))
    assert found == {"at": NOON, "local": naive, "all": [{"at": NOON, "d": None}, None]}
    assert found["at"].tzinfo is timezone.utc
    assert spark_value({"a": naive}, MapType(StringType(), TimestampNTZType())) == {"a": naive}
