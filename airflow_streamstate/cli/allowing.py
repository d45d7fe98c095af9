"""What persons have named in commands on this machine, by home: the shell's list of what is allowed.

As ssh keeps the hosts that it knows, in a file of its user. ``STREAMSTATE_ALLOWED`` names another file, for watchers in
containers.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_streamstate.errors import InvalidRequestError

if TYPE_CHECKING:
    from airflow_streamstate.allowed import Allowed

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
        """What is allowed for this home; nothing where there is no file.

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
