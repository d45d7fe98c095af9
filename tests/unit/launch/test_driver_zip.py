"""The zip that travels to the driver."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch import driver_zip
from airflow_streamstate.launch.driver_zip import RUNNER, TRAVELLING, build_driver_zip, write_runner


def test_equal_packages_make_equal_bytes(tmp_path: Path) -> None:
    """Two zips of one package are the same file, and the digest shows which."""
    first = build_driver_zip(tmp_path / "a.zip")
    assert build_driver_zip(tmp_path / "b.zip") == first
    body = (tmp_path / "a.zip").read_bytes()
    assert body == (tmp_path / "b.zip").read_bytes()
    assert hashlib.sha256(body).hexdigest() == first


def test_only_the_travelling_rooms_travel(tmp_path: Path) -> None:
    """What runs in the driver is in it; launchers, controllers and Airflow are not."""
    build_driver_zip(tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        entries = archive.namelist()
    assert entries == sorted(entries)
    names = [name for name in entries if not name.endswith("/")]
    assert "airflow_streamstate/__init__.py" in names
    assert {"airflow_streamstate/errors.py", "airflow_streamstate/protocol/codec.py"} <= set(names)
    metadata = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    assert {name.split("/")[1] for name in metadata} == {"METADATA", "entry_points.txt"}
    rooms = {name.split("/")[1].removesuffix(".py") for name in set(names) - metadata} - {"__init__"}
    assert rooms <= set(TRAVELLING)
    assert all(name.endswith(".py") for name in set(names) - metadata)


def test_the_zip_works_without_the_package(tmp_path: Path) -> None:
    """A python that has only the zip can import what is in it."""
    build_driver_zip(tmp_path / "a.zip")
    code = "import airflow_streamstate.protocol.codec as c; print(c.__file__)"
    printed = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "a.zip")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    ).stdout
    assert printed.startswith(str(tmp_path / "a.zip"))


def test_the_runner_runs_main_only_as_the_main_script(tmp_path: Path) -> None:
    """Imported once more, as multiprocessing does, the runner does nothing; run, it exits as main returns."""
    write_runner(tmp_path / "runner.py")
    room = tmp_path / "airflow_streamstate" / "driver"
    room.mkdir(parents=True)
    (room.parent / "__init__.py").write_text("")
    (room / "__init__.py").write_text("")
    (room / "main.py").write_text("import sys\ndef main():\n    print(sys.argv[1:])\n    return 9\n")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-S", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=50)

    ran = run("runner.py", "--", "driver.json")
    assert (ran.returncode, ran.stdout) == (9, "['--', 'driver.json']\n")
    assert (run("-c", "import runner").returncode, run("-c", "import runner").stdout) == (0, "")
    compile(RUNNER, "runner.py", "exec")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """Where no file can be, the error reports which path."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequestError, match="cannot be used") as caught:
        build_driver_zip(tmp_path / "file" / "a.zip")
    assert caught.value.context["path"] == str(tmp_path / "file" / "a.zip")


def test_every_travelling_room_exists() -> None:
    """A room that is renamed is not left behind in silence."""
    package = Path(driver_zip.__file__).parents[1]
    assert [
        room for room in TRAVELLING if not (package / room).is_dir() and not (package / f"{room}.py").is_file()
    ] == []
