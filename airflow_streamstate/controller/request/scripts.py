"""The script of a version and the files next to it: read, pinned (Law 15) and checked, without running it."""

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
from dataclasses import replace
from functools import cached_property
from importlib.machinery import all_suffixes
from pathlib import Path, PurePosixPath

from airflow_streamstate.checkpoint.guards import refuse_trigger
from airflow_streamstate.control.artifacts import pin, pin_pieces
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.launch.command import expanded, is_compiled
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
        """Keep it in the home by its digest (Law 15); raises as ``read``, and where it was changed in the meantime."""
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
        pass  # reported by the read
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
    """The archive of a Python environment that an option of a launcher names by a local path, or None."""
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
    """Refuse a wheel that only an installation makes importable: its modules are in its ``.data`` folder."""
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


# The modules next to a script: what it imports from its own folder, found without running it.
#
# Python puts the script's folder first on its path; so a name that is a module there is that module. Imports are read
# from the syntax tree, with those of the modules that are found. What code decides to import while it runs is found
# by the driver (``driver.script``).

_SUFFIXES = tuple(suffix for suffix in all_suffixes() if not suffix.endswith(".pyc"))
_BY_NAME = ("import_module", "__import__", "find_spec", "run_module")
"""Functions whose first argument names a module."""


def modules_beside(script: Path, patterns: tuple[str, ...] | None = None) -> tuple[CodeFile, ...]:
    """The modules that a script imports from its own folder, sorted by their path below it.

    Args:
        patterns: globs below the folder of the script, in place of what it imports; None for what it imports.

    Raises:
        InvalidRequestError: the script cannot be read; a pattern matches nothing, or leaves the folder; what is found
            is too large.
    """
    folder = folder_of(script)
    try:
        found = _imported(script, folder) if patterns is None else _matched(folder, patterns)
        _check_size(folder, found)
    except OSError as error:
        raise InvalidRequestError(
            "a file or folder next to the script cannot be read",
            path=str(error.filename or folder),
            reason=error.strerror or type(error).__name__,
            next_step="Make it readable, or name what the script needs with --modules.",
        ) from None
    return tuple(CodeFile(name, folder / name) for name in sorted(found))


def _check_size(folder: Path, found: set[str]) -> None:
    if len(found) > MAX_FILES or sum((folder / name).stat().st_size for name in found) > MAX_BYTES:
        raise too_large(folder, sorted(found))


def script_path_of(script: Path) -> str:
    """The absolute path of a script, without ``..``; links stay, as they do in ``__file__``."""
    return os.path.abspath(script)  # noqa: PTH100 - ``Path`` follows links where it removes ``..``


def folder_of(script: Path) -> Path:
    """The folder that Python puts first on its path for this script: that of the file that a link leads to."""
    return script.resolve().parent


def _imported(script: Path, folder: Path) -> set[str]:
    """Paths below the folder, from the script's imports and those of what is found."""
    found: set[str] = set()
    waiting = [(script, "")]
    while waiting:
        path, package = waiting.pop()
        tree = tree_of(path)
        new: dict[str, str] = {}
        for name in () if tree is None else set(_imported_names(tree, package)):
            new |= {file: of_package for file, of_package in _files_of(folder, name) if file not in found}
        if new:
            found |= set(new)
            _check_size(folder, found)  # before any of them is read
            waiting += [(folder / file, of_package) for file, of_package in new.items()]
    return found


def tree_of(path: Path) -> ast.Module | None:
    """The syntax tree; None for a compiled module, and for code that Python itself will refuse."""
    if path.suffix != ".py" and path.name.endswith(_SUFFIXES):
        return None
    return syntax_tree_of(CodeFile(path.name, path).read())


