"""The shell's list of what is allowed: kept by home, for its owner alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from airflow_streamstate.allowed import Allowed
from airflow_streamstate.cli.naming import AllowedFile, allow_change, allow_here, allow_request
from airflow_streamstate.cli.session import ShellSession
from airflow_streamstate.controller.request.requests import change_request, deploy_request
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.terms.version import LauncherChoice

NAMED = Allowed(secrets=("env://PG_PASSWORD",))


def script(folder: Path) -> Path:
    path = folder / "job.py"
    path.write_text("print(1)\n")
    return path


def test_what_is_named_is_kept_for_its_home_alone(tmp_path: Path) -> None:
    """Two homes have two lists; the file is its owner's alone, and a second time adds nothing."""
    file = AllowedFile.of({"XDG_CONFIG_HOME": str(tmp_path)})
    assert file.add("s3://bucket/streams/", NAMED)
    assert not file.add("s3://bucket/streams", NAMED)
    assert file.path == tmp_path / "streamstate" / "allowed.json"
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert file.read("s3://bucket/streams") == NAMED
    assert file.read("s3://bucket/other") == Allowed()
    assert file.add("s3://bucket/other", Allowed(spark_connections=("s",)))
    assert file.read("s3://bucket/streams") == NAMED


def test_a_folder_has_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home in a folder is the same however it is named."""
    monkeypatch.chdir(tmp_path)
    file = AllowedFile(tmp_path / "allowed.json")
    file.add("home", NAMED)
    assert file.read(str(tmp_path / "home")) == file.read(f"file://{tmp_path}/home") == NAMED


@pytest.mark.parametrize("spoil", ["mode", "json", "form", "list", "long", "fifo", "folder"])
def test_a_file_that_others_may_have_written_is_refused(tmp_path: Path, spoil: str) -> None:
    """Nothing is allowed by a list that is not surely its owner's."""
    path = tmp_path / "allowed.json"
    bodies = {"json": "{", "form": "[]", "list": json.dumps({"homes": {str(tmp_path): []}}), "long": " " * (1 << 21)}
    if spoil == "fifo":
        os.mkfifo(path, 0o600)
    elif spoil == "folder":
        path.mkdir()
    else:
        path.write_text(bodies.get(spoil, "{}"))
        path.chmod(0o666 if spoil == "mode" else 0o600)
    with pytest.raises(InvalidRequestError):
        AllowedFile(path).read(str(tmp_path))


def test_a_session_reads_it_and_adds_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A command allows what it names, reports it once, and the next command reads it."""
    environ = {"STREAMSTATE_HOME": str(tmp_path / "home"), "STREAMSTATE_ALLOWED": str(tmp_path / "list.json")}
    session = ShellSession.of(environ, as_json=True)
    assert session.home().config.allowed == Allowed()
    session.allow(NAMED)
    assert session.home().config.allowed == NAMED
    assert "env://PG_PASSWORD" in capsys.readouterr().err
    later = ShellSession.of(environ, as_json=True)
    later.allow(NAMED)
    assert later.home().config.allowed == NAMED
    assert capsys.readouterr().err == ""


def test_a_deploy_here_keeps_this_machine_as_a_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So that a stream on this machine is still allowed once another one is deployed elsewhere."""
    environ = {"STREAMSTATE_HOME": str(tmp_path / "home"), "STREAMSTATE_ALLOWED": str(tmp_path / "list.json")}
    session = ShellSession.of(environ, as_json=True)
    allow_request(session, deploy_request("here", script(tmp_path)))
    assert capsys.readouterr().err == ""  # no more than an empty list allows
    elsewhere = LauncherChoice("yarn", {"queue": "q"})
    allow_request(session, deploy_request("there", script(tmp_path), launcher=elsewhere))
    kept = ShellSession.of(environ, as_json=True).home().config.allowed.launchers
    assert [place.launcher for place in kept] == ["local", "yarn"]


def test_this_machine_beside_another_place_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever deploys here opens this machine to the home, which until then named another place alone."""
    environ = {"STREAMSTATE_HOME": str(tmp_path / "home"), "STREAMSTATE_ALLOWED": str(tmp_path / "list.json")}
    session = ShellSession.of(environ, as_json=True)
    allow_request(session, deploy_request("there", script(tmp_path), launcher=LauncherChoice("yarn", {})))
    assert "yarn" in capsys.readouterr().err
    allow_request(session, deploy_request("here", script(tmp_path)))
    assert '{"launcher": "local"}' in capsys.readouterr().err


def test_a_change_keeps_no_place_that_it_does_not_name(tmp_path: Path) -> None:
    """Whoever writes records with a driver on this machine may be an attacker."""
    environ = {"STREAMSTATE_HOME": str(tmp_path / "home"), "STREAMSTATE_ALLOWED": str(tmp_path / "list.json")}
    session = ShellSession.of(environ, as_json=True)
    allow_change(session, change_request("orders", reason="x"))
    allow_here(session)  # a replay, or a reading of the state
    assert session.home().config.allowed.launchers[0].launcher == "local"
    assert ShellSession.of(environ, as_json=True).home().config.allowed == Allowed()


def test_a_file_that_a_command_names_is_allowed_to_be_sent(tmp_path: Path) -> None:
    """To a driver elsewhere; one on this machine reads it by itself."""
    environ = {"STREAMSTATE_HOME": str(tmp_path / "home"), "STREAMSTATE_ALLOWED": str(tmp_path / "list.json")}
    conf = {"spark.jars": f"s3://x/y.jar,{tmp_path}/a.jar", "spark.files": "local:///b.csv"}
    session = ShellSession.of(environ, as_json=True)
    allow_request(session, deploy_request("here", script(tmp_path), conf=conf))
    assert session.home().config.allowed.files == ()
    there = deploy_request("there", script(tmp_path), launcher=LauncherChoice("yarn", {}), conf=conf)
    allow_request(session, there)
    assert session.home().config.allowed.files == (f"{tmp_path}/a.jar",)
