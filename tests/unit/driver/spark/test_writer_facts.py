from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from airflow_streamstate.driver.spark.writer_facts import fingerprint

PLAN = """\
Aggregate [window#7-T10000ms, k#2], [window#7-T10000ms, k#2, count(1) AS n#9L]
+- EventTimeWatermark 0c4c2e9a-5f0c-4e5c-9d4c-3a3f8a0c1b2d, t#1: timestamp, 10 seconds
   +- StreamingRelation DataSource(org.apache.spark.sql.classic.SparkSession@5f2a1b3c,json), FileSource[/in], [t#1, k#2]
"""


def test_ids_that_change_with_each_build_do_not_count() -> None:
    """The same lines of a script make the same fingerprint, run after run of a loop (1a.12)."""
    again = PLAN.replace("#7", "#107").replace("#9L", "#3L").replace("0c4c2e9a", "ffffffff").replace("5f2a1b3c", "01")
    again = again.replace("SparkSession@01", "SparkSession@1a2b3c4d")
    assert fingerprint(again) == fingerprint(PLAN)


def test_another_plan_is_another_fingerprint() -> None:
    """A second query without a name is seen to be one."""
    assert fingerprint(PLAN.replace("10 seconds", "20 seconds")) != fingerprint(PLAN)
