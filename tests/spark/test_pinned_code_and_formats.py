"""Laws 10 and 15 on real Spark: what a deployment runs is pinned, and an unknown format is refused untouched."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.drivers import CONF, WINDOWED_COUNTS
from support.shell import Desk, desk_with, shell
from support.window_rows import WindowRows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.usefixtures("quick_jvm")]

QUICK = tuple(word for key, value in CONF.items() for word in ("--conf", f"{key}={value}"))
JOB = (
    WINDOWED_COUNTS
    + """
loader = spark._jvm.Thread.currentThread().getContextClassLoader()
if loader.getResource("rates.txt") is None:
    raise SystemExit("rates.jar is not on the class path")
counts.writeStream.queryName("counts").format("json").start(base + "/out").awaitTermination()
"""
)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A home that the environment names, with a stream ``orders`` that has been stopped after a batch."""
    with desk_with(tmp_path, monkeypatch, ("PYSPARK_", "SPARK_", "STREAMSTATE_")) as made:
        app, jar = made.base / "job.py", made.base / "rates.jar"
        app.write_text(JOB)
        with zipfile.ZipFile(jar, "w") as archive:
            archive.writestr("rates.txt", "1.1")
        WindowRows(made.base).feed()
        deploy = ("deploy", "orders", "--app", app, "--jars", jar, "--master", "local[2]", *QUICK, "--timeout", 200)
        assert shell(*deploy, "--", made.base).status == 0
        assert shell("stop", "orders", "--timeout", 120).status == 0
        yield made


def digests(folder: Path) -> dict[str, str]:
    """The sha256 of every file below a folder, by path."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_resume_and_a_drain_run_the_bytes_of_the_deploy(desk: Desk) -> None:
    """The original of the script was broken since, and its jar removed: the resume, and the drain of what has
    ended, never read them; a pinned file that was altered is refused, and never run (Law 15)."""
    rows = WindowRows(desk.base)
    (desk.base / "rates.jar").unlink()
    (desk.base / "job.py").write_text("raise SystemExit('these bytes were never deployed')\n")
    rows.feed()
    resumed = shell("resume", "orders", "--timeout", 200, "--json")
    assert (resumed.status, resumed.json["attempt"]) == (0, 2), resumed
    assert shell("stop", "orders", "--timeout", 120).status == 0

    files = (path for path in (desk.home / "orders" / "artifacts").rglob("*") if path.is_file())
    (pinned,) = (path for path in files if path.read_bytes() == JOB.encode())
    pinned.chmod(0o644)
    pinned.write_text(JOB + "\nraise SystemExit('altered')\n")
    refused = shell("resume", "orders", "--timeout", 200, "--json")
    assert refused.status != 0
    assert refused.error["message"] == "a pinned file is missing or altered", refused.error

    pinned.write_text(JOB)
    assert shell("drain", "orders", "--timeout", 200).status == 0
    assert rows.found() == rows.expected()


@pytest.mark.parametrize("log", ["offsets", pytest.param("commits", marks=pytest.mark.named)])
def test_a_checkpoint_of_a_version_to_come_is_refused_and_stays_as_it_is(desk: Desk, log: str) -> None:
    """A later Spark wrote the newest entry: neither a resume nor a deploy starts over it, by name, and no file of the
    checkpoint has changed (Law 10)."""
    (folder,) = (path for path in desk.home.rglob(log) if "checkpoints" in path.parts and "snapshots" not in path.parts)
    newest = max((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    body = newest.read_bytes()
    newest.unlink()  # a snapshot may have a hard link to it
    newest.write_bytes(b"v9" + body[body.index(b"\n") :])
    (folder / f".{newest.name}.crc").unlink(missing_ok=True)
    before = digests(folder.parent)

    refused = shell("resume", "orders", "--timeout", 200, "--json")
    assert refused.status != 0
    error = refused.error["context"]["error"]
    assert "is in a version that is not known here" in error, error
    assert f"{log}/{newest.name} version=v9" in error, error
    assert digests(folder.parent) == before
