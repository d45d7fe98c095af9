"""The local files that a version runs: read, and turned into what is pinned (Law 15)."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from airflow_streamstate.control.artifacts import pin, pin_pieces
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.bundle import expanded
from airflow_streamstate.launch.command import is_compiled
from airflow_streamstate.launch.driver_zip import zip_bytes
from airflow_streamstate.launch.interface import PYTHON_ENV
from airflow_streamstate.protocol.terms.version import Artifact, LauncherChoice
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.transfer import PIECE_BYTES

_ARCHIVES = (".zip", ".egg", ".whl", ".jar")
_LIBRARY = re.compile(r"\.(so|dll|dylib)(\.[0-9.]+)?$")
"""Shared libraries, which no process can load from within a zip."""
_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules"})
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
MAX_FILES = 2_000
MAX_BYTES = 100_000_000


@dataclass(frozen=True)
class CodeFile:
    """A local file as it will be pinned.

    Attributes:
        name: under which it is placed for the driver; of a module its path below the script's folder.
        path: of the file, or of a folder that becomes a zip.
    """

    name: str
    path: Path

    @cached_property
    def artifact(self) -> Artifact:
        """Its name and digest; raises InvalidRequestError as ``read``."""
        digest = hashlib.sha256()
        for piece in self._pieces():
            digest.update(piece)
        return Artifact(name=self.name, sha256=digest.hexdigest())

    def read(self) -> bytes:
        """Its bytes now.

        Raises:
            InvalidRequestError: it cannot be read, or is too large a folder.
        """
        return b"".join(self._pieces())

    def pin(self, home: Store, stream_id: str) -> Artifact:
        """Keep it in the home by its digest (Law 15); raises as ``read``, and where it was changed meanwhile."""
        with self._readable():
            size_bytes = self.path.stat().st_size
            is_large = size_bytes > PIECE_BYTES and self.path.is_file()
        if not is_large:
            return pin(home, stream_id, self.name, self.read())
        try:
            pin_pieces(home, stream_id, self.artifact, self._unchanged(), size_bytes)
        except ValueError:  # it has grown, or shrunk
            raise self.was_changed() from None
        return self.artifact

    def _pieces(self) -> Iterator[bytes]:
        with self._readable():
            if self.name.endswith(".zip") and self.path.is_dir():
                found = ((path.relative_to(self.path).as_posix(), path) for path in _files_below(self.path))
                yield zip_bytes((name, CodeFile(name, path).read()) for name, path in found)
                return
            with self.path.open("rb") as file:
                while piece := file.read(PIECE_BYTES):
                    yield piece

    def _unchanged(self) -> Iterator[bytes]:
        """Its pieces, if they still have its digest."""
        digest = hashlib.sha256()
        for piece in self._pieces():
            digest.update(piece)
            yield piece
        if digest.hexdigest() != self.artifact.sha256:
            raise self.was_changed()

    def was_changed(self) -> InvalidRequestError:
        """The refusal of a file that is written while it is pinned."""
        return InvalidRequestError(
            "this file was changed while it was being deployed",
            path=str(self.path),
            next_step="Deploy again when nothing writes it.",
        )

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InvalidRequestError(
                "this file cannot be read",
                path=str(self.path),
                reason=error.strerror or type(error).__name__,
                next_step="Give the path of a file on this machine that can be read.",
            ) from None


def script_file(path: Path) -> CodeFile:
    """A script, looked at as far as that needs no run of it: what no Python can run is refused here, code with an error
    in it by the Python of the driver.

    Raises:
        InvalidRequestError: it cannot be read, is too large, is a notebook or no text, or has nothing to run.
    """
    script = CodeFile(path.name, path)
    try:
        if path.is_file() and path.stat().st_size > MAX_BYTES:
            raise InvalidRequestError(
                f"this is too large for a script: it has more than {MAX_BYTES // 1_000_000} MB",
                path=str(path),
                next_step="Give the path of the script itself; --files takes data.",
            )
    except OSError:
        pass  # said by the read
    body = script.read()
    if _is_notebook(path, body):
        raise InvalidRequestError(
            "this is a notebook, which Python cannot run as a script",
            path=str(path),
            next_step="Make a script of it, for example by `jupyter nbconvert --to script`, and deploy that.",
        )
    if b"\0" in body:
        raise InvalidRequestError(
            "this is no Python script: it is not text, or in an encoding that Python does not read",
            path=str(path),
            next_step="Give a script in UTF-8; --py-files takes archives of Python code, --jars those of Java.",
        )
    tree = syntax_tree_of(body)
    if tree is not None and all(_is_text(statement) for statement in tree.body):
        raise InvalidRequestError(
            "this script has no statement, so it would start no query",
            path=str(path),
            next_step="Give the path of the script that starts the queries.",
        )
    return script


def syntax_tree_of(source: bytes) -> ast.Module | None:
    """The syntax tree; None for code that Python itself will refuse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape is the script's own matter
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _is_notebook(path: Path, body: bytes) -> bool:
    if path.suffix == ".ipynb":
        return True
    if not body.lstrip().startswith(b"{") or b'"nbformat"' not in body:
        return False
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def py_file(path: Path) -> CodeFile:
    """An item of ``py_files``: a module, a zip, an egg, a wheel, a jar, or a folder whose content is importable.

    A folder and a wheel are pinned as zips, the only archives that Spark gives to every Python process.

    Raises:
        InvalidRequestError: it is none of these, a damaged archive, or a folder or wheel that Python cannot import from
            a zip.
    """
    name = path.name
    if path.is_dir():
        _refuse_compiled(path, (found.name for found in _files_below(path)))
        return CodeFile(f"{name or path.absolute().name}.zip", path)
    if path.exists() and path.suffix not in (".py", *_ARCHIVES):
        raise InvalidRequestError(
            "this is no Python code that Spark can give to its processes",
            path=str(path),
            next_step="Give a .py, .zip, .egg or .whl file, or a folder; --files takes data.",
        )
    if path.suffix in _ARCHIVES and path.is_file():
        names = _names_in_archive(path)
        if path.suffix == ".whl":
            _refuse_compiled(path, names)
            _refuse_unimportable(path, names)
            name = f"{name}.zip"
    return CodeFile(name, path)


