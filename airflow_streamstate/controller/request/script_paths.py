"""Paths that a version names: what it reads from its script's folder, and relative paths that mean something else now.

Only texts of the code and arguments that name something that is there are looked at; a path that the code puts together
from several texts is not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from airflow_streamstate.controller.request.code_files import CodeFile, is_shown
from airflow_streamstate.controller.request.script_modules import folder_of, tree_of

_MAX_CHARACTERS = 256
_MAX_NAMED = 5


def notes_on_paths(
    script: Path, modules: Iterable[CodeFile], arguments: Iterable[str], working_folder: str, before: str
) -> tuple[str, ...]:
    """Sentences for people on the paths that a new version names.

    Args:
        working_folder: that its drivers will run in; "" for an unknown one.
        before: that of the version before; "" for none, or an unknown one.
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
    """Whether a path below this folder exists; not for the folder itself, or what lies above it."""
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
