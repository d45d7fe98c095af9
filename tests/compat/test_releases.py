"""A driver of an older release under today's controller, and today's driver under an older controller.

The older release is kept as what it sent to its drivers: ``tests/golden/runtime/<commit>.zip``. A release adds one.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.launch.driver_zip import RUNNER_NAME, ZIP_NAME
from airflow_streamstate.protocol.events import Drained, SnapshotReady
from support.drivers import CONF, WINDOWED_COUNTS, Deployments
from support.launches import wait_until
from support.progress import files_read
from support.shell import Desk, desk_with, shell
from support.sparks import IN_FULL, Spark, spark_of
from support.window_rows import WindowRows

pytestmark = [pytest.mark.compat, pytest.mark.timeout(1_200)]

TESTS = Path(__file__).resolve().parents[1]
RELEASES = sorted((TESTS / "golden" / "runtime").glob("*.zip"))
SCRIPT = (
    WINDOWED_COUNTS
    + """
counts.writeStream.queryName("counts").format("json").start(base + "/out").awaitTermination()
"""
)
QUICK = tuple(word for key, value in CONF.items() for word in ("--conf", f"{key}={value}"))
WAIT = ("--timeout", "300", "--json")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home, the Spark that drivers run on, and no driver left afterwards."""
    with desk_with(
        tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_"), spark_of(IN_FULL).environment
    ) as made:
        yield made


def spark_with_old_runtime(base: Path, spark: Spark, release: Path) -> Path:
    """A SPARK_HOME that is the real one, but for what it is given as our runtime: that of the older release."""
    home = base / "spark with an old runtime"
    (home / "bin").mkdir(parents=True)
    (home / "jars").symlink_to(spark.home / "jars")
    submit = home / "bin" / "spark-submit"
    submit.write_text(
        "#!/bin/bash\n"
        'for word in "$@"; do case "$word" in\n'
        f'  */{ZIP_NAME}*) cp {shlex.quote(str(release))} "${{word%%,*}}";;\n'
        f'  */{RUNNER_NAME}) sed -i s/driver.main/runtime.runner/ "$word";;\n'
        "esac; done\n"
        f"export SPARK_HOME={shlex.quote(str(spark.home))}\n"
        'exec "$SPARK_HOME/bin/spark-submit" "$@"\n'
    )
    submit.chmod(0o755)
    return home


def wait_read(desk: Desk, deployment_id: str, files: int) -> None:
    """Wait until the committed batches of a deployment have read so many files."""
    folder = next(desk.home.glob(f"orders/deployments/{deployment_id}/checkpoints/counts"))
    wait_until(lambda: files_read(folder) >= files, f"{files} files read by {deployment_id}", 120)


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)
def test_a_driver_of_an_older_release_obeys_todays_controller(
    desk: Desk, release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deployed, snapshotted, drained, and gone on from by today's driver: each row once (Law 7)."""
    rows, app = WindowRows(desk.base), desk.base / "job.py"
    app.write_text(SCRIPT)
    deploy = ("deploy", "orders", "--app", app, "--master", "local[2]", *QUICK, *WAIT)
    rows.feed()
    rows.feed()
    with monkeypatch.context() as old:
        old.setenv("SPARK_HOME", str(spark_with_old_runtime(desk.base, spark_of(IN_FULL), release)))
        answer = shell(*deploy, "--", desk.base)
    assert answer.status == 0, answer
    (runtime,) = desk.home.glob(f"orders/deployments/d-0001/launches/*/{ZIP_NAME}")
    assert runtime.read_bytes() == release.read_bytes()
    assert shell("snapshot", "create", "orders", *WAIT).json["kind"] == "live"
    wait_read(desk, "d-0001", 2)
    drained = shell("drain", "orders", *WAIT).json
    assert (drained["state"], drained["queries"]["counts"]["state_rows_left"]) == ("drained", 0)
    assert rows.found() == rows.expected()

    answer = shell(*deploy, "--", desk.base)
    assert answer.status == 0, answer
    assert answer.json["start"]["mode"] == "seed"
    rows.feed()
    rows.feed()
    wait_read(desk, "d-0002", 4)
    assert shell("drain", "orders", *WAIT).json["state"] == "drained"
    assert rows.found() == rows.expected()


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)
@pytest.mark.usefixtures("desk")
def test_todays_driver_obeys_an_older_controller(tmp_path: Path, release: Path) -> None:
    """What an older release writes into the home, word for word, is understood and obeyed (Law 7)."""

    def old_controller(*words: str) -> None:
        done = subprocess.run(
            [sys.executable, str(TESTS / "support" / "old_controller.py"), str(tmp_path / "home"), *words],
            env={**os.environ, "PYTHONPATH": str(release), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    rows = WindowRows(tmp_path)
    rows.feed()
    rows.feed()
    with Deployments(tmp_path) as stream:
        old_controller("deploy", str(tmp_path), *(f"{key}={value}" for key, value in CONF.items()))
        script = tmp_path / "scripts" / "d-0001" / "job.py"
        script.parent.mkdir(parents=True)
        script.write_text(SCRIPT)
        driver = stream.launch("d-0001")
        stream.wait_committed("counts", 1, driver)
        old_controller("snapshot")
        assert stream.wait_event(SnapshotReady, driver).snapshot_kind == "live"
        wait_until(lambda: files_read(stream.checkpoint_folder("counts")) >= 2, "two files read", 120)
        old_controller("drain")
        assert driver.exit_status() == 0, driver.log
        assert stream.wait_event(Drained, driver).queries["counts"].state_rows_left == 0
    assert rows.found() == rows.expected()
