"""SSH connections and the options of the launcher; the only module that imports paramiko."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shlex
import socket
import subprocess
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, TypeVar

import paramiko

from airflow_streamstate.errors import InvalidRequestError, StreamStateError, UnavailableError
from airflow_streamstate.launch.interface import Connect, option_text, read_options
from airflow_streamstate.launch.processes import ended_after
from airflow_streamstate.launch.rest import Until, shown
from airflow_streamstate.launch.ssh_bootstrap import MARK
from airflow_streamstate.protocol.redaction import is_secret_name

if TYPE_CHECKING:
    from typing_extensions import Self


# The options of the SSH launcher: which host, how it is reached, and what is used there. They hold no secret.

_HOST = re.compile(r"[A-Za-z0-9_:%\[\]][A-Za-z0-9._:%\[\]-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@\\$-]*")
_PYTHON = re.compile(r"/[^\s'\"\\]+|[A-Za-z0-9_][A-Za-z0-9._+-]*")
_WORK_DIR = re.compile(r"(?:/|~/)[^\s,#'\"\\]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class SshOptions:
    """How a host is reached, and what drivers find there.

    Attributes:
        host: its name, its address, or a ``Host`` of ``~/.ssh/config``; "" where an Airflow connection names it.
        port, user, key_file, known_hosts: 0 or "" for what ``~/.ssh/config`` sets, else SSH's defaults. The files
            are on the machine of the caller.
        python: the Python of the host, 3.11 or later, that starts drivers and runs their Python code.
        spark_home, java_home: folders of that host; "" for what the host itself sets.
        work_dir: a folder of that host for the files of launches.
        environment: variables that drivers get in addition to those of a login there.
    """

    host: str = ""
    port: int = 0
    user: str = ""
    key_file: str = ""
    known_hosts: str = ""
    python: str = "python3"
    spark_home: str = ""
    java_home: str = ""
    work_dir: str = "~/.streamstate"
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_options(cls, raw: Mapping[str, object]) -> Self:
        """The options of plain JSON, whose values may be texts of a command line.

        Raises:
            InvalidRequestError: a name or a value that they do not have.
        """
        given = read_options("ssh", raw, cls.names())
        values: dict[str, object] = {name: _text(name, value) for name, value in given.items() if name not in _OWN}
        values |= {name: read(given[name]) for name, read in _OWN.items() if name in given}
        options = cls(**values)  # type: ignore[arg-type]
        options._check()
        return options

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of all options."""
        return tuple(item.name for item in fields(cls))

    def to_json(self) -> dict[str, object]:
        """The options that are not at their defaults, as ``from_options`` takes them."""
        return {name: value for name, value in asdict(self).items() if value != _DEFAULTS[name]}

    def environ(self) -> dict[str, str]:
        """The variables that they set for drivers."""
        homes = {"SPARK_HOME": self.spark_home, "JAVA_HOME": self.java_home}
        return {**{name: value for name, value in homes.items() if value}, **self.environment}

    def _check(self) -> None:
        _need(
            not self.host or _HOST.fullmatch(self.host), "host", self.host, "a name or an address, without user or port"
        )
        _need(not self.user or _USER.fullmatch(self.user), "user", self.user, "a login name")
        _need(
            _PYTHON.fullmatch(self.python), "python", self.python, "a command such as python3.12, or an absolute path"
        )
        for name in ("spark_home", "java_home"):
            value = getattr(self, name)
            _need(not value or value.startswith("/"), name, value, "an absolute path on that host")
        _need(
            _WORK_DIR.fullmatch(self.work_dir) and ".." not in self.work_dir.split("/"),
            "work_dir",
            self.work_dir,
            "a folder of that host, absolute or below ~/, without blanks, commas and #",
        )


_DEFAULTS = asdict(SshOptions())


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise _wrong(name, "a text of one line")
    return value.strip()


def _port(value: object) -> int:
    text = str(value).strip()
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise _wrong("port", "a number from 1 to 65535")
    return int(text)


