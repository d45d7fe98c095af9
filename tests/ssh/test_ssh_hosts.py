"""Hosts that are away, hang, refuse us, are not who they were, or lack something; and what is reported then."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import InvalidRequestError, StreamStateError, UnavailableError
from airflow_streamstate.launch.interface import LaunchRequest
from airflow_streamstate.launch.ssh import SshLauncher
from airflow_streamstate.launch.ssh_connection import SshOptions, connected
from support.launches import COUNT_START, starts, wait_for_end, wait_until
from support.ssh_stage import ssh_request
from support.sshd import SMALL_MEGABYTES, Sshd

RUNS_ON = COUNT_START + "sleep 300"


@pytest.fixture
def launcher() -> SshLauncher:
    return SshLauncher(SYSTEM_CLOCK)


def refused(act: Callable[[], object], kind: type[StreamStateError] = InvalidRequestError) -> str:
    """The words of the error, which has a next step."""
    with pytest.raises(kind) as caught:
        act()
    assert caught.value.next_step
    return str(caught.value)


def test_a_host_whose_key_is_not_known_is_refused(server: Sshd, tmp_path: Path, launcher: SshLauncher) -> None:
    """No key is taken on trust, and the message states how it is compared and added."""
    nothing = tmp_path / "known"
    nothing.touch()
    request = ssh_request(server, tmp_path, RUNS_ON, {"known_hosts": str(nothing)})
    for act in (launcher.check, launcher.launch, launcher.spark_version):
        words = refused(lambda act=act: act(request))
        assert words.startswith("the SSH key of this host is not known here")
        assert f"ssh-keyscan -p {server.port} 127.0.0.1" in words
        assert "SHA256:" in words
    refused(lambda: launcher.find(request.place), UnavailableError)
    assert nothing.read_text() == ""
    assert not (tmp_path / "there").exists()


def test_a_host_whose_key_has_changed_is_refused(server: Sshd, tmp_path: Path, launcher: SshLauncher) -> None:
    """A driver there is unknown, never gone, until the key is accepted by a person."""
    request = ssh_request(server, tmp_path, RUNS_ON)
    handle = launcher.launch(request)
    server.stop()
    server.new_host_key()
    server.start()
    try:
        words = refused(lambda: SshLauncher(SYSTEM_CLOCK).check(request))
        assert words.startswith("the SSH key of this host is another one than before")
        assert f"ssh-keygen -R '[127.0.0.1]:{server.port}' -f {server.known_hosts}" in words
        status = launcher.status(handle)
        assert (status.state, status.reported_end) == ("unknown", False)
        assert "another one than before" in status.reason
        assert launcher.kill(handle, 0.0).state == "unknown"
    finally:
        server.trust()
    assert launcher.status(handle).state == "running"
    assert launcher.kill(handle, 0.0).has_ended


def test_a_login_that_is_refused_is_told(server: Sshd, tmp_path: Path, launcher: SshLauncher) -> None:
    """A wrong key and a key that is not there are distinguished; a password is never asked for."""
    wrong = tmp_path / "wrong"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(wrong)], check=True, timeout=60)
    words = refused(lambda: launcher.check(ssh_request(server, tmp_path, RUNS_ON, {"key_file": str(wrong)})))
    assert words.startswith("the host refuses this SSH login")
    locked = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(locked)], check=True, timeout=60)
    words = refused(lambda: launcher.check(ssh_request(server, tmp_path, RUNS_ON, {"key_file": str(locked)})))
    assert "ssh-add" in words
    words = refused(lambda: launcher.check(ssh_request(server, tmp_path, RUNS_ON, {"key_file": str(tmp_path / "no")})))
    assert words.startswith("the key file is not there")


def test_a_host_that_is_away_says_nothing_about_its_drivers(
    server: Sshd, tmp_path: Path, launcher: SshLauncher
) -> None:
    """Unknown while it is away, and right again afterwards; nothing is started or ended in the meantime (1a.8)."""
    request = ssh_request(server, tmp_path, RUNS_ON)
    handle = launcher.launch(request)
    wait_until(lambda: starts(tmp_path) == 1, "the driver's first line")
    with server.away():
        status = launcher.status(handle)
        assert (status.state, "cannot be reached" in status.reason) == ("unknown", True)
        assert launcher.kill(handle, 0.0).state == "unknown"
        for act in (launcher.launch, launcher.check, lambda r: launcher.find(r.place)):
            assert refused(lambda act=act: act(request), UnavailableError).startswith("the host cannot be reached")
    assert launcher.status(handle).state == "running"
    assert launcher.launch(request) == handle
    assert launcher.kill(handle, 0.0).has_ended
    assert starts(tmp_path) == 1


@pytest.mark.timeout(120)
def test_a_host_that_hangs_does_not_hang_its_caller(server: Sshd, tmp_path: Path, launcher: SshLauncher) -> None:
    """On the connection that there is, and on a new one: the caller gets ``unknown``, and later the truth."""
    request = ssh_request(server, tmp_path, RUNS_ON)
    handle = launcher.launch(request)
    with server.hanging():
        for asking in (launcher, SshLauncher(SYSTEM_CLOCK)):
            status = asking.status(handle)
            assert (status.state, "no answer in time" in status.reason) == ("unknown", True), status
    assert launcher.status(handle).state == "running"


def test_a_python_that_is_not_there_is_told(server: Sshd, tmp_path: Path, launcher: SshLauncher) -> None:
    """With what the host has answered, and the option that fixes it."""
    request = ssh_request(server, tmp_path, RUNS_ON, {"python": "/opt/nosuch/python3"})
    words = refused(lambda: launcher.check(request))
    assert words.startswith("the Python of that host could not be started")
    assert "/opt/nosuch/python3" in words
    assert "by the option python" in words


def test_a_python_that_is_too_old_is_told(server: Sshd, tmp_path: Path, launcher: SshLauncher) -> None:
    """By its version, before any of our code runs on it."""
    old = tmp_path / "python3.8"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -I -c "import sys; sys.version_info = (3, 8, 10); $3"\n')
    old.chmod(0o755)
    words = refused(lambda: launcher.check(ssh_request(server, tmp_path, RUNS_ON, {"python": str(old)})))
    assert words.startswith("the Python of that host is too old")
    assert "3.8.10" in words


def test_a_host_without_spark_is_told(server: Sshd, tmp_path: Path, launcher: SshLauncher) -> None:
    """``check`` reports it, with the name of the host; also for a SPARK_HOME in which there is no Spark."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True, timeout=120)
    request = ssh_request(server, tmp_path, RUNS_ON, {"python": str(bare / "bin" / "python")}, spark_submit=None)
    words = refused(lambda: launcher.check(request))
    assert words.startswith("there is no spark-submit on this machine")
    assert "host=" in words
    request = ssh_request(server, tmp_path, RUNS_ON, {"spark_home": "/opt/nosuch"}, spark_submit=None)
    assert "SPARK_HOME=/opt/nosuch" in refused(lambda: launcher.check(request))


