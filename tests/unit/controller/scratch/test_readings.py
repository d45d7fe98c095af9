"""Readings over drivers that run no Spark; what is recorded is ``airflow_streamstate.protocol.scratch``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.registers import CLOCKS_DIFFER_SECONDS
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home, HomeConfig
from airflow_streamstate.controller.request.patch import NO_SCRIPT
from airflow_streamstate.controller.scratch.readings import LoadedState, ReadingRequest, on_reader, reader_spec
from airflow_streamstate.controller.scratch.run import LATE_SECONDS
from airflow_streamstate.errors import (
    DeadlineExceededError,
    DeploymentFailedError,
    InvalidRequestError,
    SnapshotCorruptError,
    SnapshotNotFoundError,
)
from airflow_streamstate.launch.spark_home import own_pyspark
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.ids import launch_key_for
from airflow_streamstate.protocol.scratch import Reading, ScratchRun
from airflow_streamstate.protocol.terms.version import LauncherChoice, Version
from airflow_streamstate.store.local import LocalStore
from support import scripted_driver
from support.launches import end_processes, living_processes
from support.recorded_specs import with_version
from support.scripted_reader import VARIABLE
from support.scripted_stream import ScriptedStream
from support.snapshots import QUERY, SNAPSHOT, STREAM, Shelf, flip_byte, run_stateful

pytestmark = pytest.mark.fast

LATER = "d-0001-stopped-000002"


@dataclass
class Shop:
    """A stream with two snapshots, and a controller whose drivers are scripted."""

    base: Path
    shelf: Shelf
    controller: Controller

    def files(self) -> dict[str, bytes]:
        """Without the record of leases, which has the time of the last read."""
        home = self.base / "home"
        found = {str(path.relative_to(home)): path for path in home.rglob("*") if path.is_file()}
        return {name: path.read_bytes() for name, path in found.items() if not name.endswith("/retention.json")}

    def look(self, **how: Any) -> dict[str, Any]:
        return self.controller.readings.look(ReadingRequest(stream_id=STREAM, **how))

    def left_behind(self, run_id: str, seconds: float) -> None:
        """What a shell leaves that is killed while it reads, the given time before its deadline."""
        self.shelf.control.create_scratch_run(run_of(run_id, seconds))
        key = f"{layout.reading_fork_folder(STREAM, run_id, SNAPSHOT, QUERY)}/metadata"
        self.shelf.checkpoints.put(key, b"{}")


def run_of(run_id: str, seconds: float = 60) -> ScratchRun:
    """The record of a reading, the given time before its deadline."""
    now = SYSTEM_CLOCK.now()
    until, what = now + timedelta(seconds=seconds), Reading((SNAPSHOT,))
    return ScratchRun(STREAM, run_id, "d-0001", what, now, until, "ada (shell)", "request", "", "w")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    for name, value in scripted_driver.install(tmp_path / "machine").items():
        monkeypatch.setenv(name, value)
    store = LocalStore(tmp_path / "home")
    ScriptedStream(store, store.uri, STREAM).deploy()
    shelf = Shelf(store)
    run_stateful(shelf.checkpoint(), 3)
    shelf.capture()
    run_stateful(shelf.checkpoint(), 5, first=4)
    shelf.clock.advance(60)
    shelf.capture(snapshot_id=LATER)
    yield Shop(tmp_path, shelf, Controller.local(Home(HomeConfig(home_uri=str(tmp_path / "home")))))
    for folder in (tmp_path / "home").rglob("launches/r-*"):
        end_processes(str(folder))


def test_the_newest_state_is_told_and_nothing_is_left(shop: Shop) -> None:
    """Rows of the driver, bytes of the manifest; the home is as it was."""
    before = shop.files()
    found = shop.look(key={"k": "a"})
    assert (found["snapshot_id"], found["kind"]) == (LATER, "stopped")
    (operator,) = found["queries"][QUERY]["operators"]
    assert (operator["rows"], operator["rows_by_partition"], operator["bytes"] > 0) == (3, [3, 0], True)
    assert found["found"][0]["query_name"] == QUERY
    assert shop.look(snapshot_id=SNAPSHOT)["snapshot_id"] == SNAPSHOT
    assert shop.files() == before


def test_of_a_snapshot_with_positions_only_nothing_is_loaded(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """And that is no fault of it: no driver is started."""
    monkeypatch.setenv(VARIABLE, "dies")
    manifest = shop.shelf.control.need_manifest(LATER)
    flushed = replace(
        manifest, snapshot_id="d-0001-drained-000009", snapshot_kind="drained",
        queries={QUERY: replace(manifest.queries[QUERY], drained=True)},
    )  # fmt: skip
    shop.shelf.control.create_manifest(flushed)
    request = ReadingRequest(stream_id=STREAM, snapshot_id=flushed.snapshot_id)
    assert shop.controller.readings.load(request) == LoadedState({}, ())


def test_two_snapshots_are_compared_and_changes_exported(shop: Shop) -> None:
    """Each on its own fork."""
    found = shop.controller.readings.diff(ReadingRequest(stream_id=STREAM, snapshot_id=LATER, changes_since=SNAPSHOT))
    assert (found["before"]["snapshot_id"], found["after"]["snapshot_id"]) == (SNAPSHOT, LATER)
    assert found["queries"][QUERY]["tables"][0]["gone"] == 2
    changes = shop.look(changes_since=SNAPSHOT, out=str(shop.base / "out"))
    assert (changes["queries"], changes["export"]["tables"][0]["deletes"]) == ({}, 2)
    with pytest.raises(InvalidRequestError, match="compared with itself"):
        shop.look(changes_since=LATER, out=str(shop.base / "out"))


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("refuses", InvalidRequestError, "no state has these key columns"),
        ("dies", DeploymentFailedError, "ended without an answer"),
        ("hangs", DeadlineExceededError, "not read within the deadline"),
    ],
)
def test_a_reading_that_fails_leaves_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, how: str, error: type[Exception], words: str
) -> None:
    """Neither driver nor fork nor record, whatever became of it (Law 6)."""
    monkeypatch.setenv(VARIABLE, how)
    before = shop.files()
    with pytest.raises(error, match=words):
        shop.look(key={"k": "a"}, deadline_seconds=5.0 if how == "hangs" else 60.0)
    assert shop.files() == before


def test_a_reading_that_is_interrupted_ends_its_driver(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and nothing of it is left; before that its driver can be found by anybody."""
    monkeypatch.setenv(VARIABLE, "hangs")
    before, folders = shop.files(), list[str]()

    def interrupted(line: str) -> None:
        if "hangs" in line:
            (run_id,) = shop.shelf.control.scratch_ids()
            assert shop.shelf.control.launch(run_id, launch_key_for(run_id, 1)) is not None
            (folder,) = (shop.base / "home").rglob("launches/r-*-a0001")
            assert living_processes(str(folder))
            folders.append(str(folder))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shop.controller.readings.look(ReadingRequest(stream_id=STREAM), interrupted)
    assert living_processes(folders[0]) == []
    assert shop.files() == before


