"""The checkpoint that a script names for itself, as Spark's own file systems show it."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from airflow_streamstate.driver.spark.writer_facts import SESSION_LOCATION, WriterSettings, look_at_own_checkpoint


def settings(name: str | None = None, location: str | None = None) -> WriterSettings:
    """What the script set on its writer."""
    return WriterSettings(name, location, {}, "")


def run_plainly(spark: SparkSession, folder: Path) -> None:
    """As by plain spark-submit, without this package: one batch."""
    rows = spark.readStream.format("rate").load().writeStream.format("noop")
    rows.option("checkpointLocation", str(folder)).trigger(once=True).start().awaitTermination(60)


def test_what_a_plain_run_has_committed_is_seen(spark: SparkSession, tmp_path: Path) -> None:
    """By the writer's option, by the session's folder with the query's name; a name is needed there, as for Spark."""
    run_plainly(spark, tmp_path / "base" / "shops")
    run_plainly(spark, tmp_path / "base" / "raw")
    (tmp_path / "base" / "empty").mkdir()
    for location in (f"{tmp_path}/base/shops/", f"file://{tmp_path}/base/shops", f"file:{tmp_path}/base/shops"):
        found = look_at_own_checkpoint(spark, settings(location=location))
        assert found is not None
        assert (found.uri, found.batch_id, found.others) == (
            f"{tmp_path}/base/shops", 0, (f"{tmp_path}/base/raw",)
        )  # fmt: skip
        assert found.written_at is not None
    spark.conf.set(SESSION_LOCATION, f"{tmp_path}/base/")
    by_session = look_at_own_checkpoint(spark, settings("raw"))
    assert by_session is not None
    assert (by_session.uri, by_session.batch_id) == (f"{tmp_path}/base/raw", 0)
    assert look_at_own_checkpoint(spark, settings()) is None


def test_what_holds_nothing_and_what_cannot_be_read(spark: SparkSession, tmp_path: Path) -> None:
    """Neither raises: the start continues, and the second is named."""
    never = look_at_own_checkpoint(spark, settings(location=str(tmp_path / "never")))
    assert never is not None
    assert (never.batch_id, never.unread_reason) == (None, "")
    away = look_at_own_checkpoint(spark, settings(location="nowhere://host/ckpt"))
    assert away is not None
    assert "nowhere" in away.unread_reason
    assert away.batch_id is None
