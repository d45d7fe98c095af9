"""The SSH launcher: drivers on another host, started by the local launcher there."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.resources
import io
import re
import shlex
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

from airflow_streamstate import errors
from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import (
    InvalidRequestError,
    MalformedMessageError,
    OutcomeUnknownError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.launch.command import expanded
from airflow_streamstate.launch.driver_zip import launcher_zip_bytes
from airflow_streamstate.launch.interface import (
    Connect,
    LaunchHandle,
    LaunchPlace,
    LaunchRequest,
    LaunchStatus,
    check_launch,
    check_options,
    check_same,
)
from airflow_streamstate.launch.local import LocalLauncher
from airflow_streamstate.launch.rest import Until, shown
from airflow_streamstate.launch.ssh_connection import Connections, Conversation, Host, SshOptions
from airflow_streamstate.launch.ssh_remote import HERE, folder_of
from airflow_streamstate.launch.submit_options import SubmitOptions, absorb_conf

_NO_PROGRAM = (126, 127)
_SECONDS: Mapping[str, float] = {
    "status": 25.0,
    "find": 25.0,
    "logs": 25.0,
    "check": 60.0,
    "spark_version": 60.0,
    "forget": 60.0,
    "kill": 60.0,
    "launch": 180.0,
}
"""How long the conversation for a verb may take, whatever the host sends."""
_SLOWEST_BYTES_PER_SECOND = 50_000
_WORD_BYTES = 1 << 20
_STEP_CHARACTERS = 1000
_ESCAPED = 6
"""A byte of a log may be this many bytes of JSON."""
_SERVED = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
Sent = Mapping[str, Path]
"""Files of this machine, by their paths below the folder of a launch."""


class SshLauncher:
    """A ``Launcher`` for drivers on another Linux host.

    Args:
        connect: gives the connected ``paramiko.SSHClient`` of an Airflow connection; None outside of Airflow, where the
            options name the host.
    """

    name = "ssh"
    default_master = "local[*]"
    limits = LocalLauncher.limits
    reaching: ClassVar[Collection[str]] = ("host", "port", "user", "key_file", "known_hosts", "work_dir")

    def __init__(self, clock: Clock, connect: Connect | None = None) -> None:
        self._clock = clock
        self._connections = Connections(connect)

    def check(self, request: LaunchRequest) -> None:
        packed = _Packed.of(request)
        packed.check_kept()
        self._ask(_host(request.place), "check", packed.sent, request=packed.request.to_json())

    def spark_version(self, request: LaunchRequest) -> str:
        return str(self._ask(_host(request.place), "spark_version", request=_Packed.of(request).request.to_json()))

    def launch(self, request: LaunchRequest) -> LaunchHandle:
        packed = _Packed.of(request)
        packed.check_all()
        host = _host(request.place)
        self._ask(host, "launch", packed.sent, request=packed.request.to_json())
        return self._handle(request.place, host)

    def find(self, place: LaunchPlace) -> LaunchHandle | None:
        host = _host(place)
        try:
            data = self._ask(host, "find", place=place.to_json())
        except InvalidRequestError as error:
            # A host that refuses us shows nothing about the driver.
            raise UnavailableError(error.message, next_step=error.next_step, **error.context) from None
        return None if data is None else self._handle(place, host)

    def handle_at(self, place: LaunchPlace, recorded: LaunchHandle) -> LaunchHandle:
        """As ``Launcher.handle_at``. Of the record nothing is taken: the host finds its driver by scope and key."""
        check_launch(place, recorded)
        host = _host(place)
        found = self._handle(place, host)
        # The address behind a connection may be another one by now.
        compared = ("conn_id", "scope", "remote_folder", *(() if host.conn_id else ("host", "port", "user")))
        check_same(place, recorded, {name: found.data[name] for name in compared})
        check_options(place, recorded, {name: getattr(host.options, name) for name in self.reaching})
        return found

    def status(self, handle: LaunchHandle) -> LaunchStatus:
        return self._asked_status(handle, "status")

    def kill(self, handle: LaunchHandle, grace_seconds: float) -> LaunchStatus:
        """As ``Launcher.kill``. A host that goes silent after it was asked ends the driver all the same."""
        return self._asked_status(handle, "kill", grace_seconds=grace_seconds)

    def logs(self, handle: LaunchHandle, tail_bytes: int) -> str:
        """As ``Launcher.logs``.

        Raises:
            UnavailableError, InvalidRequestError: the host cannot be asked.
        """
        host, place = self._asked_about(handle)
        found = self._ask(host, "logs", None, tail_bytes, place=place.to_json(), tail_bytes=tail_bytes)
        tail = found.encode("utf-8", "replace") if isinstance(found, str) else b""
        return tail[-tail_bytes:].decode("utf-8", "ignore") if tail_bytes > 0 else ""

    def links(self, handle: LaunchHandle) -> Mapping[str, str]:
        del handle
        return {}

    def forget(self, handle: LaunchHandle) -> None:
        """As ``Launcher.forget``: code and secrets go; log and exit status stay, and with them what the key means."""
        host, place = self._asked_about(handle)
        self._ask(host, "forget", place=place.to_json())

    def _asked_status(self, handle: LaunchHandle, verb: str, grace_seconds: float = 0.0) -> LaunchStatus:
        host, place = self._asked_about(handle)
        try:
            answer = self._ask(host, verb, None, 0, grace_seconds, place=place.to_json(), grace_seconds=grace_seconds)
            status = _status_in(answer)
        except StreamStateError as error:
            reason = error.context.get("reason")
            words = shown(f"{error.message} ({host.words}{f': {reason}' if reason else ''})")
            return LaunchStatus(state="unknown", exit_code=None, reason=words, observed_at=self._clock.now())
        # Of this machine's clock, as all times that are compared with it.
        reason = shown(status.reason)
        reason = f"{reason} on {host.words}" if status.state == "running" else reason
        return replace(status, reason=reason, observed_at=self._clock.now())

    def _ask(
        self,
        host: Host,
        verb: str,
        sent: Sent | None = None,
        tail_bytes: int = 0,
        grace_seconds: float = 0.0,
        /,
        **values: object,
    ) -> Any:
        """The answer of the host to one request; raises its error, with the host's name."""
        sizes = [(name, _size(path)) for name, path in (sent or {}).items()]
        seconds = _SECONDS[verb] + grace_seconds
        if verb == "launch":
            seconds += sum(size for _, size in sizes) / _SLOWEST_BYTES_PER_SECOND
        asked = {"verb": verb, "environ": host.options.environ(), "files": sizes, **values}
        question = _Question(host, asked, sent or {})
        # Short, so that the rest comes by standard input.
        program = f"import sys; exec(sys.stdin.buffer.read({len(_code().bootstrap)}))"
        command = f"exec {shlex.quote(host.options.python)} -I -c {shlex.quote(program)}"
        try:
            word = self._connections.converse(
                host,
                command,
                question.talk,
                until=Until(self._clock, seconds),
                at_most=_WORD_BYTES + _ESCAPED * max(0, tail_bytes),
            )
        except UnavailableError as error:
            if verb == "launch" and question.was_asked:
                raise OutcomeUnknownError(
                    "the connection was lost while the driver was being launched",
                    next_step="Launch again with the same key: it is the same driver.",
                    **error.context,
                ) from None
            raise
        if "error" in word:
            raise _rebuilt(word["error"], host)
        if "crashed" in word:
            kind = OutcomeUnknownError if verb == "launch" else UnavailableError
            raise kind(
                "the launcher's part on that host ended by an error",
                host=host.words,
                reason=shown(word["crashed"]),
                next_step="Do the same again; if it stays, report it.",
            )
        return word.get("answer")

    def _handle(self, place: LaunchPlace, host: Host) -> LaunchHandle:
        """All that is needed to ask from any machine that may reach the host. Of the host nothing is taken."""
        name, port, user = self._connections.address(host)
        data = {
            "host": name,
            "port": port,
            "user": user,
            "conn_id": host.conn_id,
            "options": host.options.to_json(),
            "scope": place.scope,
            "remote_folder": folder_of(host.options.work_dir, place),
        }
        return LaunchHandle(launcher=self.name, launch_key=place.launch_key, data=data)

    def _asked_about(self, handle: LaunchHandle) -> tuple[Host, LaunchPlace]:
        if handle.launcher != self.name:
            raise InvalidRequestError(
                "this handle is another launcher's", launcher=handle.launcher, launch_key=handle.launch_key
            )
        data = handle.data
        options, conn_id, scope = data.get("options"), data.get("conn_id", ""), data.get("scope")
        if not isinstance(scope, str) or not isinstance(options, Mapping) or not isinstance(conn_id, str):
            raise MalformedMessageError("this handle names no driver on a host", launch_key=handle.launch_key)
        options = {name: value for name, value in options.items() if name in SshOptions.names()}  # of a later release
        # The folder on the caller's machine is nothing to the host.
        place = LaunchPlace(launcher=self.name, scope=scope, launch_key=handle.launch_key, folder=HERE)
        return Host(SshOptions.from_options(options), conn_id), place


