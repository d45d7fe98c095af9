"""Paths that a version names."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.controller.request.scripts import notes_on_paths


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A folder of scripts, two working folders, and the current folder."""
    found = {name: tmp_path / name for name in ("jobs", "first", "second", "here")}
    for folder in found.values():
        folder.mkdir()
    monkeypatch.chdir(found["here"])
    return found


def notes(folders: dict[str, Path], text: str, *arguments: str, now: str = "here", before: str = "") -> list[str]:
    script = folders["jobs"] / "job.py"
    script.write_text(text)
    was = str(folders[before]) if before else ""
    return list(notes_on_paths(script, (), arguments, str(folders[now]), was))


def test_data_of_the_scripts_own_folder_is_named(folders: dict[str, Path]) -> None:
    """Where the code asks for its own place; not its modules, and not what is not there."""
    (folders["jobs"] / "settings.json").write_text("{}")
    (folders["jobs"] / "lookup").mkdir()
    code = "p = Path(__file__).parent\na = p / 'settings.json'\nb = p / 'lookup'\nc = p / 'gone.csv'\nd = 'job.py'\n"
    (note,) = notes(folders, code)
    assert note.startswith("the script names lookup, settings.json in its own folder ")
    assert notes(folders, code.replace("__file__", "'.'")) == []


def test_a_path_that_moved_with_the_working_folder_is_named(folders: dict[str, Path]) -> None:
    """A text of the code, or an argument, also behind its name."""
    (folders["first"] / "in").mkdir()
    (folders["second"] / "table.csv").write_text("")
    (note,) = notes(folders, "x = 'in'\n", "--table=table.csv", now="second", before="first")
    assert "in, table.csv means another path now" in note
    assert str(folders["first"]) in note
    assert str(folders["second"]) in note


def test_a_path_of_the_current_folder_alone_is_named(folders: dict[str, Path]) -> None:
    """What the caller sees and the driver will not."""
    (folders["here"] / "in").mkdir()
    (note,) = notes(folders, "x = 'in'\ny = '.'\nz = '../jobs'\nw = 'http://in'\n", now="first", before="first")
    assert note.startswith("in is there in the current folder")
    assert "--working-folder" in note
    assert notes(folders, "x = 'in'\n", now="here", before="here") == []