def test_what_is_laid_over_the_configuration_is_not_recorded(shop: Shop) -> None:
    """It may hold a secret, and nobody has agreed to its record."""
    seen: list[bytes] = []

    def look(_line: str) -> None:
        seen.extend(body for name, body in shop.files().items() if name.endswith("spec.json"))

    shop.controller.readings.look(ReadingRequest(stream_id=STREAM, conf={"spark.password": "battery-staple"}), look)
    assert len(set(seen)) == 2, "of the deployment, and of the reading"
    assert not [body for body in seen if b"battery-staple" in body]


def test_the_next_reading_removes_what_a_killed_shell_left(shop: Shop) -> None:
    """Once its time has ended; a reading that may still run is left alone, also where its clock is minutes behind."""
    before = shop.files()
    shop.left_behind("r-000000000000-0001", -CLOCKS_DIFFER_SECONDS - LATE_SECONDS - 1)
    shop.left_behind("r-000000000000-0002", 600)
    shop.left_behind("r-000000000000-0003", 60 - CLOCKS_DIFFER_SECONDS)
    shop.look()
    kept = {name for name in shop.files() if name not in before}
    assert {name.split("/")[2] for name in kept} == {"r-000000000000-0002", "r-000000000000-0003"}


def test_what_is_asked_for_in_vain_starts_no_driver(shop: Shop) -> None:
    """A snapshot that is not there or incomplete; an export into the home, a mirror, or where snapshots were kept."""
    spec, mirror, place = shop.shelf.control.spec("d-0001"), shop.base / "mirror", shop.base / "place"
    told = with_version(spec, mirrors=(f"file://{mirror}",), snapshots=f"file://{place}")
    shop.shelf.control.create_spec(replace(told, deployment_id="d-0002"))
    before = shop.files()
    with pytest.raises(SnapshotNotFoundError):
        shop.look(snapshot_id="d-0009-live-000001")
    for kept in (shop.base / "home", mirror, place):
        with pytest.raises(InvalidRequestError, match="are kept"):
            shop.look(out=str(kept / "out"))
    assert shop.files() == before
    flip_byte(shop.shelf.checkpoints, shop.shelf.data_key("commits/5", snapshot_id=LATER), at=12)
    with pytest.raises(SnapshotCorruptError):
        shop.look()
    assert not [name for name in shop.files() if "/scratch/" in name]


