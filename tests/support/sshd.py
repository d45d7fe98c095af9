"""A real OpenSSH server on loopback for the current user, with keys of its own; nothing of the system is touched.

Debian's package is unpacked into the user's cache where no ``sshd`` is installed. As root, ``sshd`` wants a user and a
folder for its unprivileged part: it gets them in its own mount namespace.
"""

from __future__ import annotations

import getpass
import os
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from support.debian import find_or_unpack
from support.go_program import cache_folder
from support.launches import wait_until
from support.loopback import free_port

PACKAGES = ("openssh-server", "libwrap0")
TOOLS = ("ssh", "ssh-keygen", "unshare", "mount")
SESSIONS = 2
"""How many sessions it allows on one connection."""
SMALL_MEGABYTES = 8
_SECONDS = 120


def missing() -> str:
    """Why there can be no server on this machine; "" if there can."""
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if lacking:
        return f"no {lacking[0]} on this machine"
    if sshd_program() is None:
        return "no sshd on this machine, and no Debian package of it"
    if (
        os.geteuid() == 0
        and subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode
    ):
        return "sshd needs a mount namespace of its own as root, which is not allowed here"
    return ""


def sshd_program() -> Path | None:
    """The installed ``sshd``, else the unpacked one; None if there is neither."""
    installed = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    return Path(installed) if installed is not None else find_or_unpack("usr/sbin/sshd", *PACKAGES)


class Sshd:
    """One server; ``options`` are those of the SSH launcher that reach it.

    Args:
        base: an empty folder for its keys and its log.
        home: what ``~`` is for a login.

    Attributes:
        small: a folder that is a disk of SMALL_MEGABYTES for those who log in; None if that cannot be had.
    """

    def __init__(self, base: Path, home: Path) -> None:
        self.base = base
        self.port = free_port()
        self.known_hosts = base / "known_hosts"
        self.log = base / "sshd.log"
        self.small = base / "small" if os.geteuid() == 0 else None
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None
        base.mkdir(parents=True)
        if self.small is not None:
            self.small.mkdir()
        _key(base / "user_key")
        (base / "authorized").write_text((base / "user_key.pub").read_text())
        self.new_host_key()
        self.trust()

    @property
    def options(self) -> dict[str, object]:
        return {
            "host": "127.0.0.1",
            "port": self.port,
            "user": getpass.getuser(),
            "key_file": str(self.base / "user_key"),
            "known_hosts": str(self.known_hosts),
        }

    def new_host_key(self) -> None:
        """Another host key, from the next start on."""
        for path in self.base.glob("host_key*"):
            path.unlink()
        _key(self.base / "host_key")

    def trust(self) -> None:
        """Make today's host key the known one."""
        kind, key = (self.base / "host_key.pub").read_text().split()[:2]
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {kind} {key}\n")

    def start(self) -> None:
        program = sshd_program()
        assert program is not None
        config = self._config(program)
        command = [str(program), "-D", "-E", str(self.log), "-f", str(config)]
        environ = dict(os.environ)
        if program.is_relative_to(cache_folder()):
            environ["LD_LIBRARY_PATH"] = ":".join(map(str, program.parents[2].glob("**/*-linux-gnu*")))
        if os.geteuid() == 0:
            command = ["unshare", "--mount", "sh", "-ec", f"{self._own_view()}\nexec {shlex.join(command)}"]
        self._process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, start_new_session=True)
        wait_until(self._answers, lambda: f"sshd: {self.log.read_text() if self.log.exists() else 'no log'}")

    def stop(self) -> None:
        """End the server and its connections; what was started by them, and left them, lives on."""
        if self._process is None:
            return
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
                process.kill()
        self._process.wait(30)
        self._process = None

    @contextmanager
    def away(self) -> Iterator[None]:
        """Within this block it refuses connections, and those that it had are cut."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Within this block it takes connections and answers nothing."""
        held = self._processes()
        for process in held:
            process.suspend()
        try:
            yield
        finally:
            for process in held:
                with suppress(psutil.NoSuchProcess):
                    process.resume()

    def _processes(self) -> list[psutil.Process]:
        assert self._process is not None
        listener = psutil.Process(self._process.pid)
        return [listener, *(child for child in listener.children(recursive=True) if child.name().startswith("sshd"))]

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text() if self.log.exists() else "sshd has ended"
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            return connection.recv(4) == b"SSH-"
        return False

    def _config(self, program: Path) -> Path:
        lines = [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.base / 'host_key'}",
            f"AuthorizedKeysFile {self.base / 'authorized'}",
            f"PidFile {self.base / 'pid'}",
            "StrictModes no",  # folders of tests may be anybody's
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            f"SetEnv HOME={self._home}",
            f"MaxSessions {SESSIONS}",
            "LogLevel VERBOSE",
        ]
        session = program.parents[1] / "lib" / "openssh" / "sshd-session"
        if session.is_file():  # since OpenSSH 9.8 a separate program
            lines.append(f"SshdSessionPath {session}")
            if (session.parent / "sshd-auth").is_file():
                lines.append(f"SshdAuthPath {session.parent / 'sshd-auth'}")
        path = self.base / "sshd_config"
        path.write_text("\n".join(lines) + "\n")
        return path

    def _own_view(self) -> str:
        """Shell lines that give only this server a user, an unlocked login and a folder."""
        users = Path("/etc/passwd").read_text()
        if "\nsshd:" not in users:
            users += "sshd:x:74:65534::/run/sshd:/usr/sbin/nologin\n"
        (self.base / "passwd").write_text(users)
        (self.base / "shadow").write_text(f"{pwd.getpwuid(os.geteuid()).pw_name}:*:19000:0:99999:7:::\n")
        binds = [f"mount --bind {shlex.quote(str(self.base / name))} /etc/{name}" for name in ("passwd", "shadow")]
        if not Path("/etc/shadow").exists():
            binds.pop()
        small = f"mount -t tmpfs -o size={SMALL_MEGABYTES}m tmpfs {shlex.quote(str(self.small))}"
        return "\n".join([*binds, small, "mount -t tmpfs tmpfs /run", "mkdir -m 755 /run/sshd"])


def _key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, timeout=_SECONDS)


@contextmanager
def running_sshd(base: Path, home: Path) -> Iterator[Sshd]:
    """A server that has ended afterwards."""
    server = Sshd(base, home)
    try:
        server.start()
        yield server
    finally:
        server.stop()
