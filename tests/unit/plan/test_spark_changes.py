"""What a script has to expect of another Spark, by Spark's migration guide as data."""

from __future__ import annotations

import re

import pytest

from airflow_streamstate.plan.report import notes_of_move, spark_changes

ANSI = (
    "an overflow, a division by zero or a text that is no number gives null before Spark 4.0, and fails the batch since"
)
SCRIPT = {
    "job.py": "# df.sql_ctx\n@F.udf('long')\ndef twice(v): ...\nold = df.sql_ctx\n",
    "lib/x.py": "split(k, '', 2)",
}


def test_a_newer_spark_is_told_by_what_the_script_uses() -> None:
    """With the place where it is used, and the setting that keeps what was; older lines than its own count not."""
    found = notes_of_move((3, 5), (4, 2), {"spark.sql.hive.verifyPartitionPath": "true"}, SCRIPT)
    assert found == (
        f"{ANSI}; `--conf spark.sql.ansi.enabled=false` keeps what this stream has",
        "Spark 4.0 has no setting spark.sql.hive.verifyPartitionPath: use spark.sql.files.ignoreMissingFiles",
        "Spark 4.0 has no DataFrame.sql_ctx: use sparkSession (job.py, line 4)",
        "the last part of a split by an empty pattern with a limit is one character before Spark 4.1, and is the rest"
        " of the text since (lib/x.py, line 1); `--conf spark.sql.legacy.truncateForEmptyRegexSplit=true` keeps what"
        " this stream has",
        "a value of another type than a Python function declares becomes null before Spark 4.2, and is converted by"
        " Arrow, or fails the batch since (job.py, line 2); `--conf spark.sql.execution.pythonUDF.arrow.enabled=false`"
        " keeps what this stream has",
    )
    assert notes_of_move((4, 1), (4, 2), {}, SCRIPT) == found[4:]


def test_the_way_to_an_older_spark_is_told_by_the_settings_that_it_has() -> None:
    """A setting that only keeps what an older Spark does is not there."""
    (ansi,) = notes_of_move((4, 1), (3, 5), {}, SCRIPT)
    assert ansi == f"{ANSI}; `--conf spark.sql.ansi.enabled=true` keeps what this stream has"


@pytest.mark.parametrize(("old", "new"), [((4, 2), (4, 2)), (None, (4, 2)), ((3, 5), None), ((4, 2), (4, 3))])
def test_nothing_is_told_where_nothing_is_known(old: tuple[int, int] | None, new: tuple[int, int] | None) -> None:
    """Nor of a setting that the version has."""
    assert notes_of_move(old, new, {}, SCRIPT) == ()
    assert notes_of_move((3, 5), (4, 0), {"spark.sql.ansi.enabled": "true"}, {}) == ()


def test_each_entry_is_whole() -> None:
    """A new one has all that its sentence needs."""
    for entry in spark_changes():
        assert re.fullmatch(r"[45]\.[0-9]", entry["since"])
        kinds = {"setting", "gone", "name"} & set(entry)
        assert len(kinds) == 1
        needed = {"was", "now", "what", "did", "does"} if "setting" in kinds else {"instead"}
        assert needed <= set(entry)
        re.compile(entry.get("uses", ""))
