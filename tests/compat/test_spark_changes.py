"""The table of what changes from one Spark to another, held against every Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_streamstate.checkpoint.guards import line_of
from airflow_streamstate.plan.report import spark_changes
from support.sparks import VERSIONS, told_by

pytestmark = [pytest.mark.compat, pytest.mark.timeout(600)]
ASKS = """
import json, sys
from pyspark.sql import DataFrame, SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
confs = getattr(getattr(spark._jvm.org.apache.spark.sql.internal, "SQLConf$"), "MODULE$")
defaults = {str(entry.key()): str(entry.defaultValueString()) for entry in confs.getConfigEntries().toArray()}
print("FOUND" + json.dumps({"defaults": defaults, "names": dir(DataFrame)}))
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_each_spark_has_the_defaults_of_the_table(version: str, tmp_path: Path) -> None:
    """A release that changes one of them, or has again what was gone, is seen here."""
    lines = told_by(version, ASKS, tmp_path).splitlines()
    found = json.loads(next(line for line in lines if line.startswith("FOUND"))[len("FOUND") :])
    defaults, names, line = found["defaults"], found["names"], line_of(version)
    assert line is not None
    for entry in spark_changes():
        is_since = line >= (line_of(f"{entry['since']}.0") or (0, 0))
        if "setting" in entry:
            before = entry["was"] if ".legacy." not in entry["setting"] else None
            assert defaults.get(entry["setting"]) == (entry["now"] if is_since else before), entry["setting"]
        elif "name" in entry:
            assert (entry["name"] in names) is not is_since, entry["name"]
        elif is_since:
            assert entry["gone"] not in defaults