class _Question:
    """One conversation with the program on the host.

    Attributes:
        was_asked: the request may have arrived.
    """

    def __init__(self, host: Host, asked: Mapping[str, object], sent: Sent) -> None:
        self._host = host
        self._asked = asked
        self._sent = sent
        self.was_asked = False

    def talk(self, conversation: Conversation) -> dict[str, Any]:
        code = _code()
        conversation.send(code.bootstrap)
        conversation.send_word(base=self._host.options.work_dir, **code.head)
        while (word := conversation.next_word()) is not None:
            if word.get("need") == "code":
                conversation.send(code.body)
            elif word.get("need") == "request":
                self.was_asked = True
                conversation.send_word(**self._asked)
            elif word.get("need") == "files":
                for name, size in cast("list[tuple[str, int]]", self._asked["files"]):
                    with _readable(self._sent[name]), self._sent[name].open("rb") as file:
                        conversation.send_file(file, size)
            elif word.keys() & {"answer", "error", "crashed"}:
                return word
        raise self._ended(*conversation.end())

    def _ended(self, status: int, line: str) -> StreamStateError:
        if status in _NO_PROGRAM or (status > 0 and not self.was_asked):
            return InvalidRequestError(
                "the Python of that host could not be started",
                host=self._host.words,
                python=self._host.options.python,
                reason=line or f"exit status {status}",
                next_step="Install Python 3.11 or later there, and name it by the option python.",
            )
        return UnavailableError(
            "the program on that host ended without an answer",
            host=self._host.words,
            reason=line or (f"exit status {status}" if status >= 0 else "the connection was closed"),
            next_step="Do the same again.",
        )


