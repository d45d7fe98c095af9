"""State in the open on real Spark: each kind of operator, both providers, the newer formats; the snapshot untouched.

``airflow_streamstate.driver.spark.state_reading``, ``state_changes`` and ``state_export``, over the forks of
``airflow_streamstate.controller.scratch.readings``. What is read is compared with the input itself.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.controller.scratch.readings import fork_for_reading
from airflow_streamstate.errors import ConflictError, InvalidRequestError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.snapshot.capture import QueryToCapture
from airflow_streamstate.snapshot.state_tables import ABOUT, StateExport, StateOrder, StatePlace
from airflow_streamstate.store.local import LocalStore
from support.drivers import STREAM, WINDOWED_COUNTS, Deployments, seconds_of
from support.real_queries import START_SECONDS, Feed, read_files, row_at, run_to_end, use_provider
from support.shell import shell
from support.snapshots import Shelf

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("quick_jvm"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]
FIRST, SECOND = "d-0001-live-000001", "d-0001-live-000002"
READING = "r-0123456789ab-0001"
FORMATS = {
    "hdfs": {},
    "rocksdb": {},
    "newest": {
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
        "spark.sql.streaming.offsetLog.formatVersion": "2",
    },
}
TIMER_MS = 600_000
ODD_KEYS = (
    "cast(k AS binary) AS bytes",
    "cast(concat(v, '.123456789012345678') AS decimal(38, 18)) AS exact",
    "ts + interval 123456 microseconds AS at",
    "array(k, null) AS several",
    "nullif(k, 'new') AS perhaps",
    "k AS `k``s`",
)


def silent(_words: str) -> None:
    """Nobody listens."""


@dataclass
class Kept:
    """Two snapshots of a deployment of several queries, and what they had read.

    Attributes:
        early, late: the rows of the first batch, and of the later ones.
        began_at: before the first batch.
        formats: which of ``FORMATS`` they are in.
    """

    spark: Any
    base: Path
    first: SnapshotManifest
    second: SnapshotManifest
    early: list[dict[str, Any]]
    late: list[dict[str, Any]]
    began_at: datetime
    formats: str

    @property
    def checkpoints(self) -> LocalStore:
        return LocalStore(self.base)

    def files(self) -> dict[str, bytes]:
        """Every file below the snapshots."""
        folder = self.base / "orders" / "snapshots"
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def place(self, name: str, manifest: SnapshotManifest | None = None, since: SnapshotManifest | None = None) -> Any:
        return fork_for_reading(self.checkpoints, manifest or self.second, name, READING, since)

    def order(self, *names: str, since: bool = False, **how: Any) -> StateOrder:
        feeds = self.first if since and "export" in how else None
        return StateOrder(
            verb="state",
            places={name: self.place(name, since=feeds) for name in names},
            before={name: self.place(name, self.first) for name in names} if since else {},
            folder=str(self.base),
            deadline_seconds=300,
            limit=how.pop("limit", 20),
            **how,
        )

    def look(self, name: str, **how: Any) -> dict[str, Any]:
        from airflow_streamstate.driver.spark.state_reading import look

        found: dict[str, Any] = look(self.spark, self.order(name, **how), silent)[name]
        assert [problem["reason"] for problem in found["problems"]] == []
        return found

    def export(self, out: Path, *names: str, since: bool = False, overwrite: bool = False) -> dict[str, Any]:
        from airflow_streamstate.driver.spark.state_reading import check_export, export

        wanted = StateExport(f"file://{out}", "parquet", overwrite, {"stream_id": STREAM, "snapshot_id": SECOND})
        check_export(self.spark, wanted)
        return export(self.spark, self.order(*names, since=since, export=wanted), silent)

    def rows(self, path: Path) -> list[dict[str, Any]]:
        return [row.asDict(recursive=True) for row in self.spark.read.parquet(str(path)).collect()]


def queries_of(spark: Any, folder: Path, provider: str) -> Iterator[tuple[str, Any]]:
    from pyspark.sql import functions as F  # noqa: N812

    rows = read_files(spark, folder)
    marked = rows.withWatermark("ts", "1 minute")
    yield "counts", marked.groupBy(F.window("ts", "1 minute"), "k").agg(F.sum("v").alias("s"), F.count("*").alias("n"))
    yield "all", rows.groupBy().agg(F.sum("v").alias("s"))
    if provider != "newest":
        other = read_files(spark, folder).withWatermark("ts", "1 minute").selectExpr("ts ts2", "k k2", "v v2")
        near = F.expr("k = k2 and ts2 between ts and ts + interval 30 seconds")
        # Spark compares no maps; the rows of a join are known by all that they hold.
        yield "pairs", marked.withColumn("m", F.create_map("k", "v")).join(other, near, "leftOuter")
    if provider == "hdfs":
        yield "once", rows.dropDuplicates(["k"])
        odd = rows.select("v", "k", *map(F.expr, ODD_KEYS))
        keys = [f"`{name.replace('`', '``')}`" for name in odd.columns[2:]]
        yield "odd", odd.groupBy(*keys, F.upper("k"), F.lower("k")).agg(F.sum("v"), F.sum(F.lit(1)))
        yield "sessions", marked.groupBy(F.session_window("ts", "30 seconds"), "k").agg(F.max("v"))
        groups, timeout = rows.groupBy("k"), "ProcessingTimeTimeout"
        yield "silent", groups.applyInPandasWithState(counting(), "k string", "n long", "append", timeout)
    else:
        yield (
            "processor",
            rows.groupBy("k").transformWithState(
                processor(), outputStructType="k string", outputMode="append", timeMode="processingTime"
            ),
        )


def counting() -> Any:
    """By value: Spark's workers do not have this module."""

    def counted(key: Any, frames: Any, state: Any) -> Any:
        state.update(((state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames),))
        state.setTimeoutDuration(TIMER_MS)
        yield from ()

    return counted