def _imported_names(tree: ast.Module, package: str) -> Iterator[str]:
    """The dotted names of modules that this code may import; ``package``: of the module itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node.module or "", node.level, package)
            if base is not None:
                yield from filter(None, (base, *(f"{base}.{alias.name}".strip(".") for alias in node.names)))
        elif isinstance(node, ast.Call) and node.args and _called(node.func) in _BY_NAME:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value if not first.value.startswith(".") else f"{package}{first.value}"


def _called(function: ast.expr) -> str:
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def _absolute(module: str, level: int, package: str) -> str | None:
    if level == 0:
        return module
    parts = package.split(".") if package else []
    if level > len(parts):
        return None  # beyond the top package: Python refuses it
    return ".".join(filter(None, (*parts[: len(parts) - level + 1], module)))


def _files_of(folder: Path, name: str) -> Iterator[tuple[str, str]]:
    """The files of a dotted name below the folder, each with the package that its relative imports start at.

    Of a package that is the whole package, since it may import its modules by any way.
    """
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return
    top = folder / parts[0]
    module = next(
        (folder / f"{parts[0]}{suffix}" for suffix in _SUFFIXES if (folder / f"{parts[0]}{suffix}").is_file()), None
    )
    if top.is_dir() and (_has_init(top) or module is None):
        # A link to a folder is followed where an import leads through it.
        for depth in range(1, len(parts) + 1):
            inner = PurePosixPath(*parts[:depth])
            if not (folder / inner).is_dir():
                break
            if _leads_up(folder, folder / inner):
                yield from _files_through(folder, parts, depth)
                break
            if depth == 1 or (folder / inner).is_symlink():
                yield from _files_of_package(folder, inner)
    elif module is not None:
        yield module.name, ""


def _leads_up(folder: Path, package: Path) -> bool:
    """Whether this is a link to a folder that the script's folder is in, such as ``/``: no separate package."""
    return package.is_symlink() and folder.is_relative_to(package.resolve())


def _files_through(folder: Path, parts: list[str], depth: int) -> Iterator[tuple[str, str]]:
    """What one import loads from the link at this depth on: each package on the way, and the module."""
    for at in range(depth, len(parts) + 1):
        stem = PurePosixPath(*parts[:at])
        for suffix in _SUFFIXES:
            for file, package in (
                (stem / f"__init__{suffix}", parts[:at]),
                (stem.with_name(f"{stem.name}{suffix}"), parts[: at - 1]),
            ):
                if (folder / file).is_file():
                    yield file.as_posix(), ".".join(package)


def _has_init(package: Path) -> bool:
    return any((package / f"__init__{suffix}").is_file() for suffix in _SUFFIXES)


def _files_of_package(folder: Path, package: PurePosixPath) -> Iterator[tuple[str, str]]:
    waiting = [package]
    found: list[str] = []
    while waiting:
        current = waiting.pop()
        with os.scandir(folder / current) as listed:  # asks the disk about no single file: there may be a million
            items = sorted((item for item in listed if is_shown(item.name)), key=lambda item: item.name)
        for item in items:
            if item.is_dir(follow_symlinks=False) and item.name.isidentifier():
                waiting.append(current / item.name)
            elif item.name.endswith(_SUFFIXES) and Path(item.path).is_file():
                found.append((current / item.name).as_posix())
                if len(found) > MAX_FILES:
                    raise too_large(folder, found)
                yield found[-1], ".".join(current.parts)


def _matched(folder: Path, patterns: tuple[str, ...]) -> set[str]:
    found: set[str] = set()
    for pattern in patterns:
        if PurePosixPath(pattern).is_absolute() or ".." in PurePosixPath(pattern).parts:
            raise InvalidRequestError(
                "modules are named by their path below the script's folder",
                modules=pattern,
                folder=str(folder),
                next_step="Use a pattern such as helpers.py or 'lib/*.py'; --py-files takes what is elsewhere.",
            )
        files: set[str] = set()
        for path in folder.glob(pattern):
            below = PurePosixPath(path.relative_to(folder))
            if is_shown(path.name) and path.is_dir():
                files |= {name for name, _ in _files_of_package(folder, below)}
            elif is_shown(path.name) and path.is_file():
                files.add(below.as_posix())
            if len(files) > MAX_FILES:
                raise too_large(folder, sorted(files))
        if not files:
            raise InvalidRequestError(
                "no file of the script's folder matches this",
                modules=pattern,
                folder=str(folder),
                next_step="Correct the pattern, or leave it out: what the script imports is found by itself.",
            )
        found |= files
    return found


# Paths that a version names: what it reads from its script's folder, and relative paths that mean something else now.
#
# Only texts of the code and arguments that name something that is there are looked at; a path that the code puts
# together from several texts is not seen.

_MAX_CHARACTERS = 256
_MAX_NAMED = 5


def notes_on_paths(
    script: Path, modules: Iterable[CodeFile], arguments: Iterable[str], working_folder: str, before: str
) -> tuple[str, ...]:
    """Human-readable sentences on the paths that a new version names.

    Args:
        working_folder: that its drivers will run in; "" for an unknown one.
        before: that of the version before; "" for no such version, or an unknown folder.
    """
    trees = [tree for path in (script, *(module.path for module in modules)) if (tree := tree_of(path))]
    notes = []
    data = _data_in(folder_of(script), trees)
    if data:
        notes.append(
            f"the script names {_listed(data)} in its own folder {folder_of(script)}: that is read as it is when a"
            " driver starts, and is not pinned"
        )
    if not working_folder:
        return tuple(notes)
    named = [*_argument_texts(arguments), *(text for tree in trees for text in _texts_in(tree))]
    relative = sorted(set(filter(_is_relative, named)))
    if before and before != working_folder:
        moved = [text for text in relative if _is_there(before, text) or _is_there(working_folder, text)]
        if moved:
            notes.append(
                f"drivers run in {working_folder}, those of the version before in {before}: {_listed(moved)} means"
                " another path now"
            )
    notes += _not_from_here(relative, working_folder)
    return tuple(notes)


