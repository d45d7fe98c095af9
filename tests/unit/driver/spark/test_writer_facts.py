from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from airflow_streamstate.driver.spark.writer_facts import fingerprint

PLAN = """\
Aggregate [window#7-T10000ms, k#2], [window#7-T10000ms, k#2, count(1) AS n#9L]
+- EventTimeWatermark 0c4c2e9a-5f0c-4e5c-9d4c-3a3f8a0c1b2d, t#1: timestamp, 10 seconds
   +- StreamingRelation DataSource(org.apache.spark.sql.classic.SparkSession@5f2a1b3c,json), FileSource[/in], [t#1, k#2]
"""


def test_a_fingerprint_is_of_the_plan_without_the_ids_of_its_build() -> None:
    """A loop starts the same query again; a second unnamed query is another one (1a.12)."""
    again = PLAN.replace("#7", "#107").replace("#9L", "#3L").replace("0c4c2e9a", "ffffffff").replace("5f2a1b3c", "01")
    again = again.replace("SparkSession@01", "SparkSession@1a2b3c4d")
    assert fingerprint(again) == fingerprint(PLAN)
    assert fingerprint(PLAN.replace("10 seconds", "20 seconds")) != fingerprint(PLAN)