@dataclass(frozen=True)
class _Code:
    """What is sent to a host in addition to a request.

    Attributes:
        bootstrap: the first program, with each request.
        body: our code as a zip, once.
        head: names the code that the first program needs.
    """

    bootstrap: bytes
    body: bytes
    head: Mapping[str, object]


@functools.cache
def _code() -> _Code:
    bootstrap = (importlib.resources.files("airflow_streamstate.launch") / "ssh_bootstrap.py").read_bytes()
    body = launcher_zip_bytes()
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        sizes = [entry.file_size for entry in archive.infolist() if not entry.is_dir()]
    digest = hashlib.sha256(body).hexdigest()[:32]
    return _Code(bootstrap, body, {"code": digest, "size": len(body), "files": len(sizes), "bytes": sum(sizes)})


@dataclass(frozen=True)
class _Packed:
    """A request as the other side takes it, and what travels with it.

    Attributes:
        request: paths of files that are sent start with HERE.
        later: those of ``sent`` that need not be there before the launch.
    """

    request: LaunchRequest
    sent: Sent
    later: frozenset[str]

    @classmethod
    def of(cls, request: LaunchRequest) -> _Packed:
        script = Path(request.application)
        sent = {f"code/{script.name}": script, **{f"code/{name}": script.parent / name for name in request.modules}}
        later = set(sent)
        own = SubmitOptions(conf=request.conf, py_files=request.py_files, files=request.files, jars=request.jars)
        options = absorb_conf(own)
        lists: dict[str, list[str]] = {}
        for kind in ("py_files", "files", "jars"):
            placed = []
            for item in expanded(getattr(options, kind)):
                path, mark, alias = item.partition("#")
                if _SERVED.match(item):  # a path of that host, or of a server
                    placed.append(item)
                    continue
                name = f"{kind.replace('_', '-')}/{len(placed)}/{Path(path).name}"
                sent[name] = Path(path)
                if item in request.placed_later(kind):
                    later.add(name)
                placed.append(f"{HERE}{name}{mark}{alias}")
            lists[kind] = placed
        application = f"{HERE}code/{script.name}"
        there = replace(request, application=application, conf=options.conf, folder=HERE, log_path=HERE)
        there = LaunchRequest.from_json({**there.to_json(), **lists})
        return cls(there, sent, frozenset(later))

    def check_kept(self) -> None:
        """Check that what must be there before a launch is there; raises InvalidRequestError."""
        for name in self.sent.keys() - self.later:
            _check_file(self.sent[name])

    def check_all(self) -> None:
        """Check that all is there; raises InvalidRequestError."""
        script = Path(self.sent[self.request.application.removeprefix(HERE)])
        if not script.is_file():
            raise InvalidRequestError(
                "the script is not there", application=str(script), next_step="Correct the path of the script."
            )
        for path in self.sent.values():
            _check_file(path)