def test_a_work_dir_that_cannot_be_written_is_told(server: Sshd, tmp_path: Path, launcher: SshLauncher) -> None:
    """Before anything is started."""
    (tmp_path / "file").touch()
    request = ssh_request(server, tmp_path, RUNS_ON, {"work_dir": str(tmp_path / "file" / "below")})
    for act in (launcher.check, launcher.launch):
        words = refused(lambda act=act: act(request))
        assert words.startswith("the folder for launches on that host cannot be written")
        assert "work_dir" in words


def test_a_disk_without_room_is_told(server: Sshd, tmp_path: Path, launcher: SshLauncher) -> None:
    """By ``check``; a launch that runs out of room has started nothing, and its key can be launched later."""
    if server.small is None:
        pytest.skip("only root can make a small disk")
    jar = tmp_path / "big.jar"
    jar.write_bytes(b"\0" * (SMALL_MEGABYTES << 20))
    request = ssh_request(server, tmp_path, RUNS_ON, {"work_dir": str(server.small / "w")}, jars=(str(jar),))
    words = refused(lambda: launcher.check(request), UnavailableError)
    assert words.startswith("the disk of that host has no room")
    words = refused(lambda: launcher.launch(request), UnavailableError)
    assert words.startswith("the disk did not take the files of a launch")
    assert launcher.find(request.place) is None
    jar.write_bytes(b"small")
    handle = launcher.launch(request)
    assert launcher.kill(handle, 0.0).has_ended


