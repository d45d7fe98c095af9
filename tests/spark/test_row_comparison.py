"""The rows of two versions compared by real Spark: rows of any type, of two schemas, by their keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_streamstate.driver.spark.row_comparison import compare_folders, compare_frames
from airflow_streamstate.protocol.scratch import RowComparison

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

CASES = {
    "bags": (
        "select * from values ('a', 1), ('a', 1), ('a', 1), ('b', 2) t(k, v)",
        "select * from values ('a', 1), ('a', 5), ('c', 2), ('c', 2) t(k, v)",
        ("k",),
        RowComparison(
            1, 2, 2, ('{"k":"a","v":1}', '{"k":"b","v":2}'), ('{"k":"c","v":2}',) * 2, 1, ("k",),
            ('{"key":{"k":"a"},"old":{"v":1},"new":{"v":5}}',),
        ),
    ),
    "without a key that is written": (
        "select * from values ('a', 1), ('b', 2) t(k, v)",
        "select * from values ('a', 5), ('b', 2) t(k, v)",
        ("other",),
        RowComparison(1, 1, 1, ('{"k":"a","v":1}',), ('{"k":"a","v":5}',)),
    ),
    "duplicates under a null as key": (
        "select * from values (null, 1), (null, 1), (null, 1), ('a', 1) t(k, v)",
        "select * from values (null, 1), (null, 2), ('a', 1) t(k, v)",
        ("k",),
        RowComparison(
            2, 1, 0, ('{"k":null,"v":1}',), changed=1, keys=("k",),
            samples_changed=('{"key":{"k":null},"old":{"v":1},"new":{"v":2}}',),
        ),
    ),
    "a surplus on each side": (
        "select * from values ('a', 1), ('a', 2), ('a', 3), ('b', 1), (null, 7), (null, 7) t(k, v)",
        "select * from values ('a', 9), ('b', 1), ('b', 4), ('b', 4), ('c', 5) t(k, v)",
        ("k",),
        RowComparison(
            1, 4, 3, ('{"k":null,"v":7}', '{"k":null,"v":7}', '{"k":"a","v":2}', '{"k":"a","v":3}'),
            ('{"k":"b","v":4}', '{"k":"b","v":4}', '{"k":"c","v":5}'), 1, ("k",),
            ('{"key":{"k":"a"},"old":{"v":1},"new":{"v":9}}',),
        ),
    ),
    "a map in another order, no number, odd names": (
        "select 1 as `a.b`, map('x', 1, 'y', null) as `m``n`, double('nan') d, decimal(1.5) e",
        "select 1 as `a.b`, map('y', null, 'x', 1) as `m``n`, double('nan') d, decimal(1.5) e",
        ("a.b",),
        RowComparison(1, 0, 0, changed=0, keys=("a.b",)),
    ),
    "within a nested map, with a null as key": (
        "select string(null) k, array(struct(map('x', 1) as m)) s",
        "select string(null) k, array(struct(map('x', 2) as m)) s",
        ("k",),
        RowComparison(
            0, 0, 0, changed=1, keys=("k",),
            samples_changed=('{"key":{"k":null},"old":{"s":[{"m":{"x":1}}]},"new":{"s":[{"m":{"x":2}}]}}',),
        ),
    ),
    "two times within a millisecond": (
        "select 1 k, timestamp'2026-01-01 00:00:00.000001' t, X'00ff' b",
        "select 1 k, timestamp'2026-01-01 00:00:00.000002' t, X'00ff' b",
        ("k",),
        RowComparison(
            0, 0, 0, changed=1, keys=("k",),
            samples_changed=(
                '{"key":{"k":1},"old":{"t":"2026-01-01T00:00:00.000001Z"},"new":{"t":"2026-01-01T00:00:00.000002Z"}}',
            ),
        ),
    ),
    "a column more, and another type of the key": (
        "select 1 as k, null as v",
        "select 1L as k, null as v, null as w",
        ("k",),
        RowComparison(
            0, 0, 0, changed=1, keys=("k",), samples_changed=('{"key":{"k":1},"old":{},"new":{"w":null}}',)
        ),
    ),
    "another type": (
        "select * from values (1), (2) t(k)",
        "select * from values (1L), (3L) t(k)",
        (),
        RowComparison(1, 1, 1, ('{"k":2}',), ('{"k":3}',)),
    ),
    "no rows": (
        "select 1 k where false",
        "select 1 k where false",
        ("k",),
        RowComparison(0, 0, 0, changed=0, keys=("k",)),
    ),
}  # fmt: skip


def test_rows_are_compared_as_bags_and_by_their_keys(spark: SparkSession) -> None:
    """Equal values of any type are the same, other values are not, and two schemas compare."""
    for name, (old, new, keys, expected) in CASES.items():
        found = compare_frames(spark.sql(old), spark.sql(new), keys, samples=5)
        assert found == expected, name


def test_names_that_differ_in_case_alone_are_two_columns_where_the_script_has_it_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The folders are read in their own session, with the case sensitivity of the script's."""
    script = spark.newSession()
    script.conf.set("spark.sql.caseSensitive", "true")
    for name, value in (("old", 2), ("new", 3)):
        script.sql(f"select 1 as k, {value} as K").write.parquet(f"file://{tmp_path}/{name}")
    found = compare_folders(script, str(tmp_path / "old"), str(tmp_path / "new"), ("k",), samples=5)
    assert found == RowComparison(
        0, 0, 0, changed=1, keys=("k",), samples_changed=('{"key":{"k":1},"old":{"K":2},"new":{"K":3}}',)
    )