def _environment(value: object) -> dict[str, str]:
    shape = 'an object of texts, for example {"HADOOP_CONF_DIR": "/etc/hadoop/conf"}'
    if not isinstance(value, Mapping):
        raise _wrong("environment", shape)
    found: dict[str, str] = {}
    for name, given in value.items():
        text = option_text(given)
        if not _NAME.fullmatch(name) or not isinstance(text, str) or "\0" in text:
            raise _wrong("environment", shape)
        if is_secret_name(name):
            raise InvalidRequestError(
                "the options of a launcher are recorded in plain text, and this one looks like a secret",
                option="environment",
                variable=name,
                next_step="Give it to the deployment as a reference: `--env NAME=…`.",
            )
        found[name] = text
    return found


_OWN = {"port": _port, "environment": _environment}


def _need(is_so: object, name: str, value: object, what: str) -> None:
    if not is_so:
        raise _wrong(name, what, value)


def _wrong(name: str, what: str, value: object = None) -> InvalidRequestError:
    return InvalidRequestError(
        "this option of the SSH launcher has no such value",
        option=name,
        **({} if value is None else {"value": value}),
        next_step=f"Give {what}.",
    )


STEP_SECONDS = 5.0
"""For each step of a connection: address, greeting, login, channel."""
SILENCE_SECONDS = 10.0
"""For the next word of a program that sends one every two seconds."""
KEEPALIVE_SECONDS = 15
SSH_PORT = 22
_NOISE_BYTES = 4096
_CHUNK = 1 << 18
_ERROR_CHUNKS = 64
_LOG = "airflow_streamstate.launch.ssh"

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Host:
    """One host, and how it is reached from here.

    Attributes:
        conn_id: the Airflow connection that names it; "" where the options do.
    """

    options: SshOptions
    conn_id: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for those that one connection serves."""
        options = self.options
        return self.conn_id, options.host, options.port, options.user, options.key_file, options.known_hosts

    @property
    def words(self) -> str:
        """What people call it."""
        if self.conn_id and not self.options.host:
            return f"the host of the connection {self.conn_id}"
        return f"{self.options.user}@{self.options.host}" if self.options.user else self.options.host


class Conversation:
    """Words and bytes to a program on the host, and the words that come back.

    Args:
        channel: one on which the program was started.
        until: by when all of it must end, whatever the host sends.
        at_most: bytes of one word.
    """

    def __init__(self, channel: paramiko.Channel, until: Until, at_most: int) -> None:
        self._channel = channel
        self._until = until
        self._at_most = at_most
        self._buffer = b""
        self._noise = b""

    def send(self, body: bytes) -> None:
        """Send this, unless the program has ended: its last answer can be read then.

        Raises:
            TimeoutError: the host takes nothing.
        """
        rest = memoryview(body)
        try:
            while rest:
                self._channel.settimeout(self._until.left(SILENCE_SECONDS))
                rest = rest[self._channel.send(rest) or len(rest) :]  # nothing: the program has ended
        except TimeoutError:
            raise
        except OSError:  # the program has ended, or the connection is gone: reading shows which
            return

    def send_word(self, **word: object) -> None:
        self.send(json.dumps(word).encode() + b"\n")

    def send_file(self, file: IO[bytes], size: int) -> None:
        """Send exactly that many bytes of it.

        Raises:
            UnavailableError: it has become shorter.
        """
        while size:
            chunk = file.read(min(size, _CHUNK))
            if not chunk:
                raise UnavailableError("a file of the driver was changed while it was sent", path=str(file.name))
            self.send(chunk)
            size -= len(chunk)

    def next_word(self) -> dict[str, Any] | None:
        """The next word; None at the end of the program.

        Raises:
            UnavailableError: it comes too late, or is too long.
        """
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                word = _word(line)
                if word is not None:
                    return word
                self._noise = (self._noise + line + b"\n")[-_NOISE_BYTES:]
                continue
            if len(self._buffer) > self._at_most:
                raise UnavailableError("the answer of the host is too long", reason=f"over {self._at_most} bytes")
            self._channel.settimeout(self._until.left(SILENCE_SECONDS))
            body = self._channel.recv(_CHUNK)
            self._read_errors()
            if not body:
                return None
            self._buffer += body

    def end(self) -> tuple[int, str]:
        """Exit status of the program, -1 without one, and the last line that is not ours."""
        self._read_errors()
        has_ended = self._channel.status_event.wait(1.0)
        lines = (self._noise + self._buffer).decode("utf-8", "replace").strip().splitlines()
        return (self._channel.exit_status if has_ended else -1), (shown(lines[-1]) if lines else "")

    def _read_errors(self) -> None:
        for _ in range(_ERROR_CHUNKS):
            if not self._channel.recv_stderr_ready():
                return
            body = self._channel.recv_stderr(_CHUNK)
            if not body:
                return
            self._noise = (self._noise + body)[-_NOISE_BYTES:]


def _word(line: bytes) -> dict[str, Any] | None:
    """The word of this line; None where it is something else that the login has printed."""
    if not line.startswith(MARK.encode()):
        return None
    try:
        word = json.loads(line[len(MARK) :])
    except (ValueError, RecursionError):
        return None
    return word if isinstance(word, dict) else None


class Connections:
    """The connections of one launcher in this process."""

    def __init__(self, connect: Connect | None) -> None:
        self._connect = connect
        self._guard = threading.Lock()
        self._open: dict[tuple[object, ...], paramiko.SSHClient] = {}
        self._pid = os.getpid()
        weakref.finalize(self, _close_all, self._open, self._pid)

    def address(self, host: Host) -> tuple[str, int, str]:
        """Name or address, port and user, as far as they are known."""
        kept = self._kept(host)
        transport = None if kept is None else kept.get_transport()
        if transport is None or not host.conn_id:
            return host.options.host, host.options.port, host.options.user
        peer = transport.getpeername()
        return str(peer[0]), int(peer[1]), str(transport.get_username() or "")

    def converse(
        self, host: Host, command: str, talk: Callable[[Conversation], Answer], *, until: Until, at_most: int
    ) -> Answer:
        """Run the command on the host and talk to it.

        Args:
            until, at_most: as of ``Conversation``.

        Raises:
            InvalidRequestError: the host is not trusted, or refuses this login.
            UnavailableError: it does not answer, or the connection was lost.
        """
        with _translated(host), self._channel(host) as channel:
            try:
                with ended_after(SILENCE_SECONDS, channel.transport.close):  # paramiko waits without a limit
                    channel.exec_command(command)
                return talk(Conversation(channel, until, at_most))
            except (OSError, EOFError, paramiko.SSHException, UnavailableError):
                self._drop(host)
                raise

    @contextlib.contextmanager
    def _channel(self, host: Host) -> Iterator[paramiko.Channel]:
        """A channel of the connection that is kept, or else of a new one; raises paramiko's errors."""
        channel, of_its_own = self._opened(host)
        try:
            yield channel
        finally:
            # Without a limit, a connection that hangs would hang its closing, too.
            with ended_after(STEP_SECONDS, channel.transport.close):
                channel.close()
            if of_its_own is not None:
                of_its_own.close()

    def _opened(self, host: Host) -> tuple[paramiko.Channel, paramiko.SSHClient | None]:
        """A channel, and the connection that only it uses, if so."""
        kept = self._kept(host)
        if kept is not None:
            try:
                return _session(kept), None
            except (OSError, EOFError, paramiko.SSHException) as error:
                # Of several refusals at once, paramiko reports only one as such.
                hangs = "Timeout" in str(error)
                if _is_active(kept) and not hangs:
                    # It has as many sessions as the host allows, and they continue.
                    client = self._client(host)
                    return _session(client), client
                self._drop(host)
                if hangs:
                    raise
        return _session(self._keep(host, self._client(host))), None

    def _kept(self, host: Host) -> paramiko.SSHClient | None:
        with self._guard:
            if self._pid != os.getpid():  # a fork has no thread that reads them
                self._open, self._pid = {}, os.getpid()
                weakref.finalize(self, _close_all, self._open, self._pid)
            return self._open.get(host.key)

    def _keep(self, host: Host, client: paramiko.SSHClient) -> paramiko.SSHClient:
        with self._guard:
            kept = self._open.setdefault(host.key, client)
        if kept is not client:
            client.close()  # another thread was faster
        return kept

    def _client(self, host: Host) -> paramiko.SSHClient:
        if host.conn_id and self._connect is not None:
            client: paramiko.SSHClient = self._connect(host.conn_id)
        elif host.conn_id and not host.options.host:
            raise InvalidRequestError(
                "the host is named by an Airflow connection, which only Airflow can look up",
                conn_id=host.conn_id,
                next_step="Do it from Airflow, or name the host: `--launcher-option host=NAME`.",
            )
        else:
            client = connected(host.options)
        transport = client.get_transport()
        if transport is not None:
            transport.set_keepalive(KEEPALIVE_SECONDS)
        return client

    def _drop(self, host: Host) -> None:
        with self._guard:
            client = self._open.pop(host.key, None)
        if client is not None:
            client.close()


