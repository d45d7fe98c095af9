"""Records of launches that somebody else wrote: they lead nowhere, end nothing, and hide no other stream.

The stream is the simulated one; whoever reads it has the real launchers.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.alerts.alert_watch import AlertWatch
from airflow_streamstate.allowed import Allowed
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.logs import FileLog
from airflow_streamstate.controller.observe.views import StreamStatus
from airflow_streamstate.controller.wait.watching import is_page
from airflow_streamstate.errors import ConflictError, DataError, InvalidRequestError, StreamStateError
from airflow_streamstate.launch.folder import MOST_BYTES, LaunchFolder
from airflow_streamstate.launch.launchers import Launchers
from airflow_streamstate.page.content import Asked, log_part
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import to_bytes
from airflow_streamstate.protocol.ids import launch_key_for, scratch_id_for
from airflow_streamstate.protocol.scratch import Rehearsal, ScratchRun
from airflow_streamstate.protocol.terms.order import RehearsalTerms
from airflow_streamstate.protocol.terms.version import LauncherChoice
from support.recorded_specs import with_version
from support.sim_stage import STREAM, Stage

SECRET = "fernet-key-of-the-api-server"
KEY = launch_key_for("d-0001", 1)


class Attacked:
    """A deployed stream, whoever reads it with real launchers, and a file of that reader."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        stage.deploy()
        self.secret = stage.folder / "secret"
        self.secret.write_text(f"{SECRET}\n")
        self.marker = stage.folder / "ran"
        self.reader = Controller(stage.home, Launchers(stage.clock), stage.clock, "reader")

    @property
    def folder(self) -> Path:
        """The folder of the driver."""
        return self.stage.home.launch_path(layout.launch_folder(STREAM, "d-0001", KEY))

    def make_folder(self, path: Path | None = None) -> Path:
        """A folder as a launch leaves it."""
        folder = LaunchFolder(path or self.folder)
        folder.prepare({"launch_key": KEY})
        (folder.path / "driver.json").write_text(json.dumps({"launch_key": KEY}))
        (folder.path / "driver.log").write_text("a line of the driver\n")
        return folder.path

    def forge(self, **fields: Any) -> None:
        """Write another record of the launch over the controller's."""
        record = self.stage.control.launch("d-0001", KEY)
        assert record is not None
        key = layout.launch_record_key(STREAM, "d-0001", KEY)
        stored = self.stage.store.get(key)
        assert stored is not None
        self.stage.store.replace(key, to_bytes(replace(record, **fields)), stored.version)

    def everything_said(self) -> str:
        """What every reader of the stream reports of it."""
        status = self.reader.observed(STREAM)[1]
        said = [str(status), str(self.reader.statuses())]
        try:
            said.append(self.reader.logs(STREAM))
        except StreamStateError as error:
            said.append(str(error))
        try:
            said.append(str(log_part(self.reader, Asked("x", STREAM))))  # the page's log tab
        except StreamStateError as error:
            said.append(str(error))
        lines: list[str] = []
        AlertWatch(self.reader, "tests", lambda change: lines.append(change.line)).look()
        self.reader.watcher(lambda line: lines.append(str(line))).tick()
        return "\n".join((*said, *lines))


@pytest.fixture
def attacked(stage: Stage) -> Attacked:
    return Attacked(stage)


def _elsewhere(attacked: Attacked) -> dict[str, object]:
    """A folder that is as it should be, but for its place."""
    other = attacked.make_folder(attacked.stage.folder / "elsewhere")
    (other / "driver.log").write_text(f"{SECRET}\n")
    (other / "exit_status").write_text("0\n")
    return {"folder": str(other), "log_path": str(other / "driver.log"), "launch_key": KEY}


def _exec_plugin(attacked: Attacked) -> dict[str, object]:
    plugin = attacked.stage.folder / "plugin.sh"
    plugin.write_text(f"#!/bin/sh\ntouch {attacked.marker}\n")
    plugin.chmod(0o755)
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
    config = attacked.stage.folder / "kubeconfig"
    cluster = {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": True}
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "x",
                "clusters": [{"name": "x", "cluster": cluster}],
                "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
                "users": [{"name": "x", "user": {"exec": command}}],
            }
        )
    )
    return {"kubeconfig": str(config), "namespace": "default", "pod": "x", "uid": "x", "context": "x"}


