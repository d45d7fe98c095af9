"""What a command names beyond the home, which it thereby allows; the list of what was allowed on this machine."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_streamstate.cli.session import ShellSession
from airflow_streamstate.errors import InvalidRequestError, StreamStateError
from airflow_streamstate.launch.interface import LOCAL
from airflow_streamstate.protocol.redaction import is_reference, split_argument
from airflow_streamstate.protocol.terms.version import LauncherChoice

if TYPE_CHECKING:
    from airflow_streamstate.allowed import Allowed, AllowedPlace
    from airflow_streamstate.controller.request.requests import ChangeRequest, DeployRequest


HERE = LauncherChoice(LOCAL)


def allow_request(session: ShellSession, request: DeployRequest) -> None:
    """Allow what a request to deploy names. Raises InvalidRequestError where the list of this machine is malformed."""
    from airflow_streamstate.snapshot.location import uri_of

    version = request.version
    stores = (*version.mirrors, *filter(None, [uri_of(version.snapshots)]))
    is_here = version.launcher is None
    session.allow(_named(session, vars(version), (version.launcher or HERE,), stores, is_here=is_here))


def allow_change(session: ShellSession, change: ChangeRequest) -> None:
    """Allow what a change names; options other than those of the stream's launcher only if that is allowed.

    Raises InvalidRequestError where the list of this machine is malformed.
    """
    values = change.patch.values
    is_here = values.get("launcher") == HERE
    session.allow(_named(session, values, _launchers_after(session, change), is_here=is_here))


def allow_here(session: ShellSession) -> None:
    """Allow the driver that this command runs on this machine, for this command alone: a watcher of this machine runs
    none for that."""
    from airflow_streamstate.allowed import Allowed

    session.allow(Allowed(launchers=(_place(session, HERE),)), is_kept=False)


def allow_stores(session: ShellSession, uris: Iterable[str]) -> None:
    """Allow the stores at these URIs. Raises InvalidRequestError for a URI of no store, too."""
    from airflow_streamstate.allowed import Allowed
    from airflow_streamstate.store.open import open_store

    session.allow(Allowed(stores=tuple(dict.fromkeys(open_store(uri).uri for uri in uris))))


def allow_checkpoints(session: ShellSession, uris: Iterable[str]) -> None:
    """Allow the places of foreign checkpoints, so that ``--give-up`` may take their barriers back."""
    from airflow_streamstate.allowed import Allowed

    session.allow(Allowed(stores=tuple(dict.fromkeys(uris))))


def _launchers_after(session: ShellSession, change: ChangeRequest) -> tuple[LauncherChoice, ...] | None:
    # A Spark connection starts drivers on this machine.
    from airflow_streamstate.controller.request.patch import launcher_after

    values = change.patch.values
    asked = values.get("launcher") if values.get("spark_conn_id") is None else HERE
    if asked is None:
        return None
    try:
        home = session.home()
        control = home.need_stream(change.stream_id)
        before = control.spec(str(control.need_register().value.deployment_id)).version.launcher
        after = launcher_after(before, asked)
    except StreamStateError:
        return None  # the verb itself reports what is wrong
    if before is not None and after is not None and after.name == before.name:
        try:
            home.config.allowed.check_place(_place(session, before))
        except InvalidRequestError:
            return None  # nobody has named the rest of this place
    return (after or HERE,)


def _named(
    session: ShellSession,
    values: Mapping[str, Any],
    launchers: Iterable[LauncherChoice] | None,
    stores: Iterable[str] = (),
    *,
    is_here: bool,
) -> Allowed:
    """``values``: of a version, by name; a change keeps the stores that the stream has. ``is_here``: its drivers run on
    this machine."""
    from airflow_streamstate.allowed import Allowed
    from airflow_streamstate.launch.command import sent_files
    from airflow_streamstate.launch.submit_options import SubmitOptions
    from airflow_streamstate.store.open import open_store

    places = []
    for launcher in launchers or ():
        with suppress(InvalidRequestError):  # one that is not installed, which the verb itself refuses
            places.append(_place(session, launcher))
    spark = tuple(filter(None, [values.get("spark_conn_id")]))
    uris = tuple(dict.fromkeys(open_store(uri).uri for uri in stores))
    # The files of this machine that its configuration has sent to a driver elsewhere; others are pinned.
    files = () if is_here else tuple(map(str, sent_files(SubmitOptions(conf=values.get("conf", {})))))
    return Allowed(tuple(dict.fromkeys(_references(values))), tuple(places), spark, uris, files)


def _place(session: ShellSession, launcher: LauncherChoice) -> AllowedPlace:
    from airflow_streamstate.allowed import AllowedPlace
    from airflow_streamstate.launch.launchers import Launchers

    reaching = Launchers(session.clock).reaching_of(launcher.name)
    return AllowedPlace.of(launcher.name, launcher.conn_id, launcher.options, reaching)


def _references(values: Mapping[str, Any]) -> Iterable[str]:
    found = [split_argument(argument)[1] for argument in values.get("arguments", ())]
    found += [text for name in ("conf", "environment") for text in values.get(name, {}).values()]
    return filter(is_reference, found)


# What persons have named in commands on this machine, by home: the shell's list of what is allowed.
#
# As ssh keeps the hosts that it knows, in a file of its user. ``STREAMSTATE_ALLOWED`` names another file, for
# watchers in containers.

ALLOWED_VARIABLE = "STREAMSTATE_ALLOWED"
_HOMES = "homes"
_MOST_BYTES = 1 << 20
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class AllowedFile:
    """The file, which may not be there yet: ``{"homes": {URI: {"secrets": …, "launchers": …, …}}}``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> AllowedFile:
        """The file of this environment."""
        named = environ.get(ALLOWED_VARIABLE)
        if named:
            from airflow_streamstate.store.open import local_folder

            return cls(local_folder(named))
        base = environ.get("XDG_CONFIG_HOME") or ""
        folder = Path(base) if base.startswith("/") else Path.home() / ".config"
        return cls(folder / "streamstate" / "allowed.json")

    def read(self, home_uri: str) -> Allowed:
        """What is allowed for this home; nothing if there is no file.

        Raises:
            InvalidRequestError: the file cannot be read, is malformed, or others may write it.
        """
        from airflow_streamstate.allowed import Allowed

        key = _key_of(home_uri)
        return Allowed.parse(self._homes().get(key), f"{self.path}, below {_HOMES}, {key}")

    def add(self, home_uri: str, named: Allowed) -> bool:
        """Keep what was named for this home; False where nothing of it is new. Raises as ``read``."""
        from airflow_streamstate.launch.folder import write_file

        if self.read(home_uri).joined(named) == self.read(home_uri):
            return False
        with self._alone():
            homes = self._homes()
            homes[_key_of(home_uri)] = self.read(home_uri).joined(named).to_json()
            write_file(self.path, json.dumps({_HOMES: homes}, indent=1).encode() + b"\n")
        return True

    def _homes(self) -> dict[str, object]:
        body = self._body()
        if not body:
            return {}
        try:
            raw = json.loads(body)
        except (ValueError, RecursionError):
            raw = None
        homes = raw.get(_HOMES, {}) if isinstance(raw, dict) else None
        if not isinstance(homes, dict):
            raise self._useless('it has not the form {"homes": {URI: {…}}}')
        return homes

    def _body(self) -> bytes:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return b""
        except OSError as error:
            raise self._useless(str(error.strerror)) from None
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode):
                raise self._useless("it is no file")
            if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & _OTHERS_WRITE:
                raise self._useless("other users may write it")
            if facts.st_size > _MOST_BYTES:
                raise self._useless("it is too long")
            return os.read(descriptor, _MOST_BYTES)
        finally:
            os.close(descriptor)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Two commands at once lose nothing of each other."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise self._useless(str(error.strerror)) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _useless(self, reason: str) -> InvalidRequestError:
        return InvalidRequestError(
            "the list of what is allowed on this machine cannot be used",
            path=str(self.path),
            reason=reason,
            next_step=f"It belongs to you, with mode 0600; correct it, or name another file by {ALLOWED_VARIABLE}.",
        )


def _key_of(home_uri: str) -> str:
    """One key for each home, however its URI is given."""
    from airflow_streamstate.store.open import local_folder

    scheme, separator, rest = home_uri.partition("://")
    if not separator:
        return str(local_folder(home_uri))
    if scheme == "file":
        return f"/{rest.partition('/')[2]}".rstrip("/") or "/"
    return home_uri.rstrip("/")
