"""Records what the script reads before its queries start: files by ``open``, variables by ``os.environ``."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from stat import S_ISREG
from types import FrameType

from airflow_streamstate.clock import whole_milliseconds
from airflow_streamstate.older_python import standard_modules
from airflow_streamstate.protocol.redaction import is_reference, is_secret_name
from airflow_streamstate.protocol.script_reads import SECRET, UNSET, FileRead, Place

MOST_FILES = 200
MOST_COUNTED = 10_000
MOST_VARIABLES = 200
HASHED_BYTES = 1 << 20
_MARK_DIGITS = 3
_PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_SPARKS = frozenset({"pyspark", "py4j"})
_OF_ENVIRON = frozenset({"os", "collections", "_collections_abc"})
_SECRET_SUFFIXES = (".env", ".pem", ".key", ".p12", ".pfx", ".jks", ".keytab", ".netrc")


class OpenedFiles:
    """The files that the script opened, and the variables that it asked for, since ``begin``.

    Attributes:
        has_begun: whether anything is seen.
        others: files that were opened after the first ``MOST_FILES``, counted up to ``MOST_COUNTED``.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self.others = 0
        self._files: dict[str, FileRead] = {}
        self._left_out: set[int] = set()
        self._variables: dict[str, str | None] = {}
        self._folders: tuple[tuple[Place, str], ...] = ()
        self._arguments: dict[str, str] = {}
        self._given: frozenset[str] = frozenset()
        self._pinned: frozenset[str] = frozenset()
        self._own_folder = ""
        self._guard = threading.Lock()
        self._here = threading.local()

    def begin(
        self, script: str, pinned: Sequence[str] = (), arguments: Sequence[str] = (), given: Sequence[str] = ()
    ) -> None:
        """See what the script reads from now on, and forget what it read before.

        Args:
            script: its path, as its ``__file__``.
            pinned: paths of its modules below its folder, which cannot change.
            arguments: of the script; each may be the path of a file, or have one behind ``=``.
            given: names of the files of ``--files``.
        """
        folder = str(Path(script).resolve().parent)
        current = _current_folder() or folder
        with self._guard:
            self._files, self._variables, self._left_out, self.others = {}, {}, set(), 0
            self._own_folder = folder
            self._folders = tuple(_usable((("script", folder), ("working", os.path.realpath(current)))))
            self._pinned = frozenset({os.path.realpath(script), *(str(Path(folder, name)) for name in pinned)})
            texts = [part for argument in arguments for part in (argument, argument.partition("=")[2]) if part]
            self._arguments = {os.path.realpath(str(Path(current, text))): text for text in texts if len(text) < 1024}
            self._given = frozenset(given)
            self.has_begun = True
        _watch(self)

    def files(self) -> tuple[FileRead, ...]:
        """In the order in which they were first opened."""
        with self._guard:
            return tuple(self._files.values())

    def changed_files(self) -> tuple[FileRead, ...]:
        """The files whose content differs now from what was read, as they are now; those that are gone are left out."""
        with self._guard:
            known = list(self._files.items())
        found = ((read, self._read(path, read.place, read.name)) for path, read in known)
        return tuple(now for read, now in found if now is not None and not now.is_as(read))

    def variables(self, given: Mapping[str, str], redacted: Callable[[str], str]) -> dict[str, str]:
        """As ``ScriptReads.variables``.

        Args:
            given: those of the deployment, references in them.
            redacted: hides secrets in a text.
        """
        with self._guard:
            known = dict(self._variables)
        names = sorted({*known, *given})
        return {name: _marked(name, given.get(name), known.get(name), name in known, redacted) for name in names}

    # what the hooks call

    def opened(self, path: object, flags: object, frame: FrameType | None) -> None:
        """A file is about to be opened; raises nothing."""
        if getattr(self._here, "is_busy", False) or not _is_reading(flags):
            return
        self._here.is_busy = True
        try:
            self._note(os.fsdecode(path), frame)  # type: ignore[arg-type]
        except Exception:  # noqa: S110  what cannot be seen must not fail the script
            pass
        finally:
            self._here.is_busy = False

    def asked(self, name: object, value: str | None, frame: FrameType | None) -> None:
        """A variable was asked for by name; raises nothing."""
        if not isinstance(name, str) or (name in self._variables and self._variables[name] == value):
            return
        if len(self._variables) >= MOST_VARIABLES or not self._is_asked_by_script(frame):
            return
        with self._guard:
            self._variables[name] = value

    def _note(self, path: str, frame: FrameType | None) -> None:
        if self.others >= MOST_COUNTED or not any(map(self._is_own, _outwards(frame))):
            return
        whole = os.path.realpath(path)
        where = self._place_of(whole)
        if where is None or whole in self._pinned:
            return
        place, name = where
        if whole not in self._files and len(self._files) >= MOST_FILES:
            with self._guard:
                self._left_out.add(hash(whole))
                self.others = len(self._left_out)
            return
        file = self._read(whole, place, name, self._files.get(whole))
        if file is not None:
            with self._guard:
                self._files[whole] = file

    def _place_of(self, whole: str) -> tuple[Place, str] | None:
        if whole.endswith((".pyc", ".so")) or any(part in whole for part in _INSTALLED):
            return None
        for place, folder in self._folders:
            if whole.startswith(folder + os.sep):
                return place, whole[len(folder) + 1 :]
        if whole in self._arguments:
            return "argument", self._arguments[whole]
        name = Path(whole).name
        return ("files", name) if name in self._given else None

    def _read(self, path: str, place: Place, name: str, known: FileRead | None = None) -> FileRead | None:
        """The file as it is now; None where it is no regular file, or is not there."""
        try:
            status = Path(path).stat()
            if not S_ISREG(status.st_mode):
                return None
            at = whole_milliseconds(datetime.fromtimestamp(status.st_mtime, timezone.utc))
            if known is not None and (known.size_bytes, known.modified_at) == (status.st_size, at):
                return known
            digest = "" if _is_secret_file(name) or status.st_size > HASHED_BYTES else _sha256_of(path)
        except (OSError, ValueError, OverflowError):
            return None
        return FileRead(name, place, status.st_size, at, digest)

    def _is_asked_by_script(self, frame: FrameType | None) -> bool:
        """Not through the standard library, which asks for the machine's own variables."""
        for one in _outwards(frame):
            if self._is_own(one):
                return True
            module = str(one.f_globals.get("__name__", "")).partition(".")[0]
            if module in standard_modules() and module not in _OF_ENVIRON:
                return False
        return False

    def _is_own(self, frame: FrameType) -> bool:
        if frame.f_globals is getattr(sys.modules.get("__main__"), "__dict__", None):
            return True
        file = frame.f_code.co_filename
        return file.startswith(self._own_folder + os.sep) and not any(part in file for part in _INSTALLED)


