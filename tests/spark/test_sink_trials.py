"""What a start asks of its sink, tried on real Spark without a change in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.errors import InvalidRequestError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


class Tried:
    """Sinks of one stream, tried as a rehearsal does."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.warehouse = Path(str(spark.conf.get("spark.sql.warehouse.dir")).removeprefix("file:"))
        self.rows = spark.readStream.schema("k string, v int").json(str(folder / "in"))

    def __call__(self, made: Callable[[Any], Any], table: str | None = None, path: str | None = None) -> str:
        """What is remarked, or why a start would be refused; and nothing was touched."""
        from airflow_streamstate.driver.spark.spark_query import SparkWriter

        writer = made(self.rows.writeStream.option("checkpointLocation", "/nowhere"))
        own = SparkWriter(self.spark, writer._df._jdf, writer._jwrite, path, table)
        before = self.everything()
        try:
            said = " ".join(own.try_sink(0, (self.folder / "scratch").as_uri()))
        except InvalidRequestError as error:
            said = f"refused: {error}"
        except Exception as error:
            said = f"failed: {error}"
        assert self.everything() == before
        assert "could not be tried" not in said
        return said

    def everything(self) -> set[str]:
        """Every file and folder, and every table."""
        found = [*self.folder.rglob("*"), *self.warehouse.rglob("*")]
        paths = {str(path) for path in found if self.folder / "scratch" not in (path, *path.parents)}
        return {*paths, *(table.name for table in self.spark.catalog.listTables())}


@pytest.fixture
def tried(spark: Any, folder: Path) -> Tried:
    return Tried(spark, folder)


def test_what_spark_would_refuse_at_a_start_is_known_before(tried: Tried) -> None:
    """Tables, formats, column types, modes and places; the same start is accepted where Spark accepts it."""
    out = str(tried.folder / "out")
    parquet = lambda writer: writer.format("parquet")  # noqa: E731
    assert tried(parquet, path=out) == ""
    assert "ends with this Spark session" in tried(parquet, table="fresh_one")
    # As a second session finds it: the files of the first one, and no table.
    held = tried.warehouse / "held"
    held.mkdir(parents=True)
    (held / "part-0").touch()
    said = tried(parquet, table="held")
    assert "LOCATION_ALREADY_EXISTS" in said
    assert f'.option("path", "file:{held}")' in said
    assert tried(lambda writer: parquet(writer).option("path", str(held)), table="held") == ""
    tried.spark.sql(f"CREATE TABLE IF NOT EXISTS held (k string, v int) USING parquet LOCATION '{held}'")
    try:
        assert tried(parquet, table="held") == ""
        assert "the table has another format" in tried(lambda writer: writer.format("json"), table="held")
    finally:
        tried.spark.sql("DROP TABLE held")
    tried.spark.range(1).createOrReplaceTempView("seen")
    assert "temporary view" in tried(parquet, table="seen")
    tried.spark.catalog.dropTempView("seen")
    assert "SCHEMA_NOT_FOUND" in tried(parquet, table="nowhere.held")
    assert "nosuch" in tried(lambda writer: writer.format("nosuch"), path=out)
    assert "no other output mode" in tried(lambda writer: parquet(writer).outputMode("update"), path=out)
    assert "needs a path" in tried(parquet)
    assert "a memory sink needs a query name" in tried(lambda writer: writer.format("memory"))
    assert "refused" not in tried(lambda writer: writer.format("console"))
    in_the_way = tried.folder / "file"
    in_the_way.touch()
    assert "a file is where" in tried(parquet, path=f"{in_the_way}/out")
    assert tried(lambda writer: parquet(writer).partitionBy("k"), path=out) == ""
    assert "failed: " in tried(lambda writer: parquet(writer).partitionBy("missing"), path=out)
    assert "failed: " in tried(lambda writer: writer.format("text"), path=out)  # two columns