def _check_file(path: Path) -> None:
    if path.is_file():
        return
    raise InvalidRequestError(
        "a folder cannot be sent to a host" if path.is_dir() else "a file that the driver needs is not there",
        path=str(path),
        next_step="Give its files, or `file:PATH` for a path of that host."
        if path.is_dir()
        else "Correct the path, or give `file:PATH` for a path of that host.",
    )


def _size(path: Path) -> int:
    with _readable(path):
        return path.stat().st_size if path.is_file() else 0


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (PermissionError, FileNotFoundError) as error:
        raise InvalidRequestError(
            "a file that the driver needs cannot be read", path=str(path), reason=str(error.strerror).lower()
        ) from None


def _host(place: LaunchPlace) -> Host:
    return Host(SshOptions.from_options(place.options), place.conn_id)


def _status_in(answer: object) -> LaunchStatus:
    if not isinstance(answer, Mapping):
        raise MalformedMessageError("the host has answered with no status")
    return LaunchStatus.from_json(answer)


def _rebuilt(raw: object, host: Host) -> StreamStateError:
    """The error that the other side has raised, with the name of its host."""
    said: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
    kind = getattr(errors, str(said.get("type")), None)
    if not (isinstance(kind, type) and issubclass(kind, StreamStateError)):
        kind = UnavailableError
    facts = said.get("context")
    context = {
        str(key): value if isinstance(value, int | float) else shown(value)
        for key, value in (facts if isinstance(facts, Mapping) else {}).items()
        if str(key).isidentifier() and key not in ("message", "next_step", "self")
    }
    message = shown(said.get("message") or "the host has refused this")
    step = shown(said.get("next_step") or "", _STEP_CHARACTERS)
    return kind(message, next_step=step, **{**context, "host": host.words})