def test_a_stream_that_keeps_no_state_is_told_so_without_spark(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """And there is nothing to export."""
    monkeypatch.setenv(VARIABLE, "dies")
    manifest = shop.shelf.control.need_manifest(LATER)
    query = manifest.queries[QUERY]
    files = tuple(entry for entry in query.files if not entry.path.startswith("state/"))
    stateless = replace(
        manifest, snapshot_id="d-0001-live-000009", queries={"raw": replace(query, files=files)},
        taken_at=manifest.taken_at + timedelta(hours=1),
    )  # fmt: skip
    shop.shelf.control.create_manifest(stateless)
    assert shop.look()["queries"]["raw"]["operators"] == []
    with pytest.raises(InvalidRequestError, match="keep no state"):
        shop.look(out=str(shop.base / "out"))


def test_the_driver_has_the_configuration_of_the_deployment_and_what_is_laid_over_it(shop: Shop) -> None:
    """But not its script, its arguments and its master: it runs nothing of the deployment's own."""
    spec = shop.shelf.control.spec("d-0001")
    request = ReadingRequest(stream_id=STREAM, conf={"spark.x": "1"}, packages=("a:b:1",))
    made = reader_spec(
        with_version(spec, conf={"spark.x": "0", "spark.y": "2"}, launcher=LauncherChoice("kubernetes")),
        request,
        run_of("r-000000000000-0003"),
    )
    version = made.version
    assert version.launcher is None, "the answer is in a folder of this machine"
    assert version.conf == {"spark.x": "1", "spark.y": "2"}
    assert (version.packages, version.master, version.arguments) == (("a:b:1",), "local[*]", ())
    assert (made.deployment_id, version.spark_conn_id) == ("r-000000000000-0003", None)


def test_another_spark_reads_with_no_setting_of_the_jobs_own_classes(tmp_path: Path) -> None:
    """A Spark that is named, or the caller's for what Spark 3.5 wrote: with the places and the state store alone."""
    own = {"SPARK_HOME": "/opt/spark-3.5", "JAVA_HOME": "/opt/java-8", "PYSPARK_PYTHON": "/opt/python", "TZ": "UTC"}
    conf = {"spark.hadoop.fs.s3a.endpoint": "http://x", "spark.plugins": "a.Plugin", "spark.jars.packages": "a:b:1"}
    version = replace(Version(NO_SCRIPT), environment=own, conf=conf, packages=("a:b:1",), jars=("s3://x/a.jar",))
    assert on_reader(version, "", "4.2.0") == version
    spark = tmp_path / "spark"
    for folder in ("jars", "bin"):
        (spark / folder).mkdir(parents=True)
    (spark / "bin" / "spark-submit").write_text("")
    (spark / "bin" / "spark-submit").chmod(0o755)
    for named, home in ((str(spark), str(spark)), ("", str(own_pyspark()))):
        found = on_reader(version, named, "3.5.9")
        assert (found.environment, found.packages, found.jars) == ({"SPARK_HOME": home, "TZ": "UTC"}, (), ())
        assert found.conf == {"spark.hadoop.fs.s3a.endpoint": "http://x"}
