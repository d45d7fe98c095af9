"""The plans that each Spark writes of ``support.plan_queries``, kept in ``tests/golden/plans``.

A Spark that comes later gets its own file: ``PYTHONPATH=tests:. python tests/support/plan_golden.py VERSION…``.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from airflow_streamstate.plan.model import PlannedSink, PlannedSource, QueryPlan
from airflow_streamstate.plan.spark_json import PlanFacts, read_plan
from airflow_streamstate.protocol.positions import WatermarkSpec
from support.sparks import IN_FULL

GOLDEN = Path(__file__).parents[1] / "golden" / "plans"
FOLDER = Path("/tmp/streamstate-plans")


def versions() -> list[str]:
    """Those that are kept."""
    return sorted(path.name.removesuffix(".json.gz") for path in GOLDEN.iterdir())


@cache
def kept(version: str) -> dict[str, dict[str, Any]]:
    """What this Spark wrote, by the names of the queries."""
    found: dict[str, dict[str, Any]] = json.loads(gzip.decompress((GOLDEN / f"{version}.json.gz").read_bytes()))
    return found


def facts_of(name: str, version: str, raw: Mapping[str, Any]) -> PlanFacts:
    """What the runtime would hand over with the text."""
    return PlanFacts(
        name,
        version,
        "append",
        "once",
        PlannedSink("noop"),
        tuple(WatermarkSpec(column, delay_ms) for column, delay_ms in raw["watermarks"]),
        tuple(PlannedSource(source["format"], "", source["path"], {}, (), source["name"]) for source in raw["sources"]),
        tuple(source["folder"] for source in raw["sources"])
        if any(source["name"] for source in raw["sources"])
        else tuple(range(len(raw["sources"]))),
    )


@cache
def golden(name: str, version: str = IN_FULL) -> QueryPlan:
    """The plan that a Spark wrote for a query, read now."""
    raw = kept(version)[name]
    return read_plan(json.dumps(raw["analyzed"]), facts_of(name, version, raw))


def main(arguments: Sequence[str]) -> None:
    """Write the files of these Sparks, each by its own python."""
    from support.sparks import VERSIONS, spark_of

    for version in arguments or VERSIONS:
        spark = spark_of(version)
        root = Path(__file__).parents[2]
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK"))},
            **spark.environment,
            "PYTHONPATH": f"{root}:{root / 'tests'}",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        subprocess.run([str(spark.python), __file__, "--of", version], env=environment, check=True)


def write(version: str) -> None:
    """Write the file of the Spark that this python has."""
    from pyspark.sql import SparkSession

    from airflow_streamstate.driver.spark.writer_facts import read_facts
    from support.plan_queries import queries

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    found: dict[str, Any] = {}
    for name, frame in queries(spark, FOLDER).items():
        facts = read_facts(spark._jvm, frame._jdf, frame.writeStream._jwrite, None)
        found[name] = {
            "analyzed": json.loads(frame._jdf.queryExecution().analyzed().toJSON()),
            "watermarks": [[each.column, each.delay_ms] for each in facts.watermarks],
            "sources": [
                {
                    "format": source.planned.format,
                    "path": source.planned.options.get("path", ""),
                    "folder": source.log_folder,
                    "name": source.name,
                }
                for source in facts.sources
            ],
        }
    spark.stop()
    GOLDEN.mkdir(parents=True, exist_ok=True)
    body = json.dumps(found, sort_keys=True).encode()
    (GOLDEN / f"{version}.json.gz").write_bytes(gzip.compress(body, mtime=0))
    print(version, len(found), "plans")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--of"]:
        write(sys.argv[2])
    else:
        main(sys.argv[1:])