OF_THIS_SCRIPT = OpenedFiles()
"""A process runs one script."""
_watched: list[OpenedFiles] = []
_walk = threading.local()


def _watch(opened: OpenedFiles) -> None:
    """Have the hooks report to this one, and to no other. An audit hook stays for as long as the process lives."""
    if not _watched:
        sys.addaudithook(_audit)
        _wrap_environ()
    _watched[:] = [opened]


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open":
        path, _, flags = arguments
        _watched[0].opened(path, flags, sys._getframe(1))


def _wrap_environ() -> None:
    kind = type(os.environ)
    gets, walks = kind.__getitem__, kind.__iter__

    def get(environ: os._Environ[str], name: str) -> str:
        try:
            value = gets(environ, name)
        except KeyError:
            _tell(environ, name, None)
            raise
        _tell(environ, name, value)
        return value

    def walk(environ: os._Environ[str]) -> Iterator[str]:
        walked: list[str] = []
        _walk.ahead = walked
        for name in walks(environ):
            walked.append(name)
            yield name

    kind.__getitem__, kind.__iter__ = get, walk  # type: ignore[method-assign]


def _tell(environ: object, name: object, value: str | None) -> None:
    if environ is not os.environ:
        return
    ahead = getattr(_walk, "ahead", None)
    if ahead and ahead[0] == name:
        del ahead[0]  # each in its turn: a copy of all of them
        return
    _walk.ahead = None
    _watched[0].asked(name, value, sys._getframe(2))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames from this one outwards, up to this package, Spark, or an import."""
    while frame is not None:
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
        if file.startswith((_PACKAGE, "<frozen importlib")) or module.partition(".")[0] in _SPARKS:
            return
        yield frame
        frame = frame.f_back


def _current_folder() -> str:
    """The current folder; "" where it is gone."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _usable(folders: Sequence[tuple[Place, str]]) -> Iterator[tuple[Place, str]]:
    """Without the root, and a user's own folder, which contain everything."""
    home = os.path.realpath(os.environ.get("HOME", os.sep))
    for place, folder in folders:
        if folder != os.sep and (place == "script" or folder != home):
            yield place, folder


def _is_reading(flags: object) -> bool:
    if not isinstance(flags, int):
        return False
    return flags & os.O_ACCMODE != os.O_WRONLY and not flags & (os.O_TRUNC | os.O_APPEND)


def _is_secret_file(name: str) -> bool:
    last = Path(name).name.lower()
    return is_secret_name(last) or last.endswith(_SECRET_SUFFIXES)


def _sha256_of(path: str) -> str:
    with Path(path).open("rb") as file:
        return hashlib.sha256(file.read(HASHED_BYTES + 1)).hexdigest()


def _marked(name: str, given: str | None, value: str | None, is_known: bool, redacted: Callable[[str], str]) -> str:
    if given is not None and is_reference(given):
        return given
    shown = value if is_known else given
    if shown is None:
        return UNSET
    if is_secret_name(name) or redacted(shown) != shown:
        return SECRET
    return "=" + hashlib.sha256(f"{name}={shown}".encode(errors="replace")).hexdigest()[:_MARK_DIGITS]