def _session(client: paramiko.SSHClient) -> paramiko.Channel:
    transport = client.get_transport()
    if transport is None:
        raise EOFError
    return transport.open_session(timeout=STEP_SECONDS)


def _is_active(client: paramiko.SSHClient) -> bool:
    transport = client.get_transport()
    return transport is not None and transport.is_active()


def _close_all(clients: dict[tuple[object, ...], paramiko.SSHClient], pid: int) -> None:
    if pid != os.getpid():
        return
    while clients:
        with contextlib.suppress(KeyError):
            clients.popitem()[1].close()


def connected(options: SshOptions) -> paramiko.SSHClient:
    """A new connection by the options, ``~/.ssh/config``, keys and agent of this user; raises paramiko's errors.

    Raises:
        InvalidRequestError: no host is named, a file is not there, or the host's key is not known.
    """
    if not options.host:
        raise InvalidRequestError(
            "the SSH launcher is given no host",
            next_step="Name it: `--launcher-option host=NAME`, or an Airflow connection.",
        )
    own = _of_user(options.host)
    name = str(own.get("hostname", options.host))
    port = options.port or int(str(own.get("port", SSH_PORT)))
    client = paramiko.SSHClient()
    _silence(client)
    for path in _known_hosts(options, own):
        client.load_system_host_keys(path)
    client.set_missing_host_key_policy(_Refusing(port))
    proxy = _proxy(own, name, port)
    try:
        client.connect(
            hostname=name,
            port=port,
            username=options.user or own.get("user"),
            key_filename=_key_files(options, own),
            timeout=STEP_SECONDS,
            banner_timeout=STEP_SECONDS,
            auth_timeout=STEP_SECONDS,
            channel_timeout=STEP_SECONDS,
            allow_agent=str(own.get("identitiesonly", "no")) != "yes",
            look_for_keys=not options.key_file,
            sock=proxy,
        )
    except BaseException:
        client.close()
        if proxy is not None:
            proxy.close()
        raise
    return client