def test_a_working_folder_that_is_not_there_is_refused(server: Sshd, tmp_path: Path, launcher: SshLauncher) -> None:
    """It is a promise of the deployment; without one, drivers run in the folder of their launch."""
    body = COUNT_START + "pwd"
    request = ssh_request(server, tmp_path, body, working_folder=str(tmp_path / "nosuch"))
    for act in (launcher.check, launcher.launch):
        words = refused(lambda act=act: act(request))
        assert words.startswith("the folder that the drivers of this deployment run in is not on that host")
    assert launcher.find(request.place) is None
    (tmp_path / "runs here").mkdir()
    handle = launcher.launch(replace(request, working_folder=str(tmp_path / "runs here")))
    assert wait_for_end(launcher, handle).exit_code == 0
    assert launcher.logs(handle, 1000) == f"{tmp_path}/runs here\n"
    other = replace(request, launch_key="d-0001-a0002", working_folder=None)
    handle = launcher.launch(other)
    wait_for_end(launcher, handle)
    assert launcher.logs(handle, 1000) == f"{handle.data['remote_folder']}\n"


def test_what_a_login_prints_does_not_matter(server: Sshd, tmp_path: Path, launcher: SshLauncher) -> None:
    """A start-up file of the host's shell may print what it likes, on both outputs."""
    noise = server.base.parent / "home" / ".bashrc"
    noise.write_text("echo Welcome; printf '{\"answer\": 1}\\n\\036streamstate {\\n'; echo trouble >&2\n")
    try:
        handle = launcher.launch(ssh_request(server, tmp_path, COUNT_START + "exit 9"))
        assert wait_for_end(launcher, handle).exit_code == 9
        words = refused(lambda: launcher.check(ssh_request(server, tmp_path, RUNS_ON, {"python": "nosuchpython"})))
        assert "nosuchpython" in words
    finally:
        noise.unlink()


def test_the_configuration_of_ssh_is_used(
    server: Sshd, tmp_path: Path, launcher: SshLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ``Host`` of ``~/.ssh/config`` gives address, port, user, key, known hosts and the host to jump over."""
    folder = tmp_path / "caller" / ".ssh"
    folder.mkdir(parents=True, mode=0o700)
    of_server = "\n".join(
        [
            f"Port {server.port}",
            f"User {server.options['user']}",
            f"IdentityFile {server.options['key_file']}",
            f"UserKnownHostsFile {server.known_hosts}",
        ]
    )
    hosts = f"Host edge\nHostName 127.0.0.1\n{of_server}\nHost inner\nHostName 127.0.0.1\nProxyJump edge\n{of_server}\n"
    (folder / "config").write_text(hosts)
    monkeypatch.setenv("HOME", str(tmp_path / "caller"))
    request = ssh_request(server, tmp_path, COUNT_START + "exit 3")
    kept = {name: request.options[name] for name in ("python", "work_dir")}
    for host, key in (("edge", "d-0001-a0001"), ("inner", "d-0001-a0002")):
        handle = launcher.launch(replace(request, launch_key=key, options={**kept, "host": host}))
        assert wait_for_end(launcher, handle).exit_code == 3
        assert handle.data["host"] == host


def test_an_airflow_connection_names_the_host(server: Sshd, tmp_path: Path) -> None:
    """Its client is used; outside of Airflow the handle's address serves, and a new launch names what is missing."""
    asked = []

    def connect(conn_id: str) -> object:
        asked.append(conn_id)
        return connected(SshOptions.from_options(server.options))

    launcher = SshLauncher(SYSTEM_CLOCK, connect)
    request = ssh_request(server, tmp_path, RUNS_ON)
    kept = {name: request.options[name] for name in ("python", "work_dir", "key_file", "known_hosts")}
    request = replace(request, conn_id="edge", options=kept)
    handle = launcher.launch(request)
    assert launcher.status(handle).state == "running"
    assert launcher.find(request.place) == handle
    assert asked == ["edge"]
    assert (handle.data["conn_id"], handle.data["host"], handle.data["port"]) == ("edge", "127.0.0.1", server.port)
    outside = SshLauncher(SYSTEM_CLOCK)
    told = outside.status(handle)
    assert (told.state, "only Airflow can look up" in told.reason) == ("unknown", True)
    assert "only Airflow can look up" in refused(lambda: outside.launch(request))
    assert outside.kill(handle, 0.0).state == "unknown"
    assert launcher.kill(handle, 0.0).has_ended


def test_a_request_without_a_host_is_refused(launcher: SshLauncher, tmp_path: Path) -> None:
    """With the option that names it."""
    request = LaunchRequest(
        launch_key="d-0001-a0001",
        application=str(tmp_path / "job.py"),
        master="local[1]",
        folder=str(tmp_path),
        log_path=str(tmp_path / "log"),
        launcher="ssh",
    )
    assert "--launcher-option host=NAME" in refused(lambda: launcher.check(request))
