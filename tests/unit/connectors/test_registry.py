"""Connectors are found by entry points, ours and others', here and in a driver that has only the runtime zip."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tomllib

from airflow_streamstate.connectors.registry import SINKS, SOURCES, find_connectors
from airflow_streamstate.connectors.source import SourceConnector
from airflow_streamstate.launch.driver_zip import build_driver_zip

ROOT = Path(__file__).resolve().parents[3]
THEIRS = """
from airflow_streamstate.connectors.plain import RateSource

class Pulsar(RateSource):
    name = "pulsar"

def broken():
    raise RuntimeError("no such cluster")
"""
LOOK = """
import json
from airflow_streamstate.connectors.registry import SOURCES, find_connectors
from airflow_streamstate.connectors.source import SourceConnector
import airflow_streamstate
found = find_connectors(SOURCES, SourceConnector)
print(json.dumps([[a.name for a in found.connectors], list(found.problems), airflow_streamstate.__file__]))
"""


class HalfAnConnector:
    name = "half"

    def identify(self, source: object) -> None:
        return None


def point(value: str, name: str = "x") -> importlib.metadata.EntryPoint:
    return importlib.metadata.EntryPoint(name, value, SOURCES)


def test_ours_are_installed() -> None:
    """What pyproject.toml declares can be loaded and is what it claims; nothing of ours has a problem."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        declared = tomllib.load(file)["project"]["entry-points"]
    for group in (SOURCES, SINKS):
        installed = {
            p.name: p.value
            for p in importlib.metadata.distribution("airflow-streamstate").entry_points.select(group=group)
        }
        assert installed == declared.get(group, {}), "install the package again: pip install --no-deps -e ."
    found = find_connectors(SOURCES, SourceConnector)
    assert found.problems == ()
    assert "rate" in [connector.name for connector in found.connectors]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("no_such_module_anywhere:X", "ModuleNotFoundError"),
        ("airflow_streamstate.connectors.plain:NoSuchClass", "AttributeError"),
        ("json:loads", "TypeError"),
        (f"{__name__}:HalfAnConnector", "it lacks compare"),
        ("builtins:dict", "it lacks compare"),
    ],
)
def test_a_broken_connector_is_one_sentence(monkeypatch: pytest.MonkeyPatch, value: str, said: str) -> None:
    """Each problem of a foreign connector is reported, and the others are there."""
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())
    found = find_connectors(
        SOURCES, SourceConnector, [point(value), point("airflow_streamstate.connectors.plain:RateSource", "rate")]
    )
    assert [connector.name for connector in found.connectors] == ["rate"]
    assert len(found.problems) == 1
    assert found.problems[0].startswith(f"the source connector x ({value}) cannot be used: ")
    assert said in found.problems[0]
    assert "\n" not in found.problems[0]


def _this_module() -> object:
    import types

    module = types.ModuleType(__name__)
    module.__dict__["HalfAnConnector"] = HalfAnConnector
    return module


def install(folder: Path, name: str, entry_points: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_bytes(entry_points)
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()


@pytest.mark.parametrize("text", [f"[{SOURCES}]\nthis line is no pair\n".encode(), b"\xff\xfe[a]\nb=c\n"])
def test_a_package_that_cannot_be_read_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    """A broken installation of anything at all, with no connector in it, would else end every start of every query."""
    install(tmp_path, "spoilt", text, monkeypatch)
    found = find_connectors(SOURCES, SourceConnector)
    assert {"file", "kafka", "rate", "table"} <= {connector.name for connector in found.connectors}
    (problem,) = found.problems
    assert problem.startswith(f"the entry points of a package in {tmp_path} cannot be read: ")
    assert "\n" not in problem


def test_only_the_first_package_of_a_name_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an import has it: another release further back on the path is not the one whose modules are loaded."""
    for folder, value in (("old", "no_such_module:X"), ("new", "airflow_streamstate.connectors.plain:RateSource")):
        install(tmp_path / folder, "theirs", f"[{SOURCES}]\nx = {value}\n".encode(), monkeypatch)
    assert find_connectors(SOURCES, SourceConnector).problems == ()


def test_a_release_without_connectors_hides_those_of_another_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The modules of the first release are loaded, which has none of them."""
    install(tmp_path / "old", "theirs", f"[{SOURCES}]\nx = no_such_module:X\n".encode(), monkeypatch)
    install(tmp_path / "new", "theirs", b"[console_scripts]\nx = json.tool:main\n", monkeypatch)
    assert find_connectors(SOURCES, SourceConnector).problems == ()


def test_others_are_asked_before_ours_and_each_once() -> None:
    """A foreign connector can know a source better; a package that is on the path twice is one package."""
    ours = point("airflow_streamstate.connectors.plain:RateSource", "a")
    theirs = point("collections:OrderedDict", "z")
    found = find_connectors(SOURCES, object, [ours, theirs, ours])
    assert [type(connector).__name__ for connector in found.connectors] == ["OrderedDict", "RateSource"]


def test_a_driver_finds_ours_and_the_users(tmp_path: Path) -> None:
    """A python that has only the runtime zip and a zip of the user's finds both, and reports what is broken."""
    build_driver_zip(tmp_path / "runtime.zip")
    with zipfile.ZipFile(tmp_path / "theirs.zip", "w") as archive:
        archive.writestr("their_connectors.py", THEIRS)
        archive.writestr("theirs-2.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: theirs\nVersion: 2.0\n")
        archive.writestr(
            "theirs-2.0.dist-info/entry_points.txt",
            f"[{SOURCES}]\npulsar = their_connectors:Pulsar\nbad = their_connectors:broken\n",
        )
    path = os.pathsep.join((str(tmp_path / "runtime.zip"), str(tmp_path / "theirs.zip")))
    printed = subprocess.run(
        [sys.executable, "-S", "-c", LOOK],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    ).stdout
    names, problems, place = json.loads(printed)
    assert names[0] == "pulsar"
    assert "rate" in names[1:]
    assert problems == [
        "the source connector bad (their_connectors:broken) cannot be used: RuntimeError: no such cluster",
    ]
    assert place.startswith(str(tmp_path / "runtime.zip"))