def _not_from_here(relative: list[str], working_folder: str) -> list[str]:
    try:
        here = str(Path.cwd())
    except OSError:
        return []
    if here == working_folder:
        return []
    missed = [text for text in relative if _is_there(here, text) and not _is_there(working_folder, text)]
    if not missed:
        return []
    return [
        f"{_listed(missed)} is there in the current folder {here}, but drivers run in {working_folder}, where it is"
        " not; `--working-folder` names another one"
    ]


def _data_in(folder: Path, trees: Iterable[ast.Module]) -> list[str]:
    """What the code that asks for its own place (``__file__``) names in the folder of the script, without modules."""
    found: set[str] = set()
    for tree in trees:
        if not any(isinstance(node, ast.Name) and node.id == "__file__" for node in ast.walk(tree)):
            continue
        for text in _texts_in(tree):
            name = PurePosixPath(text.strip("/"))
            if name.suffix != ".py" and all(map(is_shown, name.parts)) and _is_there(folder, name.as_posix()):
                found.add(name.as_posix())
    return sorted(found)


def _texts_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _argument_texts(arguments: Iterable[str]) -> Iterator[str]:
    for argument in arguments:
        yield argument.partition("=")[2] or argument


def _is_relative(text: str) -> bool:
    return 0 < len(text) < _MAX_CHARACTERS and ":" not in text and not text.startswith(("/", "-"))


def _is_there(folder: str | Path, text: str) -> bool:
    """Whether a path below this folder exists; not for the folder itself, or what is above it."""
    parts = PurePosixPath(text).parts
    if not parts or ".." in parts or len(text) >= _MAX_CHARACTERS:
        return False
    try:
        return Path(folder, text).exists()
    except (OSError, ValueError):
        return False


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMED])
    return shown if len(names) <= _MAX_NAMED else f"{shown} and {len(names) - _MAX_NAMED} more"


# Triggers that a script's text asks for and that know no barrier: refused before a driver is launched.
#
# Only a call that can mean nothing else is refused; what is decided while the script runs is the driver's to refuse.

_WITHOUT_BARRIER = ("continuous", "realTime")


def refuse_triggers(script: Path, modules: Iterable[CodeFile]) -> None:
    """Refuse a script that asks for such a trigger, itself or in one of its modules.

    A function that nothing in these files names is taken for one of a different script.

    Raises:
        UnsupportedCheckpointError: names the file and the line.
    """
    files = [(script.name, script), *((module.name, module.path) for module in modules)]
    trees = [(name, tree) for name, path in files if (tree := tree_of(path)) is not None]
    named = {text for _, tree in trees for text in _used_names(tree)}
    for name, tree in trees:
        for line, trigger in _calls_in(tree, named):
            refuse_trigger(
                trigger,
                f"; a call of `trigger` that this script does not reach is let pass as `trigger(**{{'{trigger}': …}})`",
                place=f"{name}, line {line}",
            )


def _used_names(tree: ast.Module) -> Iterator[str]:
    """What the code names, but for the names that it only defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _calls_in(node: ast.AST, named: set[str]) -> Iterator[tuple[int, str]]:
    """Line and trigger of each such call, in the order of the text."""
    for child in ast.iter_child_nodes(node):
        if _is_foreign(child, named):
            continue
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute) and child.func.attr == "trigger":
            yield from ((child.lineno, trigger) for trigger in _asked_of(child))
        yield from _calls_in(child, named)


def _is_foreign(node: ast.AST, named: set[str]) -> bool:
    """Whether it is a function that nothing names, and that no decorator can have registered."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return node.name not in named and not node.decorator_list


def _asked_of(call: ast.Call) -> Iterator[str]:
    """The trigger without a barrier that a call asks for, whatever its variables hold."""
    is_only = len(call.keywords) == 1 and not call.args
    for keyword in call.keywords:
        value = keyword.value
        is_set = value.value is not None if isinstance(value, ast.Constant) else is_only
        if keyword.arg in _WITHOUT_BARRIER and is_set:
            yield keyword.arg