def jar_files(jars: Iterable[str]) -> tuple[CodeFile | str, ...]:
    """Jars as they will be recorded: those of this machine as files, wildcards expanded; URIs word for word.

    Raises:
        InvalidRequestError: two of this machine have the same name.
    """
    found = tuple(jar if _SCHEME.match(jar) else CodeFile(Path(jar).name, Path(jar)) for jar in expanded(jars))
    refuse_twice("jars", [jar.name for jar in found if isinstance(jar, CodeFile)])
    return found


def refuse_twice(what: str, names: list[str]) -> None:
    """Raise InvalidRequestError where two files of one kind have the same name."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidRequestError(
            "two files of this kind have the same name", kind=what, names=twice, next_step="Rename one of them."
        )


def python_env_file(launcher: LauncherChoice | None) -> CodeFile | None:
    """The archive of a Python environment that an option of a launcher names by a local path; None for none."""
    path = None if launcher is None else launcher.options.get(PYTHON_ENV)
    if not isinstance(path, str) or not path or _SCHEME.match(path):
        return None
    return CodeFile(Path(path).name, Path(path))


def with_python_env(launcher: LauncherChoice | None, pin: Callable[[CodeFile], Artifact]) -> LauncherChoice | None:
    """The launcher as it is recorded: with the archive of its Python environment pinned, in place of its path."""
    file = python_env_file(launcher)
    if launcher is None or file is None:
        return launcher
    others = {name: value for name, value in launcher.options.items() if name != PYTHON_ENV}
    return replace(launcher, options=others, python_env=pin(file))


def _names_in_archive(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (OSError, zipfile.BadZipFile):
        raise InvalidRequestError(
            "this archive of Python code cannot be read as a zip",
            path=str(path),
            next_step="Build it again, or give the folder instead.",
        ) from None


def _refuse_unimportable(wheel: Path, names: list[str]) -> None:
    """Refuse a wheel that only an installation makes importable: its modules lie in its ``.data`` folder."""
    moved = sorted(name for name in names if re.match(r"[^/]+\.data/(purelib|platlib)/", name))
    if moved:
        raise InvalidRequestError(
            "this wheel keeps modules where Python finds them only once it is installed",
            path=str(wheel),
            modules=moved[:5],
            next_step="Install it into the Python of driver and executors, or give the folder of its modules.",
        )


def _files_below(folder: Path) -> list[Path]:
    """The files below a folder, without hidden ones and caches; links to folders are not followed."""
    found: list[Path] = []
    size = 0
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if is_shown(each))
        for name in sorted(filter(is_shown, names)):
            path = Path(where, name)
            found.append(path)
            size += path.stat().st_size if path.exists() else 0
            if len(found) > MAX_FILES or size > MAX_BYTES:
                shown = [path.relative_to(folder).as_posix() for path in found]
                step = "Give the folder below it, or a zip, that holds what the script imports."
                raise too_large(folder, shown, step)
    return found


def is_shown(name: str) -> bool:
    """Whether a file or folder of this name may hold code: not hidden, no cache, no installed packages."""
    return not name.startswith(".") and not name.endswith(".pyc") and name not in _SKIPPED_FOLDERS


def too_large(
    folder: Path,
    names: list[str],
    next_step: str = "Name what the script needs, for example --modules 'jobs/*.py'; repeat it for more.",
) -> InvalidRequestError:
    """The refusal of a folder with more than ``MAX_FILES`` or ``MAX_BYTES``; ``names``: paths below it."""
    tops = sorted({name.partition("/")[0] for name in names})
    return InvalidRequestError(
        f"this folder is too large to be pinned: it holds more than {MAX_FILES:,} files, or"
        f" {MAX_BYTES // 1_000_000} MB",
        folder=str(folder),
        holds=tops[:20],
        next_step=next_step,
    )


def _refuse_compiled(path: Path, names: Iterable[str]) -> None:
    compiled = sorted(name for name in names if is_compiled(name) or _LIBRARY.search(name))
    if compiled:
        raise InvalidRequestError(
            "this holds a compiled module, which Python cannot import from a zip",
            path=str(path),
            compiled=compiled[:5],
            next_step="Install it into the Python of driver and executors.",
        )