def processor() -> Any:
    from pyspark.sql.streaming import StatefulProcessor

    class Everything(StatefulProcessor):  # type: ignore[misc]
        """A value, a list, a map, a value that ends by itself, and a timer."""

        def init(self, handle: Any) -> None:
            self.handle = handle
            self.total = handle.getValueState("total", "n long")
            self.seen = handle.getListState("seen", "v long")
            self.by_parity = handle.getMapState("by_parity", "odd boolean", "n long")
            self.brief = handle.getValueState("brief", "n int", 3_600_000)

        def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:
            for row in rows:
                self.total.update(((self.total.get() if self.total.exists() else (0,))[0] + row.v,))
                self.seen.appendValue((row.v,))
                odd = (row.v % 2 == 1,)
                n = self.by_parity.getValue(odd)[0] if self.by_parity.containsKey(odd) else 0
                self.by_parity.updateValue(odd, (n + 1,))
            self.brief.update((1,))
            self.handle.registerTimer(timers.getCurrentProcessingTimeInMs() + TIMER_MS)
            return iter(())

        def close(self) -> None:
            pass

    return Everything()


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.named if name == "rocksdb" else ()) for name in sorted(FORMATS)],
)
def kept(request: pytest.FixtureRequest, shared_spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Queries that ran two batches, a snapshot taken after each."""
    provider, base = request.param, tmp_path_factory.mktemp(request.param)
    (base / "in").mkdir()
    spark = shared_spark.newSession()
    use_provider(spark, "hdfs" if provider == "hdfs" else "rocksdb")
    settings = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC", **FORMATS[provider]}
    for key, value in settings.items():
        spark.conf.set(key, value)
    shelf, feed, began_at = Shelf(LocalStore(base)), Feed(base / "in"), datetime.now(timezone.utc)  # noqa: TID251 - real Spark
    manifests = []
    for snapshot_id, files in ((FIRST, 2), (SECOND, 1)):
        feed.add(files)
        if snapshot_id == SECOND:
            feed.write([row_at(200, "new", 7_001)])
        names = []
        for name, query in queries_of(spark, base, provider):
            mode = "update" if name in ("all", "odd") else "append"
            run_to_end(query, shelf.checkpoint(name), None, once=True, mode=mode)
            names.append(name)
        queries = {name: QueryToCapture(shelf.checkpoint(name)) for name in names}
        manifests.append(shelf.capture(queries, snapshot_id=snapshot_id, kind="live"))
    reader = shared_spark.newSession()  # knows nothing of the settings that the state was written with
    reader.conf.set("spark.sql.session.timeZone", "UTC")
    reader.conf.set("spark.sql.shuffle.partitions", "2")
    return Kept(reader, base, *manifests, feed.fed[:8], feed.fed[8:], began_at, provider)


def by(rows: list[dict[str, Any]], key: Callable[[dict[str, Any]], Any]) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row["v"])
    return found


def minute_of(row: dict[str, Any]) -> int:
    return int((datetime.fromisoformat(row["ts"]).timestamp() - START_SECONDS) // 60)


def minute_at(start: datetime) -> int:
    return int((start.replace(tzinfo=timezone.utc).timestamp() - START_SECONDS) // 60)


def open_windows(kept: Kept) -> dict[tuple[int, str], list[int]]:
    """What a batch computation over the input has for the windows that the watermark had not closed."""
    watermark = max(datetime.fromisoformat(row["ts"]).timestamp() for row in kept.early) - 60 - START_SECONDS
    windows = by([*kept.early, *kept.late], lambda row: (minute_of(row), row["k"]))
    return {(minute, k): values for (minute, k), values in windows.items() if (minute + 1) * 60 > watermark}


def needs(kept: Kept, name: str) -> None:
    if name not in kept.second.queries:
        pytest.skip("these formats were not given that query")


def test_an_export_is_what_a_batch_computation_has(kept: Kept, tmp_path: Path) -> None:
    """Every open window with its sum and its count; the snapshot is as it was, byte for byte, and no file is more."""
    before = kept.files()
    about = kept.export(tmp_path / "out", "counts")
    rows = kept.rows(tmp_path / "out" / "counts" / "0-stateStoreSave" / "rows")
    assert {(row["batch_id"], row["partition_id"] in (0, 1)) for row in rows} == {(1, True)}
    exported = {
        (minute_at(row["key"]["window"]["start"]), row["key"]["k"]): (row["value"]["sum"], row["value"]["count"])
        for row in rows
    }
    assert exported == {key: (sum(values), len(values)) for key, values in open_windows(kept).items()}
    assert about["complete"]
    assert [table["rows"] for table in about["tables"]] == [len(rows)]
    assert json.loads((tmp_path / "out" / ABOUT).read_text()) == json.loads(json.dumps(about))
    kept.look("counts")
    assert kept.files() == before


def test_rows_are_counted_by_partition_and_shown_by_key(kept: Kept) -> None:
    """By one column of the key or by a part of a second one; a limit is reported where it cuts."""
    (table,) = kept.look("counts")["tables"]
    assert table["rows"] == sum(table["rows_by_partition"]) == len(open_windows(kept))
    assert len(table["rows_by_partition"]) == 2
    (found,) = kept.look("counts", key={"k": "a"})["rows"]
    assert Counter(row["key"]["k"] for row in found["rows"]) == {"a": sum(k == "a" for _, k in open_windows(kept))}
    window = {"window": {"start": "2024-01-01T00:03:00Z"}}
    (found,) = kept.look("counts", key=window)["rows"]
    assert [(row["key"]["k"], row["value"], row["partition_id"] in (0, 1)) for row in found["rows"]] == [
        ("new", {"sum": 7_001, "count": 1}, True)
    ]
    (found,) = kept.look("counts", key={"k": "a"}, limit=1)["rows"]
    assert (len(found["rows"]), found["more"]) == (1, True)
    with pytest.raises(InvalidRequestError, match="no state has these key columns") as none:
        kept.look("counts", key={"origin": "ATL"})
    assert none.value.context["columns"] == {"counts 0-stateStoreSave/rows": ["window.start", "window.end", "k"]}
    with pytest.raises(InvalidRequestError, match="does not fit the type of a key column"):
        kept.look("counts", key={"window": {"start": "noon"}})


def test_what_is_shown_of_a_key_finds_its_row(kept: Kept) -> None:
    """Bytes, long decimals, microseconds, lists and nulls; what no such column can hold is refused, never rounded."""
    needs(kept, "odd")
    (found,) = kept.look("odd", key={"k`s": "new"})["rows"]
    (row,) = found["rows"]
    assert row["key"]["exact"] == "7001.123456789012345678"
    assert row["key"]["at"] == "2024-01-01T00:03:20.123456Z"
    # Of what Spark calls by one name each has its own.
    assert (row["key"]["_groupingexpression"], row["key"]["_groupingexpression_2"]) == ("NEW", "new")
    assert row["value"] == {"sum": 7_001, "sum_2": 1}
    for name, value in row["key"].items():
        (found,) = kept.look("odd", key={name: value})["rows"]
        assert found["rows"] == [row], name
    for key in (
        {"exact": "7001.1234567890123456784"}, {"several": "new"}, {"several": {}}, {"bytes": "%"}, {"k`s": ["new"]},
    ):  # fmt: skip
        with pytest.raises(InvalidRequestError, match="does not fit the type of a key column"):
            kept.look("odd", key=key)


def test_an_aggregation_over_all_rows_has_one_row_without_a_key(kept: Kept, tmp_path: Path) -> None:
    """In one partition, whatever Spark notes; no file could have a column of its key."""
    (table,) = kept.look("all")["tables"]
    assert table["rows_by_partition"] == [1, 0]
    about = kept.export(tmp_path / "out", "all")
    (row,) = kept.rows(tmp_path / "out" / "all" / "0-stateStoreSave" / "rows")
    assert row["value"] == {"sum": sum(row["v"] for row in (*kept.early, *kept.late))}
    assert (about["complete"], about["tables"][0]["identity"]) == (True, [])


def test_variables_and_timers_of_a_processor_are_read_by_kind(kept: Kept, tmp_path: Path) -> None:
    """Value, list, map, time to live and timers of transformWithState, each as the input has it."""
    needs(kept, "processor")
    found = kept.look("processor")
    rows = [*kept.early, *kept.late]
    per_key = by(rows, lambda row: row["k"])
    parities = {(row["k"], row["v"] % 2 == 1) for row in rows}
    timers = sum(len({row["k"] for row in part}) for part in (kept.early, kept.late))
    tables = {table["name"]: table for table in found["tables"]}
    assert {name: (table["kind"], table["has_ttl"], table["rows"]) for name, table in tables.items()} == {
        "total": ("value", False, len(per_key)), "seen": ("list", False, len(rows)),
        "by_parity": ("map", False, len(parities)), "brief": ("value", True, len(per_key)),
        "timers": ("timers", False, timers),
    }  # fmt: skip
    due = tables["timers"]["timers"]
    assert (due["time"], due["count"]) == ("processing_time", timers)
    earliest = kept.began_at + timedelta(milliseconds=TIMER_MS)
    assert earliest <= datetime.fromisoformat(due["next_at"]) < datetime.fromisoformat(due["last_at"])
    kept.export(tmp_path / "out", "processor")
    folder = tmp_path / "out" / "processor" / "0-transformWithStateInPySparkExec"
    assert {row["key"]["k"]: row["value"]["n"] for row in kept.rows(folder / "total")} == {
        k: sum(values) for k, values in per_key.items()
    }
    lists = {row["key"]["k"]: [one["v"] for one in row["list_value"]] for row in kept.rows(folder / "seen")}
    assert {k: sorted(values) for k, values in lists.items()} == {k: sorted(v) for k, v in per_key.items()}
    assert {(row["key"]["k"], row["user_map_key"]["odd"]) for row in kept.rows(folder / "by_parity")} == parities
    assert len(kept.rows(folder / "~timers")) == timers


def test_both_sides_of_a_join_are_read(kept: Kept, tmp_path: Path) -> None:
    """With the rows that Spark still holds for each, which may be equal to each other."""
    needs(kept, "pairs")
    tables = kept.look("pairs")["tables"]
    assert [(table["name"], table["kind"]) for table in tables] == [("left", "join"), ("right", "join")]
    assert all(table["rows"] >= len(kept.late) for table in tables)
    left, right = kept.look("pairs", key={"field0": "new"})["rows"]
    assert [row["value"]["v"] for row in left["rows"]] == [row["value"]["v2"] for row in right["rows"]] == [7_001]
    kept.export(tmp_path / "out", "pairs")
    rows = kept.rows(tmp_path / "out" / "pairs" / "0-symmetricHashJoin" / "left")
    assert {(row["key"]["field0"], row["value"]["v"]) for row in rows} >= {(row["k"], row["v"]) for row in kept.late}


def test_other_operators_are_read_too(kept: Kept) -> None:
    """Deduplication, session windows, and state with timeouts, which are reported with the next one."""
    needs(kept, "silent")
    assert kept.look("once")["tables"][0]["rows"] == len({row["k"] for row in (*kept.early, *kept.late)})
    assert kept.look("sessions", key={"k": "new"})["rows"][0]["rows"] != []
    (table,) = kept.look("silent")["tables"]
    assert (table["timers"]["time"], table["timers"]["count"]) == ("timeout", table["rows"])
    assert datetime.fromisoformat(table["timers"]["next_at"]) > kept.began_at


def test_a_comparison_tells_what_was_added_changed_and_is_gone(kept: Kept) -> None:
    """Per table, the first of each, with what a changed row was before."""
    from airflow_streamstate.driver.spark.state_reading import compare

    names = tuple(kept.second.queries)
    found = compare(kept.spark, kept.order(*names, since=True), silent)
    assert [problem["reason"] for query in found.values() for problem in query["problems"]] == []
    (table,) = found["counts"]["tables"]
    early = by(kept.early, lambda row: (minute_of(row), row["k"]))
    late = open_windows(kept)
    assert (table["added"], table["changed"], table["gone"]) == (
        len(late.keys() - early.keys()),
        sum(late[key] != early[key] for key in late.keys() & early.keys()),
        len(early.keys() - late.keys()),
    )
    assert {row["key"]["k"] for row in table["examples"]["added"]} >= {"new"}
    if "processor" in found:
        tables = {one["name"]: one for one in found["processor"]["tables"]}
        (total,) = (row for row in tables["total"]["examples"]["changed"] if row["key"]["k"] == "a")
        assert total["before_value"]["n"] == sum(row["v"] for row in kept.early if row["k"] == "a")
        assert (tables["timers"]["changed"], tables["timers"]["gone"]) == (0, 0)
        assert tables["timers"]["added"] == len({row["k"] for row in kept.late})
    if "pairs" in found:
        assert all(side["added"] >= len(kept.late) for side in found["pairs"]["tables"])


def test_changes_make_the_older_state_the_newer_one(kept: Kept, tmp_path: Path) -> None:
    """Merged by their identity, whichever way they were found: by Spark's feed where the snapshot holds it."""
    names = tuple(name for name in kept.second.queries if name not in ("pairs", "once", "sessions"))
    about = kept.export(tmp_path / "changes", *names, since=True)
    ways = {table["path"]: table["way"] for table in about["tables"]}
    # RocksDB without changelogs leaves nothing that the feed could be read from.
    assert ways["counts/0-stateStoreSave/rows"] == ("comparison" if kept.formats == "rocksdb" else "feed")
    assert [problem["reason"] for problem in about["problems"]] == []
    for table in about["tables"]:
        changes = kept.rows(tmp_path / "changes" / table["path"])
        assert table["upserts"] + table["deletes"] == len(changes) > 0
        merged = state(kept, table, kept.first)
        for row in changes:
            identity = known_by(table, row)
            if row["change"] == "delete":
                merged.pop(identity, None)
            else:
                merged[identity] = told(table, row)
        assert merged == state(kept, table, kept.second), table["path"]


def state(kept: Kept, table: dict[str, Any], manifest: SnapshotManifest) -> dict[str, str]:
    from airflow_streamstate.driver.spark.state_reading import frame_of, place_tables

    place: StatePlace = kept.place(table["query_name"], manifest)
    (known,) = [one for one in place_tables(kept.spark, place) if one.name == table["name"]]
    rows = [row.asDict(recursive=True) for row in frame_of(kept.spark, place, known).collect()]
    return {known_by(table, row): told(table, row) for row in rows}


def known_by(table: dict[str, Any], row: dict[str, Any]) -> str:
    return repr([row[name] for name in table["identity"]])


def told(table: dict[str, Any], row: dict[str, Any]) -> str:
    hidden = {"change", "partition_id", "batch_id", *table["identity"]}
    return repr({name: value for name, value in row.items() if name not in hidden and value != {}})


def test_the_feed_reaches_over_batches_that_the_snapshot_holds(shared_spark: Any, tmp_path: Path) -> None:
    """Several batches between the two, whose commits are not kept: the last change of each row counts."""
    (tmp_path / "in").mkdir()
    spark = shared_spark.newSession()
    use_provider(spark, "hdfs")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    spark.conf.set("spark.sql.streaming.stateStore.minDeltasForSnapshot", "30")
    shelf, feed = Shelf(LocalStore(tmp_path)), Feed(tmp_path / "in")
    manifests = []
    for snapshot_id in (FIRST, SECOND):
        for _ in range(1 if snapshot_id == FIRST else 4):
            feed.add(1)
            ((_, query), *_) = queries_of(spark, tmp_path, "newest")
            run_to_end(query, shelf.checkpoint("counts"), None, once=True)
        queries = {"counts": QueryToCapture(shelf.checkpoint("counts"))}
        manifests.append(shelf.capture(queries, snapshot_id=snapshot_id, kind="live"))
    kept = Kept(spark, tmp_path, *manifests, feed.fed[:4], feed.fed[4:], datetime.now(timezone.utc), "hdfs")  # noqa: TID251
    assert kept.place("counts", since=kept.first).feed_from == 1
    assert "commits/1" not in {entry.path for entry in kept.second.queries["counts"].files}
    test_changes_make_the_older_state_the_newer_one(kept, tmp_path)


def test_nothing_is_replaced_but_an_earlier_export(kept: Kept, tmp_path: Path) -> None:
    """And that by name alone; what somebody else keeps there stays, whatever is asked for."""
    kept.export(tmp_path / "out", "counts")
    with pytest.raises(ConflictError, match="an export is in that folder already"):
        kept.export(tmp_path / "out", "counts")
    assert kept.export(tmp_path / "out", "counts", overwrite=True)["complete"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConflictError, match="holds no earlier export"):
        kept.export(tmp_path / "mine", "counts", overwrite=True)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"
    from airflow_streamstate.driver.spark.state_reading import check_export

    with pytest.raises(InvalidRequestError, match="cannot write that format"):
        check_export(kept.spark, StateExport(f"file://{tmp_path}/d", "delta", False, {}))


def test_an_export_whose_place_was_taken_does_not_say_that_it_is_complete(kept: Kept, tmp_path: Path) -> None:
    """Another one with --overwrite has removed tables that this one would report."""
    from airflow_streamstate.driver.spark.state_reading import export

    about = tmp_path / "out" / ABOUT

    def take(_words: str) -> None:
        about.with_name(f".{ABOUT}.crc").unlink(missing_ok=True)
        about.write_text(json.dumps({**json.loads(about.read_text()), "claim": "another"}))

    wanted = StateExport(f"file://{tmp_path}/out", "parquet", False, {})
    with pytest.raises(ConflictError, match="has taken the place"):
        export(kept.spark, kept.order("counts", export=wanted), take)
    assert not json.loads(about.read_text())["complete"]


def test_other_operators_are_refused_by_name(kept: Kept) -> None:
    """State of two versions between which it was not restored cannot be compared."""
    from airflow_streamstate.driver.spark.state_reading import compare

    other = next(name for name in kept.second.queries if name not in ("counts", "all", "odd"))
    order = kept.order("counts", since=True)
    order = replace(order, before={"counts": kept.place(other, kept.first)})
    with pytest.raises(InvalidRequestError, match="different operators") as refused:
        compare(kept.spark, order, silent)
    assert "0-stateStoreSave/rows (rows) is only in the second one" in refused.value.context["difference"]


def test_whole_operators_are_counted_as_the_drain_does(kept: Kept) -> None:
    """``count_state_rows``, too, reads state whose processor has timers."""
    from airflow_streamstate.driver.spark.state_reading import count_state_rows

    needs(kept, "processor")
    if kept.place("processor").state_format != 1:
        pytest.skip("a driver's own session has the format of its checkpoints")
    (counted_,) = count_state_rows(kept.spark, kept.place("processor").checkpoint_uri)
    tables = kept.look("processor")["tables"]
    assert counted_.rows == sum(table["rows"] for table in tables if table["kind"] != "timers")


@pytest.mark.named
def test_the_shell_reads_the_state_of_what_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver of its own, with the deployment's configuration; nothing is left of the reading, and the home is as it
    was."""
    with Deployments(tmp_path) as stream:
        stream.feed({"t": seconds_of(0, 1), "k": "a", "v": 1}, {"t": seconds_of(0, 2), "k": "b", "v": 2})
        script = WINDOWED_COUNTS + 'counts.writeStream.queryName("hourly").format("json").start(base + "/out")\n'
        driver = stream.deploy(script + "spark.streams.awaitAnyTermination()\n", str(tmp_path))
        stream.wait_committed("hourly", 0, driver, 120)
        stream.stop()
        assert driver.exit_status() == 0, driver.log
        home = tmp_path / "home"
        before = lying(home)
        answer = shell("--home", home, "snapshot", "export", STREAM, "--out", tmp_path / "kept", "--json")
        assert answer.status == 0, answer.out
        (operator,) = answer.json["queries"]["hourly"]["operators"]
        assert (operator["rows"], operator["partitions"], operator["bytes"] > 0) == (2, 2, True)
        assert [table["rows"] for table in answer.json["export"]["tables"]] == [2]
        assert lying(home) == before
        deep = shell("--home", home, "snapshot", "verify", STREAM, answer.json["snapshot_id"], "--deep", "--json")
        assert (deep.status, deep.json["loaded"]["hourly"]["operators"][0]["rows"]) == (0, 2)


def lying(home: Path) -> dict[Path, bytes]:
    """Every file, but for the one that records when each snapshot was last read, and the feed."""
    files = (path for path in home.rglob("*") if path.is_file() and layout.FEED_FOLDER not in path.parts)
    return {path: path.read_bytes() for path in files if path.name != "retention.json"}