def _config() -> Path:
    return Path("~/.ssh/config").expanduser()


def _of_user(host: str) -> dict[str, Any]:
    path = _config()
    try:
        return dict(paramiko.SSHConfig.from_path(str(path)).lookup(host))
    except FileNotFoundError:
        return {}
    except (OSError, paramiko.ConfigParseError) as error:
        raise InvalidRequestError(
            "the SSH configuration of this user cannot be read", path=str(path), reason=str(error)
        ) from None


def _known_hosts(options: SshOptions, own: dict[str, Any]) -> list[str]:
    if options.known_hosts:
        path = Path(options.known_hosts).expanduser()
        if not path.is_file():
            raise InvalidRequestError(
                "the file of known hosts is not there",
                known_hosts=str(path),
                next_step=f"Make it: `ssh-keyscan HOST >> {path}`, and compare the keys with the host's own.",
            )
        return [str(path)]
    given = str(own.get("userknownhostsfile", "~/.ssh/known_hosts")).split()
    paths = [*(Path(path).expanduser() for path in given), Path("/etc/ssh/ssh_known_hosts")]
    return [str(path) for path in paths if path.is_file()]


def _key_files(options: SshOptions, own: dict[str, Any]) -> list[str] | None:
    if not options.key_file:
        found = [path for path in own.get("identityfile", []) if Path(path).expanduser().is_file()]
        return [str(Path(path).expanduser()) for path in found] or None
    path = Path(options.key_file).expanduser()
    if not path.is_file():
        raise InvalidRequestError(
            "the key file is not there", key_file=str(path), next_step="Correct the option key_file."
        )
    return [str(path)]


