"""Reading the files of streams: YAML or JSON, each with every problem that it has, by line.

Values are the words of the file: ``010`` and ``1.10`` stay as they are written, since they are arguments and settings
of a script. Only a launcher's options have YAML's types.
"""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from airflow_streamstate.declarations.model import StreamDeclaration
from airflow_streamstate.declarations.term_parts import REFUSED, places, reason_of, reasons
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.ids import check_stream_id

SUFFIXES = (".yaml", ".yml", ".json")
MOST_BYTES = 1 << 20
MOST_NODES = 100_000
"""Aliases make a small file large."""
_TYPED = ("launcher", "options")
_QuickLoader: Callable[[str], yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NO_MAPPING = ("dict_type", "model_type", "model_attributes_type")
_NOTHING = ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True)
class Problem:
    """What is wrong with a file.

    Attributes:
        line: from 1; 0 for the whole file.
        where: the field, with dots; "" for the whole file.
        reason: one lower-case sentence.
    """

    path: Path
    line: int
    where: str
    reason: str

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else str(self.path)
        return f"{place}: {self.where}: {self.reason}" if self.where else f"{place}: {self.reason}"


@dataclass(frozen=True)
class DeclaredStream:
    """A stream as a file says it.

    Attributes:
        path: of the file; paths in it are relative to its folder.
        root: the folder that none of its paths may leave, links followed; None for no limit.
    """

    path: Path
    declaration: StreamDeclaration
    root: Path | None = None

    @property
    def stream_id(self) -> str:
        """The stream."""
        return self.declaration.id


@dataclass(frozen=True)
class ReadFiles:
    """What was read of files: the streams without a problem, in order of their ids, and the problems of the others, in
    order of files and lines."""

    streams: tuple[DeclaredStream, ...] = ()
    problems: tuple[Problem, ...] = ()

    def __post_init__(self) -> None:
        named = (replace(one, path=_from_here(one.path)) for one in self.problems)
        in_order = sorted(named, key=lambda one: (str(one.path), one.line))
        object.__setattr__(self, "problems", tuple(in_order))

    def need_all(self) -> tuple[DeclaredStream, ...]:
        """The streams.

        Raises:
            InvalidRequestError: a file has a problem.
        """
        if self.problems:
            raise InvalidRequestError(
                "files of streams are wrong",
                problems=len(self.problems),
                first=str(self.problems[0]),
                next_step="`streamstate validate` with the same paths names each of them.",
            )
        return self.streams


@dataclass
class Lines:
    """The lines of a file's fields and of the values of its lists."""

    by_path: dict[tuple[str, ...], int] = field(default_factory=dict)
    nodes: int = 0

    def of(self, at: tuple[str, ...]) -> int:
        """The line of a field, or of the nearest one around it that the file has; 0 for none."""
        return next((self.by_path[at[:size]] for size in range(len(at), 0, -1) if at[:size] in self.by_path), 0)


class _UnreadableError(Exception):
    """The file cannot be read on: line, reason."""

    def __init__(self, line: int, reason: str, where: str = "") -> None:
        self.line, self.reason, self.where = line, reason, where
        super().__init__(reason)


def read_streams(paths: Sequence[Path], root: Path | None = None) -> ReadFiles:
    """Read files, and all files of folders, those of their folders included; names that begin with a dot are left out.

    Args:
        root: as in ``DeclaredStream``; the caller's, never the file's.

    Raises:
        InvalidRequestError: a path is not there, cannot be read, or a folder has no file of a stream; or ``root`` is
            no folder.
    """
    _need_root(root)
    found: list[DeclaredStream] = []
    problems: list[Problem] = []
    for path in _files(paths):
        read = read_stream(path, root)
        if isinstance(read, DeclaredStream):
            found.append(read)
        else:
            problems += read
    found.sort(key=lambda one: (one.stream_id, str(one.path)))
    return ReadFiles(*_without_conflicts(found, problems))


def are_folders(paths: Sequence[Path]) -> bool:
    """Whether a stream that no file of these declares is declared nowhere: other files may lie beside a single one."""
    return all(path.is_dir() for path in paths)


def need_folders(paths: Sequence[Path]) -> None:
    """Refuse to prune by single files. Raises InvalidRequestError."""
    if not are_folders(paths):
        single = next(path for path in paths if not path.is_dir())
        raise InvalidRequestError(
            "which streams no file declares is known of folders alone, and this is none",
            path=str(single),
            next_step="To prune, give the folder with the files of all streams.",
        )


def _from_here(path: Path) -> Path:
    """As people name a file: from the current folder, where it lies below."""
    whole, here = path.absolute(), Path.cwd()
    return whole.relative_to(here) if whole.is_relative_to(here) else whole


def _need_root(root: Path | None) -> None:
    if root is not None and not os.path.isdir(root):  # noqa: PTH112 - a name that is too long is no folder
        raise InvalidRequestError(
            "the root of these files is no folder",
            root=str(root),
            next_step="Name the folder that their paths may not leave.",
        )


