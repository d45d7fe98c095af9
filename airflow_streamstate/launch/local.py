"""Drivers on this machine: their status, logs and end; what they inherit, and the secrets that they were given."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from airflow_streamstate.clock import Clock
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    InvalidRequestError,
    MalformedMessageError,
    UnavailableError,
    UntrustedRecordError,
)
from airflow_streamstate.launch.folder import LOG_NAME, LaunchFolder, translated
from airflow_streamstate.launch.interface import (
    DRIVER_CONFIG,
    LOCAL,
    Connect,
    LaunchHandle,
    LaunchPlace,
    LaunchRequest,
    LaunchState,
    LaunchStatus,
    check_launch,
    check_same,
)
from airflow_streamstate.launch.processes import Session, exit_sentence, this_machine
from airflow_streamstate.protocol.redaction import redact_text, secrets_of

if TYPE_CHECKING:
    from airflow_streamstate.launch.local_start import LocalStart


# The secrets that a driver on this machine was given, to hide them in its log.


def folder_of(handle: LaunchHandle) -> LaunchFolder | None:
    """The folder of a launch on this machine; None where its handle names none."""
    path, top = handle.data.get("folder"), handle.data.get("work_dir")
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        return None
    return LaunchFolder(Path(path), Path(top) if isinstance(top, str) and top else None)


def handed_over_secrets(handle: LaunchHandle | None) -> tuple[str, ...] | None:
    """The values of references to secrets at this launch, () without any.

    None if unknown: its folder is not here, or its files are damaged or not readable for this user.
    """
    folder = None if handle is None else folder_of(handle)
    if folder is None:
        return None
    try:
        raw = json.loads(folder.read(DRIVER_CONFIG) or b"")
    except (OSError, ValueError, RecursionError, UntrustedRecordError):
        return None
    if not isinstance(raw, dict) or "launch_key" not in raw:
        return None
    values = raw.get("secrets", [])  # a release without references wrote none
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return None
    return tuple(values)


_OUT_OF_HEAP = 52
# Why a driver ended, by its log. Each line was seen on real Spark. Human-readable hints: they decide nothing (Law 13).

_WORDS: tuple[tuple[str, str], ...] = (
    (r"JAVA_HOME is not set|(?:bin/java|java): (?:No such file|not found|command not found)", "no Java was found"),
    (r"Could not find valid SPARK_HOME|Failed to find Spark jars directory", "no complete Spark was found"),
    (r"spark-submit: (?:not found|No such file or directory)", "spark-submit was not found"),
    (r"UnsupportedClassVersionError", "its Java is older than Spark needs"),
    (
        r"Could not create the Java Virtual Machine|INVALID_DRIVER_MEMORY",
        "its JVM did not start with these memory settings",
    ),
    (r"OutOfMemoryError: Java heap space", "its JVM ran out of heap"),
    (r"unresolved dependency: (?P<detail>\S+?):? not found", "a package could not be resolved"),
    (r"All masters are unresponsive|Failed to connect to master (?P<detail>\S+)", "the master did not answer"),
    (r"Master must either be yarn or start with", "Spark does not know this kind of master"),
    (r"can't open file '?(?P<detail>[^':]+)", "the script was not there"),
    (r"java\.io\.FileNotFoundException: (?P<detail>\S+)", "a file was not there"),
    (r"No space left on device", "the disk was full"),
)


def reason_of_exit(exit_code: int, log_tail: str) -> str:
    """One lower-case sentence on this end, from the exit code, or else from ``log_tail``."""
    if exit_code == 0:
        return "it ended by itself"
    how = exit_sentence(exit_code)
    if exit_code == _OUT_OF_HEAP:
        return f"{how}: its JVM ran out of heap"
    if exit_code > 128:
        return how  # the log does not know why the signal was sent
    for pattern, words in _WORDS:
        match = re.search(pattern, log_tail)
        if match:
            detail = match.groupdict().get("detail")
            return f"{how}: {words}{f' ({detail})' if detail else ''}"
    return how


_LOG_TAIL_BYTES = 65_536


class LocalLauncher:
    """A ``Launcher`` for drivers on this machine (Linux).

    Args:
        environ: what drivers inherit; None for what ``inherited`` keeps of this process's at the time of each launch.
    """

    name = LOCAL
    default_master = "local[*]"
    reaching: ClassVar[Collection[str]] = ()
    limits: ClassVar[Mapping[str, str]] = {
        "no_room_is_pending": "a machine starts every driver at once; one that has no memory left ends with a reason"
    }

    def __init__(
        self, clock: Clock, connect: Connect | None = None, *, environ: Mapping[str, str] | None = None
    ) -> None:
        del connect  # it needs no connection
        self._clock = clock
        self._environ = environ

    def check(self, request: LaunchRequest) -> None:
        self._start.check(request)

    def spark_version(self, request: LaunchRequest) -> str:
        return self._start.spark_version(request)

    def launch(self, request: LaunchRequest) -> LaunchHandle:
        folder, place = _folder_at(request.place), request.place
        folder.check_private()
        known = self._recorded(folder, place)
        if known is not None:
            return known
        command = self._start.command(request)
        facts = {
            "launch_key": request.launch_key,
            "folder": str(Path(request.folder)),
            "log_path": request.log_path,
            **asdict(this_machine()),
        }
        folder.prepare(facts)
        if (folder.intent() or facts).get("launch_key") != request.launch_key:
            raise _foreign_folder(folder, request.launch_key)
        self._start.start(folder, request, command, facts)
        handle = self._recorded(folder, place)
        if handle is None:
            raise UnavailableError("the driver's process ended before it started", folder=request.folder)
        return handle

    def find(self, place: LaunchPlace) -> LaunchHandle | None:
        """As ``Launcher.find``. With only an intent, the handle of a ``pending`` launch."""
        folder = _folder_at(place)
        with translated(folder.path):
            facts = folder.handle() or folder.intent()
        if facts is None or facts.get("launch_key") != place.launch_key:
            return None
        return _handle(place, facts)

    def handle_at(self, place: LaunchPlace, recorded: LaunchHandle) -> LaunchHandle:
        """As ``Launcher.handle_at``. Of the record nothing is taken: the folder has the process and its end."""
        check_launch(place, recorded)
        handle = _handle(place, {})
        check_same(place, recorded, {name: handle.data[name] for name in ("launch_key", "folder", "log_path")})
        return handle

    def status(self, handle: LaunchHandle) -> LaunchStatus:
        try:
            return self._look(handle)
        except UntrustedRecordError as error:
            return self._status("unknown", f"{error.message} ({error.context.get('path')})")
        except (OSError, DataError) as error:
            return self._status("unknown", f"its folder cannot be read ({type(error).__name__})")

    def kill(self, handle: LaunchHandle, grace_seconds: float) -> LaunchStatus:
        """As ``Launcher.kill``. A driver on a different machine or in a different pid namespace is not touched."""
        status = self.status(handle)
        if status.state == "pending":
            _folder(handle).close(_facts(handle))
            status = self.status(handle)
        session = self._session(handle) if status.state == "running" else None
        if session is None:
            return status
        if not session.is_ours:
            return self._status("running", "it runs in another container: it can be ended only from there")
        session.end(self._clock, grace_seconds)
        return self.status(handle)

    def logs(self, handle: LaunchHandle, tail_bytes: int) -> str:
        return _log_tail(handle, tail_bytes)

    def links(self, handle: LaunchHandle) -> Mapping[str, str]:
        del handle
        return {}

    def forget(self, handle: LaunchHandle) -> None:
        """As ``Launcher.forget``: everything is in the folder of the launch."""

    @cached_property
    def _start(self) -> LocalStart:
        """What starts drivers: imported at the first start, since most callers only look at a driver."""
        from airflow_streamstate.launch.local_start import LocalStart

        return LocalStart(self._environ)

    def _look(self, handle: LaunchHandle) -> LaunchStatus:
        folder = _folder(handle)
        if not folder.path.is_dir():
            return self._status("unknown", "its folder is not on this machine")
        if not folder.has_intent(handle.launch_key):
            return self._status("unknown", "its folder was not made for this launch")
        ended = self._exit(folder, handle)
        if ended is not None:
            return ended
        facts = folder.handle()
        if facts is not None and facts.get("closed"):
            return self._status("gone", "the launch was closed before a driver had started")
        session = self._session(handle)
        if session is None:
            return self._status("pending", "it is recorded, but no driver has started for it yet")
        alive = session.is_alive()
        if alive.is_alive is None:
            return self._status("unknown", alive.reason)
        if alive.is_alive:
            return self._status("running", alive.reason)
        # It may have ended since the first poll: the exit status comes before the end.
        return self._exit(folder, handle) or self._status("gone", alive.reason)

    def _exit(self, folder: LaunchFolder, handle: LaunchHandle) -> LaunchStatus | None:
        code = folder.exit_status()
        if code is None:
            return None
        return self._status("exited", reason_of_exit(code, _told_tail(handle) if code else ""), code)

    def _session(self, handle: LaunchHandle) -> Session | None:
        """The session of the driver, by its folder alone; None before it has started."""
        folder = _folder(handle)
        facts = folder.handle() or {}
        return Session.from_facts(folder, facts) if "pid" in facts else None

    def _status(self, state: LaunchState, reason: str, exit_code: int | None = None) -> LaunchStatus:
        return LaunchStatus(state=state, exit_code=exit_code, reason=reason, observed_at=self._clock.now())

    def _recorded(self, folder: LaunchFolder, place: LaunchPlace) -> LaunchHandle | None:
        with translated(folder.path):
            facts = folder.handle()
        if facts is None:
            return None
        if facts.get("launch_key") != place.launch_key:
            raise _foreign_folder(folder, place.launch_key)
        return _handle(place, facts)


def _handle(place: LaunchPlace, facts: Mapping[str, object]) -> LaunchHandle:
    """The handle of a launch at this place, with what its folder has written of it."""
    data = {
        **facts,
        "launch_key": place.launch_key,
        "folder": str(Path(place.folder)),
        "log_path": place.log_path or str(Path(place.folder) / LOG_NAME),
    }
    if place.work_dir:
        data["work_dir"] = place.work_dir
    return LaunchHandle(launcher=LocalLauncher.name, launch_key=place.launch_key, data=data)


def _facts(handle: LaunchHandle) -> dict[str, object]:
    return {name: value for name, value in handle.data.items() if name != "work_dir"}


def _folder_at(place: LaunchPlace) -> LaunchFolder:
    return LaunchFolder(Path(place.folder), Path(place.work_dir) if place.work_dir else None)


def _folder(handle: LaunchHandle) -> LaunchFolder:
    if handle.launcher != LocalLauncher.name:
        raise InvalidRequestError(
            "this handle is another launcher's", launcher=handle.launcher, launch_key=handle.launch_key
        )
    folder = folder_of(handle)
    if folder is None:
        raise MalformedMessageError("this handle names no folder", launch_key=handle.launch_key)
    return folder


def _log_tail(handle: LaunchHandle, count: int) -> str:
    path, folder = handle.data.get("log_path"), folder_of(handle)
    if not isinstance(path, str) or folder is None:
        return ""
    return folder.tail(Path(path), count).decode("utf-8", "replace")


def _told_tail(handle: LaunchHandle) -> str:
    """The end of the log, its secrets hidden; "" where they are unknown."""
    secrets = handed_over_secrets(handle)
    if secrets is None:
        return ""
    tail = _log_tail(handle, _LOG_TAIL_BYTES)
    if len(tail.encode()) >= _LOG_TAIL_BYTES:
        tail = tail.partition("\n")[2]  # it could start with half a secret
    return redact_text(tail, secrets_of({}, (), looked_up=secrets))


def _foreign_folder(folder: LaunchFolder, launch_key: str) -> ConflictError:
    return ConflictError(
        "this folder belongs to another launch",
        folder=str(folder.path),
        launch_key=launch_key,
        next_step="Give every launch key a separate folder.",
    )


# What a driver on this machine inherits of the environment of the process that launches it.
#
# A list of what is kept: a worker's environment holds secrets under any name. What else a script needs, its
# deployment names by its environment; what the driver needs to reach its home, the controller hands over.

KEPT = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LANGUAGE", "LC_*", "TERM"),
    *("JAVA_HOME", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "LD_LIBRARY_PATH"),
    *("SPARK_*", "PYSPARK_*", "HADOOP_*", "YARN_CONF_DIR", "HIVE_CONF_DIR", "KRB5_CONFIG"),
    # Where Python finds what the script imports.
    *("PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "XDG_CACHE_HOME"),
    *("MALLOC_ARENA_MAX", "OMP_NUM_THREADS"),
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE"),
)
"""Names, and patterns of names."""


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that a driver on this machine inherits."""
    return {name: value for name, value in environ.items() if any(fnmatch.fnmatchcase(name, one) for one in KEPT)}
