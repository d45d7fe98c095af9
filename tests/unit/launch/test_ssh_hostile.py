"""The SSH launcher against a host that drips, never ends, or answers with odd values."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import paramiko
import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import InvalidRequestError, StreamStateError, UnavailableError, UntrustedRecordError
from airflow_streamstate.launch import ssh as ssh
from airflow_streamstate.launch.interface import LaunchHandle, LaunchPlace
from airflow_streamstate.launch.ssh import SshLauncher
from airflow_streamstate.launch.ssh_bootstrap import MARK
from airflow_streamstate.launch.ssh_remote import folder_of

pytestmark = pytest.mark.fast

KEY = "d-0001-a0001"
Act = Callable[[paramiko.Channel], None]


def word(**said: object) -> bytes:
    """As the program on a host reports it."""
    return f"\n{MARK}{json.dumps(said)}\n".encode()


def answering(**said: object) -> Act:
    """Answers with this at once."""
    return lambda channel: channel.sendall(word(need="request") + word(**said))


def beating(channel: paramiko.Channel) -> None:
    """Is at work for ever."""
    while True:
        channel.sendall(word(beat=True))
        threading.Event().wait(0.05)


def dripping(channel: paramiko.Channel) -> None:
    """Sends a byte now and then."""
    while True:
        channel.sendall(b"x")
        threading.Event().wait(0.05)


def endless(channel: paramiko.Channel) -> None:
    """Sends a line without an end."""
    while True:
        channel.sendall(b"x" * (1 << 15))


def complaining(channel: paramiko.Channel) -> None:
    """Writes to its stderr for ever."""
    while True:
        channel.sendall_stderr(b"x" * (1 << 15))


class Server(paramiko.ServerInterface):
    """Lets anybody in, and runs the same for every command."""

    def __init__(self, act: Act) -> None:
        self._act = act

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        def run() -> None:
            with suppress(OSError, EOFError):
                self._act(channel)

        threading.Thread(target=run, daemon=True).start()
        return True


@contextmanager
def host(folder: Path, act: Act) -> Iterator[dict[str, object]]:
    """The options of a host that does this."""
    host_key, own_key = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
    own_key.write_private_key_file(str(folder / "key"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        line = f"[127.0.0.1]:{port} {host_key.get_name()} {host_key.get_base64()}\n"
        (folder / "known_hosts").write_text(line)
        transports = []

        def serve() -> None:
            with suppress(OSError):
                while True:
                    transport = paramiko.Transport(listening.accept()[0])
                    transport.add_server_key(host_key)
                    transport.start_server(server=Server(act))
                    transports.append(transport)

        threading.Thread(target=serve, daemon=True).start()
        yield {
            "host": "127.0.0.1",
            "port": port,
            "user": "spark",
            "key_file": str(folder / "key"),
            "known_hosts": str(folder / "known_hosts"),
        }
        for transport in transports:
            transport.close()


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> SshLauncher:
    """One whose conversations may take a second."""
    monkeypatch.setattr(ssh, "_SECONDS", dict.fromkeys(ssh._SECONDS, 1.0))
    return SshLauncher(SYSTEM_CLOCK)


def handle(options: dict[str, object], /, **data: object) -> LaunchHandle:
    return LaunchHandle("ssh", KEY, {"options": options, "conn_id": "", "scope": "h/s", **data})


@pytest.mark.parametrize("act", [beating, dripping, endless, complaining])
def test_a_host_that_never_comes_to_an_end_is_unknown(launcher: SshLauncher, tmp_path: Path, act: Act) -> None:
    """However much it prints: the time and the size of a conversation are limited."""
    with host(tmp_path, act) as options:
        assert launcher.status(handle(options)).state == "unknown"
        assert not launcher.kill(handle(options), 0.0).has_ended
        with pytest.raises(UnavailableError):
            launcher.logs(handle(options), 1000)
        with pytest.raises(UnavailableError):
            launcher.find(LaunchPlace(launcher="ssh", launch_key=KEY, folder="/x", options=options))


@pytest.mark.parametrize(
    "said",
    [
        {"answer": None},
        {"answer": [1]},
        {"answer": "exited"},
        {"answer": {"state": "over", "exit_code": 0}},
        {"answer": {"state": "exited", "exit_code": [], "reason": {}, "observed_at": 3}},
        {"error": 3},
        {"error": {"type": "__class__", "message": ["a"], "context": ["b"], "next_step": {}}},
        {"error": {"type": "StreamStateError", "context": {"self": 1, "not a name": 2, "host": "other"}}},
        {"crashed": ["a\nb" * 5000]},
    ],
    ids=str,
)
def test_odd_answers_leave_the_driver_unknown(launcher: SshLauncher, tmp_path: Path, said: dict[str, object]) -> None:
    """And what people see of them is one line."""
    with host(tmp_path, answering(**said)) as options:
        for status in (launcher.status(handle(options)), launcher.kill(handle(options), 0.0)):
            assert status.state == "unknown"
            assert len(status.reason.splitlines()) == 1
            assert len(status.reason) < 1000
        with suppress(StreamStateError):
            assert launcher.logs(handle(options), 5) in ("", "xited")
            launcher.forget(handle(options))


def test_a_host_is_told_a_place_and_never_a_folder(launcher: SshLauncher, tmp_path: Path) -> None:
    """Whatever a handle reports of folders and processes: the host finds them by scope and key."""
    asked: list[bytes] = []

    def listen(channel: paramiko.Channel) -> None:
        channel.sendall(word(need="request"))
        body = b""
        while b'"verb"' not in body:
            body += channel.recv(1 << 16)
        asked.append(body[body.rindex(b"\n{") :] if b"\n{" in body else body)
        channel.sendall(word(answer=None))

    forged = {"remote_folder": "/etc/forged", "driver": {"folder": "/etc/forged", "launch_key": KEY, "pid": 1}}
    with host(tmp_path, listen) as options:
        for act in (launcher.status, lambda one: launcher.kill(one, 0.0), launcher.forget):
            act(handle(options, **forged))
    assert len(asked) == 3
    assert b"forged" not in b"".join(asked)


@pytest.mark.parametrize("key", ["", "..", "../../etc", "a/b", "/etc", "a\0b", "." * 3])
def test_a_key_names_no_other_folder(key: str) -> None:
    """Not even one above that of launches."""
    with pytest.raises(InvalidRequestError, match="no key of a launch"):
        folder_of("/work", LaunchPlace(scope="h/s", launch_key=key, folder="/x"))


def test_a_forged_record_is_refused(launcher: SshLauncher) -> None:
    """Whatever decides whom it reaches: no connection is opened."""
    options = {"host": "edge.example", "user": "spark"}
    place = LaunchPlace(launcher="ssh", scope="h/s", launch_key=KEY, folder="/x", options=options)
    right = launcher.handle_at(place, handle(options))
    assert launcher.handle_at(place, right) == right
    forged: list[dict[str, object]] = [
        {"host": "evil.example"},
        {"port": 2222},
        {"user": "root"},
        {"options": {**options, "host": "evil.example"}},
        {"options": {**options, "key_file": "/root/.ssh/id"}},
        {"options": {**options, "known_hosts": "/tmp/mine"}},
        {"options": {**options, "work_dir": "/etc"}},
        {"options": 3},
        {"conn_id": "ssh_admin"},
        {"scope": "h/other"},
        {"remote_folder": "/etc"},
    ]
    for data in forged:
        with pytest.raises(UntrustedRecordError):
            launcher.handle_at(place, handle(options, **data))
