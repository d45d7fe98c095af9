"""What a deploy would refuse, by the line of the file: without a home, and without a second set of checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.declarations.diff import checked
from airflow_streamstate.declarations.reader import read_streams
from airflow_streamstate.errors import InvalidRequestError


def said(folder: Path, text: str, script: str = "x = 1\n") -> list[str]:
    """What is wrong with a file, without its path."""
    (folder / "job.py").write_text(script)
    path = folder / "flights.yaml"
    path.write_text(text)
    return [str(one).removeprefix(str(path)) for one in checked(read_streams([path])).problems]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("py_files: [nope.zip]\n", ":3: py_files.0: "),
        ("files:\n- job.py\n- nope.csv\n", ":5: files.1: "),
        ("snapshots:\n  every_seconds: 0\n", ":4: snapshots.every_seconds: "),
        ("environment:\n  A: b\n  DB_PASSWORD: hunter2\n", ":5: environment.DB_PASSWORD: these look like secrets"),
        ("conf: {spark.hadoop.fs.s3a.secret.key: abc}\n", ":3: conf.spark.hadoop.fs.s3a.secret.key: these look like"),
        ("arguments:\n- --password\n- hunter2\n", ":4: arguments.0: these look like secrets"),
        ("environment: {X: env://}\n", ":3: environment.X: "),
        ("launcher:\n  name: yarn\n  options: {queue: 2026-02-30}\n", ":5: launcher.options.queue: this looks like"),
        ("working_folder: here\n", ":3: working_folder: the working folder must be an absolute path (here); give the"),
        (
            "state: {state_store: rocksdb}\nconf: {spark.sql.streaming.stateStore.providerClass: x}\n",
            ":3: state.state_store: ",
        ),
    ],
)
def test_what_a_deploy_would_refuse_has_its_line(tmp_path: Path, more: str, problem: str) -> None:
    """The field is the one without which it would not be refused."""
    (found,) = said(tmp_path, f"id: flights\napplication: job.py\n{more}")
    assert found.startswith(problem)
    assert "hunter2" not in found
    assert "allow" not in found


def test_the_application_is_looked_at(tmp_path: Path) -> None:
    """One that is not there, is a folder or no Python; a syntax error has its place in the script."""
    assert said(tmp_path, "id: flights\napplication: nope.py\n")[0].startswith(":2: application: ")
    assert said(tmp_path, "id: flights\napplication: .\n")[0].startswith(":2: application: ")
    wrong = said(tmp_path, "id: flights\napplication: job.py\n", "x = 1\nx = = 2\n")
    assert wrong == [
        f":2: application: the script has a syntax error ({tmp_path}/job.py:2 invalid syntax); fix the script."
    ]
    elsewhere = "id: flights\napplication: job.py\nlauncher: {name: yarn}\n"
    assert said(tmp_path, elsewhere, "x = = 2\n") == []  # its Python may be another one


def test_every_refusal_of_a_file_is_told(tmp_path: Path) -> None:
    """Each once, those of one kind too; a file without any is a stream."""
    text = "id: flights\napplication: job.py\nenvironment:\n  A_PASSWORD: x1\n  B_TOKEN: x2\npy_files: nope.zip\n"
    assert [one.split(": ")[:2] for one in said(tmp_path, text)] == [
        [":4", "environment.A_PASSWORD"],
        [":5", "environment.B_TOKEN"],
        [":6", "py_files"],
    ]
    path = tmp_path / "flights.yaml"
    path.write_text("id: flights\napplication: job.py\n")
    assert [one.stream_id for one in checked(read_streams([path])).streams] == ["flights"]


def test_problems_name_their_files_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever found them, and however the folder was named."""
    streams = tmp_path / "streams"
    streams.mkdir()
    (streams / "a.yaml").write_text("id: a\napplication: nope.py\n")
    (streams / "b.yaml").write_text("id: b\napplication: nope.py\nretention: {keep: -1}\n")
    (streams / "c.yaml").write_text("id: c\napplication: nope.py\ndepends_on: d\n")
    monkeypatch.chdir(tmp_path)
    for named in (Path("streams"), streams):
        places = [str(one).split(": ")[0] for one in checked(read_streams([named])).problems]
        assert places == ["streams/a.yaml:2", "streams/b.yaml:3", "streams/c.yaml"]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ("py_files: [../lib.zip]\n", "py_files.0"),
        ("py_files: [package]\n", "py_files.0"),
        ("files: [/etc/passwd]\n", "files.0"),
        ("files: [~/x]\n", "files.0"),
        ("jars: [link.jar]\n", "jars.0"),
        ("jars: ['file:///etc/passwd']\n", "jars.0"),
        ("working_folder: /\n", "working_folder"),
        ("modules: [linked.py]\n", "modules.0"),
        ("modules: ['l*.py']\n", "modules.0"),
        ("launcher:\n  name: yarn\n  options: {python_env: /etc/passwd}\n", "launcher.options.python_env"),
    ],
)
def test_no_path_leaves_the_root_of_the_caller(tmp_path: Path, more: str, field: str) -> None:
    """By its name, by ``..``, by a link, or as part of a folder or glob."""
    root = tmp_path / "root"
    (root / "package").mkdir(parents=True)
    (tmp_path / "beyond.py").write_text("x = 1\n")
    for link in ("link.jar", "linked.py", "package/inner.py"):
        (root / link).symlink_to(tmp_path / "beyond.py")
    (root / "job.py").write_text("print('v1')\n")
    path = root / "flights.yaml"
    path.write_text(f"id: flights\napplication: job.py\n{more}")
    (found,) = checked(read_streams([path], root)).problems
    assert found.where == field
    assert found.reason.startswith("this path leaves the root of these files (")


def test_a_script_that_is_or_imports_a_link_out_of_the_root_is_refused(tmp_path: Path) -> None:
    """Also a file of a stream that is such a link; what is below the root is taken."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "beyond.py").write_text("x = 1\n")
    (root / "beyond.py").symlink_to(tmp_path / "beyond.py")
    (root / "job.py").write_text("import beyond\n")
    path = root / "flights.yaml"
    for application in ("beyond.py", "../beyond.py", "job.py"):
        path.write_text(f"id: flights\napplication: {application}\n")
        (found,) = checked(read_streams([path], root)).problems
        assert "this path leaves the root of these files" in found.reason
    assert checked(read_streams([path], tmp_path)).problems == ()
    assert checked(read_streams([path])).problems == ()
    (tmp_path / "other.yaml").write_text("id: other\napplication: job.py\n")
    (root / "other.yaml").symlink_to(tmp_path / "other.yaml")
    (found,) = read_streams([root / "other.yaml"], root).problems
    assert "this file is not below the root" in found.reason


@pytest.mark.parametrize("name", ["not-there", "x" * 300, "a\0b", "job.py"])
def test_a_root_that_is_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    """Also a name that no folder can have."""
    (tmp_path / "job.py").write_text("print('v1')\n")
    with pytest.raises(InvalidRequestError, match="the root of these files is no folder"):
        read_streams([tmp_path], tmp_path / name)


def test_a_file_has_no_say_in_its_root(tmp_path: Path) -> None:
    """Its author is the one whom the root limits."""
    assert "there is no such field" in said(tmp_path, "id: flights\napplication: job.py\nroot: /\n")[0]