FORGED: dict[str, Callable[[Attacked], dict[str, Any]]] = {
    "log_path": lambda attacked: {"data": {"log_path": str(attacked.secret), "folder": str(attacked.folder)}},
    "log_path alone": lambda attacked: {"data": {"log_path": str(attacked.secret)}},
    "folder": lambda attacked: {"data": _elsewhere(attacked)},
    "kubeconfig": lambda attacked: {"launcher": "kubernetes", "data": _exec_plugin(attacked)},
    "conn_id": lambda _: {"launcher": "ssh", "data": {"conn_id": "ssh_prod", "options": {}, "driver": {}}},
    "resource manager": lambda _: {
        "launcher": "yarn",
        "data": {"resource_managers": ["http://127.0.0.1:1"], "application_id": "application_1_0001"},
    },
    "unknown launcher": lambda _: {"launcher": "../../evil", "data": {"folder": "/"}},
    "odd types": lambda _: {"data": {"folder": 1, "log_path": ["x"], "pid": "2", "launch_key": None}},
    "zero byte": lambda _: {"data": {"folder": "/tmp/\0", "log_path": "/tmp/\0"}},
    "rehearsal": lambda _: {"rehearsal_id": "../../../../etc"},
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_forged_record_is_unknown_and_leads_nowhere(
    attacked: Attacked, forged: Callable[[Attacked], dict[str, Any]]
) -> None:
    """No file of its reader is shown, no command of it runs, nothing is ended, and it reports why."""
    attacked.make_folder()
    attacked.forge(**forged(attacked))
    seen, status = attacked.reader.observed(STREAM)
    if seen is None:
        assert status.state == "unreadable"  # what no controller writes is not even decoded
    else:
        assert seen.launch_status is not None
        assert (seen.launch_status.state, bool(seen.launch_status.reason)) == ("unknown", True)
    assert SECRET not in attacked.everything_said()
    assert not attacked.marker.exists()
    with pytest.raises(ConflictError if seen is not None else DataError):
        attacked.reader.kill(STREAM)
    with pytest.raises(ConflictError if seen is not None else DataError):
        attacked.reader.resume(STREAM)
    register = attacked.stage.control.need_register().value
    assert (register.deployment_id, register.attempt) == ("d-0001", 1)
    assert attacked.stage.control.claim("d-0001", 1) is None


def test_the_record_of_another_streams_launch_is_no_record_of_this_one(attacked: Attacked) -> None:
    """A copy of a valid record in another place is not read."""
    attacked.forge(stream_id="another")
    seen, status = attacked.reader.observed(STREAM)
    assert (seen, status.state) == (None, "unreadable")


def test_a_forged_record_hides_no_other_stream(attacked: Attacked) -> None:
    """List, alerts and watcher continue to the next one."""
    request = attacked.stage.request(stream_id="zebras")
    attacked.stage.controller.deploy(request)
    attacked.forge(data={"folder": 1})
    states = {status.stream_id: status.state for status in attacked.reader.statuses()}
    assert set(states) == {STREAM, "zebras"}


def _link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def _log_link(attacked: Attacked) -> None:
    (attacked.folder / "driver.log").unlink()
    _link(attacked.folder / "driver.log", attacked.secret)


def _log_pipe(attacked: Attacked) -> None:
    (attacked.folder / "driver.log").unlink()
    os.mkfifo(attacked.folder / "driver.log")


def _folder_link(attacked: Attacked) -> None:
    other = attacked.make_folder(attacked.stage.folder / "elsewhere")
    (other / "driver.log").write_text(f"{SECRET}\n")
    attacked.folder.rename(attacked.stage.folder / "aside")
    _link(attacked.folder, other)


def _parent_link(attacked: Attacked) -> None:
    deployments = attacked.folder.parent.parent.parent
    (attacked.folder / "driver.log").write_text(f"{SECRET}\n")
    deployments.rename(attacked.stage.folder / "aside")
    _link(deployments, attacked.stage.folder / "aside")


def _foreign_log(attacked: Attacked) -> None:
    (attacked.folder / "driver.log").write_text(f"{SECRET}\n")
    _of_another(attacked.folder / "driver.log")


def _foreign_folder(attacked: Attacked) -> None:
    (attacked.folder / "driver.log").write_text(f"{SECRET}\n")
    _of_another(attacked.folder)


def _of_another(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(path, 12345, 12345)


@pytest.mark.parametrize("spoil", [_log_link, _log_pipe, _folder_link, _parent_link, _foreign_log, _foreign_folder])
def test_nothing_but_a_regular_file_of_this_user_is_read_as_a_log(
    attacked: Attacked, spoil: Callable[[Attacked], None]
) -> None:
    """A link, a pipe, which would hang its reader, and another user's file are refused."""
    attacked.make_folder()
    attacked.forge(data={"folder": str(attacked.folder), "log_path": str(attacked.folder / "driver.log")})
    assert "a line of the driver" in attacked.reader.logs(STREAM)
    spoil(attacked)
    assert SECRET not in attacked.everything_said()
    with pytest.raises(DataError, match="not what its driver made"):
        attacked.reader.logs(STREAM)


def test_a_folder_without_the_intent_of_its_launch_is_unknown(attacked: Attacked) -> None:
    """Whatever else is there: an exit status in it proves no end."""
    attacked.make_folder()
    attacked.forge(data={"folder": str(attacked.folder)})
    (attacked.folder / "exit_status").write_text("0\n")
    assert attacked.reader.observed(STREAM)[0].launch_status.state == "exited"  # type: ignore[union-attr]
    (attacked.folder / "intent.json").write_text(json.dumps({"launch_key": "d-0001-a0002"}))
    seen = attacked.reader.observed(STREAM)[0]
    assert seen is not None
    assert seen.launch_status is not None
    assert (seen.launch_status.state, "not made for" in seen.launch_status.reason) == ("unknown", True)


def test_a_log_without_end_is_read_up_to_a_limit(tmp_path: Path) -> None:
    """Of a long log its end, at the first read and at each later one."""
    path = tmp_path / "driver.log"
    with path.open("wb") as file:
        file.truncate(10 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast\n")
    log = FileLog(path, 1 << 40)
    assert len(log.read()) <= MOST_BYTES
    with path.open("ab") as file:
        file.truncate((10 << 30) + (1 << 30))
        file.seek(0, os.SEEK_END)
        file.write(b"\nnewer\n")
    body = log.read()
    assert len(body) <= MOST_BYTES
    assert body.endswith(b"newer\n")


def test_a_forged_rehearsal_copies_no_file_into_the_home(attacked: Attacked) -> None:
    """A rehearsal that was never launched, with a record that names a file of the watcher, gets a verdict without."""
    stage, control = attacked.stage, attacked.stage.control
    rehearsal_id = scratch_id_for("forged", 1)
    now = stage.clock.now()
    spec = replace(control.spec("d-0001"), deployment_id=rehearsal_id)
    control.create_spec(spec)
    key = launch_key_for(rehearsal_id, 1)
    other = LaunchFolder(stage.folder / "elsewhere")
    other.prepare({"launch_key": key})
    (other.path / "exit_status").write_text("1\n")
    (other.path / "driver.json").write_text(json.dumps({"launch_key": key}))
    (other.path / "driver.log").write_text(f"{SECRET}\n")
    record = control.launch("d-0001", KEY)
    assert record is not None
    control.create_launch(
        replace(
            record,
            deployment_id=rehearsal_id,
            launch_key=key,
            launcher="local",
            data={"folder": str(other.path), "log_path": str(other.path / "driver.log"), "launch_key": key},
        )
    )
    control.cells.create(
        layout.scratch_run_key(STREAM, rehearsal_id),
        ScratchRun(
            stream_id=STREAM,
            run_id=rehearsal_id,
            deployment_id="d-0001",
            request_id="forged",
            request_digest="0" * 64,
            what=Rehearsal(RehearsalTerms(rehearse=False)),
            deadline_at=now + timedelta(seconds=100),
            created_at=now,
            requested_by="driver",
            write_id=stage.clock.new_uuid(),
        ),
    )
    attacked.reader.plans.sweep(STREAM)
    stage.clock.advance(1000)
    attacked.reader.plans.sweep(STREAM)
    verdict = control.verdict(rehearsal_id)
    assert verdict is not None
    assert SECRET not in str(verdict)
    assert not [info.key for info in stage.store.list_objects("") if SECRET.encode() in stage.store.get(info.key).body]  # type: ignore[union-attr]


@pytest.mark.parametrize("part", ["deployments", "deployments/d-0001"])
def test_nothing_is_removed_through_a_symbolic_link(attacked: Attacked, part: str) -> None:
    """What it leads to may be anybody's."""
    other = attacked.stage.folder / "others"
    kept = other / str(attacked.folder.relative_to(attacked.stage.folder / STREAM / part)) / "kept"
    kept.parent.mkdir(parents=True)
    kept.write_text("kept")
    place = attacked.stage.folder / STREAM / part
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(other)
    home = attacked.stage.home
    home.remove_launch(layout.launch_folder(STREAM, "d-0001", KEY))
    home.remove_launches(layout.deployment_folder(STREAM, "d-0001"))
    home.remove_stream(STREAM, but="")
    assert kept.read_text() == "kept"


@pytest.mark.parametrize(
    ("url", "is_shown"),
    [
        ("https://yarn.example:8088/proxy/application_1_0001/", True),
        ("http://10.0.0.7:4040", True),
        ("javascript:alert(1)", False),
        ("data:text/html,x", False),
        ("file:///etc/passwd", False),
        ("https://user:password@evil.example/", False),
        ("https:///nowhere", False),
        ("http://[", False),
        ("https://evil.example\\@good.example/", False),
        ("https://x.example/\n", False),
        (f"https://x.example/{'x' * 3000}", False),
        (None, False),
    ],
)
def test_only_a_page_is_linked_to(url: object, is_shown: bool) -> None:
    """Whatever a launcher gives."""
    assert is_page(url) == is_shown


@pytest.mark.parametrize("spoil", ["mode", "owner", "link"])
def test_a_launch_refuses_a_folder_that_somebody_else_may_have_filled(attacked: Attacked, spoil: str) -> None:
    """Its files would be read by the driver as its own."""
    folder = attacked.make_folder()
    if spoil == "mode":
        folder.chmod(0o777)
    elif spoil == "owner":
        _of_another(folder)
    else:
        folder.rename(attacked.stage.folder / "aside")
        _link(folder, attacked.stage.folder / "aside")
    with pytest.raises(InvalidRequestError, match="not this user's alone"):
        LaunchFolder(folder, attacked.stage.home.work_dir).prepare({"launch_key": KEY})


def test_a_place_that_is_not_allowed_is_refused_at_deploy_and_unknown_afterwards(stage: Stage) -> None:
    """With the line that would allow it; the same record is asked where it is allowed."""
    stage.deploy(launcher=LauncherChoice("yarn", {"queue": "streams"}))
    asked = stage.seen().launch_status
    assert asked is not None
    assert asked.state == "running"
    closed = Home.of(stage.store, stage.store, stage.folder, stage.clock)
    reader = Controller(closed, stage.launcher, stage.clock, "reader")
    seen = reader.observed(STREAM)[0]
    assert seen is not None
    assert seen.launch_status is not None
    assert seen.launch_status.state == "unknown"
    assert '{"launcher": "yarn"}' in seen.launch_status.reason
    with pytest.raises(InvalidRequestError, match=r'add \{"launcher": "yarn"\} to .launchers.'):
        reader.deploy(stage.request(stream_id="another", launcher=LauncherChoice("yarn", {})))
    assert "another" not in reader.home.stream_ids()


def test_a_forged_spec_runs_nothing_on_the_machine_of_whoever_acts(stage: Stage) -> None:
    """The attack: a driver of a pod writes a spec without a launcher, which a watcher would run as its own process."""
    stage.deploy(launcher=LauncherChoice("kubernetes", {}))
    stage.stopped()
    stage.store.put(layout.spec_key(STREAM, "d-0001"), to_bytes(with_version(stage.spec(), launcher=None)))
    pods = Allowed.parse({"launchers": [{"launcher": "kubernetes"}]}, "here")
    home = Home.of(stage.store, stage.store, stage.folder, stage.clock, allowed=pods)
    reader = Controller(home, stage.launcher, stage.clock, "reader")
    launched = dict(stage.launcher.requests)
    for act in (
        lambda: reader.resume(STREAM),
        lambda: reader.deploy(stage.request("print(2)\n")),
        lambda: reader.order("drain", STREAM),
    ):
        with pytest.raises(InvalidRequestError, match=r'add \{"launcher": "local"\} to .launchers. in here'):
            act()
    assert stage.launcher.requests == launched
    seen = reader.observed(STREAM)[0]
    assert seen is not None
    assert seen.handle is not None
    assert "local" in seen.handle.refused


@pytest.mark.parametrize("name", ["spark.files", "spark.jars", "spark.submit.pyFiles"])
def test_a_forged_spec_sends_no_file_of_the_controller_to_its_driver(stage: Stage, name: str) -> None:
    """The attack: a driver of a pod has its successor given the private key of the watcher's user."""
    stage.deploy(launcher=LauncherChoice("kubernetes", {}))
    stage.stopped()
    kept = stage.folder / "jars" / "kept.jar"
    kept.parent.mkdir()
    kept.write_bytes(b"")
    honest = stage.spec()
    pods = Allowed.parse({"launchers": [{"launcher": "kubernetes"}], "files": [str(kept.parent)]}, "here")

    def resumed(value: object) -> StreamStatus:
        stage.store.put(layout.spec_key(STREAM, "d-0001"), to_bytes(with_version(honest, conf={name: str(value)})))
        home = Home.of(stage.store, stage.store, stage.folder, stage.clock, allowed=pods)
        return Controller(home, stage.launcher, stage.clock, "reader").resume(STREAM)

    (kept.parent / "link").symlink_to(stage.folder)
    secret = stage.folder / "id_rsa"
    secret.write_text("key")
    folder = kept.parent
    for value in (secret, f"{kept},{secret}#x", f"{folder}/../id_rsa", folder / "link" / "id_rsa", f"{folder}/../id_*"):
        with pytest.raises(InvalidRequestError, match="may not be sent to drivers of this home"):
            resumed(value)
    assert resumed(f"s3://x/y.jar,{kept}").attempt == 2