def read_stream(path: Path, root: Path | None = None) -> DeclaredStream | list[Problem]:
    """The stream of one file, or what is wrong with it; ``root``: as in ``DeclaredStream``."""
    if root is not None and not path.resolve().is_relative_to(root.resolve()):
        return [Problem(path, 0, "", f"this file is not below the root ({root})")]
    try:
        values, lines = _values(path)
    except _UnreadableError as error:
        return [Problem(path, error.line, error.where, error.reason)]
    try:
        declaration = StreamDeclaration.model_validate(values)
    except ValidationError as error:
        return [_problem_of(path, lines, dict(one)) for one in error.errors(include_url=False)]
    try:
        check_stream_id(declaration.id)
    except InvalidRequestError as error:
        return [Problem(path, lines.of(("id",)), "id", reason_of(error))]
    return DeclaredStream(path.absolute(), declaration, root)


def need_stream(path: Path, root: Path | None = None) -> DeclaredStream:
    """The stream of one file, whatever other streams it depends on; ``root``: as in ``DeclaredStream``.

    Raises:
        InvalidRequestError: the file has a problem, or ``root`` is no folder.
    """
    _need_root(root)
    read = read_stream(path, root)
    if isinstance(read, list):
        return ReadFiles(problems=tuple(read)).need_all()[0]
    return read