def _proxy(own: dict[str, Any], name: str, port: int) -> socket.socket | None:
    """Our end of the command that leads to the host, which ends with it; None where the host is reached directly."""
    command = str(own.get("proxycommand", "none"))
    jump = str(own.get("proxyjump", "none"))
    if command == "none" and jump != "none":
        first, _, last = jump.rpartition(",")
        words = ["ssh", "-F", str(_config()), "-o", "BatchMode=yes", *(["-J", first] if first else [])]
        command = shlex.join([*words, "-W", f"[{name}]:{port}", last])
    if command == "none":
        return None
    near, far = socket.socketpair()
    with far:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            stdin=far.fileno(),
            stdout=far.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    threading.Thread(target=process.wait, daemon=True).start()  # so that no zombie is left
    return near


class _Refusing(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    """No key is taken on trust."""

    def __init__(self, port: int) -> None:
        self._port = port

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> NoReturn:
        del client
        name = hostname.strip("[]").partition("]:")[0]
        raise InvalidRequestError(
            "the SSH key of this host is not known here, so it could be another host",
            host=name,
            port=self._port,
            fingerprint=key.fingerprint,
            next_step="Compare the fingerprint with the host's own, then"
            f" `ssh-keyscan -p {self._port} {name} >> ~/.ssh/known_hosts`.",
        )


def _silence(client: paramiko.SSHClient) -> None:
    """Paramiko logs each failure with a traceback; all that is needed is in our errors."""
    logger = logging.getLogger(_LOG)
    logger.setLevel(logging.CRITICAL + 1)
    logger.propagate = False
    client.set_log_channel(_LOG)


@contextlib.contextmanager
def _translated(host: Host) -> Iterator[None]:
    """The one place where errors of paramiko and of the network become ours."""
    try:
        yield
    except StreamStateError:
        raise
    except paramiko.BadHostKeyException as error:
        raise _changed_key(host, error) from None
    except paramiko.PasswordRequiredException:
        raise InvalidRequestError(
            "the SSH key has a passphrase, which is never asked for",
            host=host.words,
            next_step="Add the key to an agent: `ssh-add KEY_FILE`.",
        ) from None
    except paramiko.AuthenticationException as error:
        raise _refused(host, error) from None
    except (OSError, EOFError, paramiko.SSHException) as error:
        if "No authentication methods available" in str(error):
            raise _refused(host, error) from None
        if "not found in known_hosts" in str(error):  # by the client of an Airflow connection
            raise InvalidRequestError(
                "the SSH key of this host is not known here, so it could be another host",
                host=host.words,
                next_step="Add it to ~/.ssh/known_hosts of every Airflow worker and triggerer, or as host_key to the"
                " connection's extra.",
            ) from None
        raise UnavailableError(
            "the host cannot be reached by SSH",
            host=host.words,
            reason=_reason(error),
            next_step="Look whether `ssh` gets there, then do the same again.",
        ) from None


def _refused(host: Host, error: Exception) -> InvalidRequestError:
    return InvalidRequestError(
        "the host refuses this SSH login",
        host=host.words,
        reason=_reason(error),
        next_step="See that `ssh -o BatchMode=yes` gets in: name user and key_file, or add the key to an agent.",
    )


def _changed_key(host: Host, error: paramiko.BadHostKeyException) -> InvalidRequestError:
    port = host.options.port or SSH_PORT
    name = error.hostname if port == SSH_PORT else f"[{error.hostname}]:{port}"
    file = f" -f {host.options.known_hosts}" if host.options.known_hosts else ""
    return InvalidRequestError(
        "the SSH key of this host is another one than before, so it may be another host",
        host=host.words,
        fingerprint=error.key.fingerprint,
        known=error.expected_key.fingerprint,
        next_step=f"Only if the host was set up again: `ssh-keygen -R '{name}'{file}`, then add its new key by"
        " ssh-keyscan.",
    )


# Paramiko has no type for these: the errors of a connection that was not made in time.
_TIMED_OUT = re.compile(r"time-?out|timed out|Error reading SSH protocol banner|No existing session", re.IGNORECASE)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError) or _TIMED_OUT.search(str(error)):
        return "no answer in time"
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        first = next(iter(error.errors.values()))
        return str(first.strerror or first).lower()
    if isinstance(error, socket.gaierror):
        return "no such name"
    if isinstance(error, EOFError):
        return "the connection was closed"
    text = shown(getattr(error, "strerror", None) or error).rstrip(".")
    return (text[:1].lower() + text[1:]) or type(error).__name__
