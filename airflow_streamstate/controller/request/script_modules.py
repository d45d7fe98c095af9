"""The modules beside a script: what it imports from its own folder, found without running it.

Python puts the script's folder first on its path; so a name that is a module there is that module. Imports are read
from the syntax tree, with those of the modules that are found. What code decides to import while it runs is found by
the driver (``driver.pinned_modules``).
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from importlib.machinery import all_suffixes
from pathlib import Path, PurePosixPath

from airflow_streamstate.controller.request.code_files import (
    MAX_BYTES,
    MAX_FILES,
    CodeFile,
    is_shown,
    syntax_tree_of,
    too_large,
)
from airflow_streamstate.errors import InvalidRequestError

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
            "a file or folder beside the script cannot be read",
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
        for name in () if tree is None else set(_names_in(tree, package)):
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


def _names_in(tree: ast.Module, package: str) -> Iterator[str]:
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
    """The files of a dotted name below the folder, each with the package that its relative imports begin at.

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
    """Whether this is a link to a folder that the script's folder lies in, such as ``/``: no package of its own."""
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
                next_step="Use a pattern such as helpers.py or 'lib/*.py'; --py-files takes what lies elsewhere.",
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