def _without_conflicts(
    found: list[DeclaredStream], problems: list[Problem]
) -> tuple[tuple[DeclaredStream, ...], tuple[Problem, ...]]:
    """Without streams of one id, or that wait for each other or for one that no file declares."""
    times = Counter(one.stream_id for one in found)
    first: dict[str, DeclaredStream] = {}
    for one in found:
        if times[one.stream_id] > 1 and one.stream_id in first:
            reason = f"another file declares this stream: {first[one.stream_id].path}"
            problems.append(Problem(one.path, 0, "id", reason))
        first.setdefault(one.stream_id, one)
    kept = [one for one in found if times[one.stream_id] == 1]
    before = {one.stream_id: one.declaration.depends_on for one in found}
    for one in found:
        for other in one.declaration.depends_on:
            if other not in before:
                near = difflib.get_close_matches(other, list(before), 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                problems.append(Problem(one.path, 0, "depends_on", f"no file declares the stream {other}{hint}"))
    for stream_id in _in_circles(before):
        problems.append(Problem(first[stream_id].path, 0, "depends_on", f"{stream_id} waits for itself"))
    bad = {problem.path for problem in problems}
    return tuple(one for one in kept if one.path not in bad), tuple(problems)


def _in_circles(before: Mapping[str, Sequence[str]]) -> list[str]:
    """The streams that wait for themselves, through others or not."""

    def reaches(start: str) -> bool:
        seen: set[str] = set()
        todo = list(before[start])
        while todo:
            one = todo.pop()
            if one == start:
                return True
            if one not in seen:
                seen.add(one)
                todo += before.get(one, ())
        return False

    return [stream_id for stream_id in before if before[stream_id] and reaches(stream_id)]


def _files(paths: Sequence[Path]) -> list[Path]:
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            inside = sorted(_inside(path))
            if not inside:
                raise InvalidRequestError(
                    "there is no file of a stream in this folder",
                    folder=str(path),
                    next_step=f"Files of streams end with {', '.join(SUFFIXES)}.",
                )
            found |= dict.fromkeys(inside)
        elif path.is_file():
            found[path] = None
        else:
            raise InvalidRequestError("there is no such file or folder", path=str(path), next_step="Check the path.")
    return list(found)


def _inside(folder: Path) -> Iterator[Path]:
    try:
        entries = list(folder.iterdir())
    except OSError as error:
        raise InvalidRequestError(
            "this folder cannot be read", folder=str(folder), reason=str(error.strerror), next_step="Check its rights."
        ) from None
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _inside(entry)
        elif entry.suffix in SUFFIXES:
            yield entry


def values_of(path: Path) -> tuple[dict[str, Any], Lines]:
    """The content of a file that was read as texts, lists and objects, and their lines.

    Raises:
        InvalidRequestError: it is another one by now, and cannot be read.
    """
    try:
        return _values(path)
    except _UnreadableError as error:
        raise InvalidRequestError(
            "this file was changed while it was read",
            path=str(path),
            reason=error.reason,
            next_step="Run the same command again.",
        ) from None


def _values(path: Path) -> tuple[dict[str, Any], Lines]:
    """The content of a file as texts, lists and objects."""
    try:
        body = path.read_bytes()
    except OSError as error:
        raise _UnreadableError(0, f"it cannot be read ({error.strerror})") from None
    if len(body) > MOST_BYTES:
        raise _UnreadableError(0, f"it has {len(body):,} bytes, and a stream needs no more than {MOST_BYTES:,}")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise _UnreadableError(0, "it is no UTF-8") from None
    try:
        try:
            return _parsed(text, _QuickLoader)
        except yaml.YAMLError:
            return _parsed(text, yaml.SafeLoader)  # whose words are better
    except yaml.YAMLError as error:
        raise _yaml_problem(error) from None
    except RecursionError:
        raise _UnreadableError(0, "it is nested too deeply") from None


def _parsed(text: str, kind: Callable[[str], yaml.SafeLoader]) -> tuple[dict[str, Any], Lines]:
    """Raises also YAMLError and RecursionError."""
    loader = kind(text)
    try:
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise _UnreadableError(1, "it declares no stream: give an object with id and application")
        lines = Lines()
        return _object(loader, node, (), lines), lines
    finally:
        loader.dispose()


def _yaml_problem(error: yaml.YAMLError) -> _UnreadableError:
    mark = getattr(error, "problem_mark", None)
    text = str(getattr(error, "problem", None) or "it is no YAML").replace("\n", " ")
    if text == "but found another document":
        text = "another document begins here, and a file declares one stream"
    if "'\\t'" in text:
        text = "a tab is here, and YAML takes blanks alone"
    return _UnreadableError(mark.line + 1 if mark is not None else 0, text)


def _object(loader: yaml.SafeLoader, node: yaml.MappingNode, at: tuple[str, ...], lines: Lines) -> dict[str, Any]:
    _refuse_repeated(node, at)
    loader.flatten_mapping(node)  # <<: merges
    found: dict[str, Any] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _UnreadableError(key.start_mark.line + 1, "the name of a field is a text", ".".join(at))
        where = (*at, str(key.value))
        lines.by_path[where] = key.start_mark.line + 1
        found[str(key.value)] = _value(loader, value, where, lines)
    return found


def _refuse_repeated(node: yaml.MappingNode, at: tuple[str, ...]) -> None:
    seen: dict[str, int] = {}
    for key, _ in node.value:
        name, line = str(key.value), key.start_mark.line + 1
        if name in seen:
            raise _UnreadableError(
                line, f"this field is given twice, first in line {seen[name]}", ".".join((*at, name))
            )
        seen[name] = line


def _value(loader: yaml.SafeLoader, node: yaml.Node, at: tuple[str, ...], lines: Lines) -> Any:
    lines.nodes += 1
    if lines.nodes > MOST_NODES:
        raise _UnreadableError(node.start_mark.line + 1, f"it has more than {MOST_NODES:,} values", ".".join(at))
    if isinstance(node, yaml.MappingNode):
        return _object(loader, node, at, lines)
    if isinstance(node, yaml.SequenceNode):
        lines.by_path |= {(*at, str(number)): one.start_mark.line + 1 for number, one in enumerate(node.value)}
        return [_value(loader, one, (*at, str(number)), lines) for number, one in enumerate(node.value)]
    if at[:2] == _TYPED:
        return _typed(loader, node, at)
    is_plain = isinstance(node, yaml.ScalarNode) and not node.style  # libyaml's loader has "", the other one None
    return None if is_plain and node.value in _NOTHING else str(node.value)


def _typed(loader: yaml.SafeLoader, node: yaml.Node, at: tuple[str, ...]) -> Any:
    try:
        return loader.construct_object(node)
    except (ValueError, OverflowError) as error:  # a date that does not exist: 2026-02-30
        reason = f"this looks like a value of YAML's types and is none ({error}); put it in quotes if it is a text"
        raise _UnreadableError(node.start_mark.line + 1, reason, ".".join(at)) from None


def _problem_of(path: Path, lines: Lines, error: Mapping[str, Any]) -> Problem:
    at = tuple(str(part) for part in error["loc"])
    return Problem(path, lines.of(at), ".".join(at), _reason(error, at))


def _reason(error: Mapping[str, Any], at: tuple[str, ...]) -> str:
    if error["type"] == "missing":
        return "this field is missing"
    if error["type"] == "extra_forbidden":
        return _reason_of_unknown(at)
    if error["type"] in _NO_MAPPING:
        return "give a mapping here, each line as `name: value`"
    if error["type"] != REFUSED and at in places():
        term, given = places()[at].term, error["input"]
        if (term.is_number or term.kind in ("flag", "choice")) and isinstance(given, str):
            wanted = term.problem(given)
            return f"it cannot be {given[:60]!r}; {wanted[:1].lower()}{wanted[1:]}"
    text = str(error["msg"])
    return text[:1].lower() + text[1:]


def _reason_of_unknown(at: tuple[str, ...]) -> str:
    """Of a field that is not there: why files do not have it, where it is, or the nearest one."""
    name = at[-1]
    if name in reasons():
        return f"files do not have this field: {reasons()[name]}"
    known = list(_part_at(at[:-1]).model_fields)
    elsewhere = [place for place, one in places().items() if name in (one.term.name, place[-1])]
    if elsewhere and (name not in known):
        return f"there is no such field here; did you mean {'.'.join(elsewhere[0])}?"
    near = difflib.get_close_matches(name, known, 1)
    return f"there is no such field; did you mean {near[0]}?" if near else (
        f"there is no such field; there are {', '.join(known)}"
    )  # fmt: skip


def _part_at(at: tuple[str, ...]) -> type[BaseModel]:
    """The class of the object at these fields."""
    found: type[BaseModel] = StreamDeclaration
    for name in at:
        annotation = found.model_fields[name].annotation
        choices = getattr(annotation, "__args__", (annotation,))
        found = next(one for one in choices if isinstance(one, type) and issubclass(one, BaseModel))
    return found
