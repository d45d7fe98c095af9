"""Reads the files of streams: YAML or JSON, with every problem by line, and the requests that they make."""

from __future__ import annotations

import difflib
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from airflow_streamstate.controller.request.patch import CONSENT, conf_of
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.controller.request.requests import deploy_request as request_to_deploy
from airflow_streamstate.controller.request.scripts import modules_beside
from airflow_streamstate.controller.upgrade.upgrades import UpgradeRequest
from airflow_streamstate.declarations.stream_file import (
    REFUSED,
    StreamDeclaration,
    is_path,
    places,
    reason_of,
    reasons,
    takes_uris,
    values_in,
)
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.interface import LOCAL, PYTHON_ENV, plain_options
from airflow_streamstate.protocol.ids import check_stream_id
from airflow_streamstate.protocol.records import StateRewrite
from airflow_streamstate.protocol.settings import default_settings
from airflow_streamstate.protocol.terms.declaration import Term, check_terms, terms_of, values_of
from airflow_streamstate.protocol.terms.order import UpgradeTerms
from airflow_streamstate.protocol.terms.version import LauncherChoice, StartTerms, StreamTerms, Version
from airflow_streamstate.store.open import path_of_file_uri

SUFFIXES = (".yaml", ".yml", ".json")
MOST_BYTES = 1 << 20
MOST_NODES = 100_000
"""Aliases make a small file large."""
_TYPED = ("launcher", "options")
_QuickLoader: Callable[[str], yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NO_MAPPING = ("dict_type", "model_type", "model_attributes_type")
_NOTHING = ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True)
class FileProblem:
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
    """A stream as a file declares it.

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
    problems: tuple[FileProblem, ...] = ()

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
        """The line of a field, or of the nearest one around it that the file has, or 0."""
        return next((self.by_path[at[:size]] for size in range(len(at), 0, -1) if at[:size] in self.by_path), 0)


class _UnreadableError(Exception):
    """The file cannot be read on: line, reason."""

    def __init__(self, line: int, reason: str, where: str = "") -> None:
        self.line, self.reason, self.where = line, reason, where
        super().__init__(reason)


def read_streams(paths: Sequence[Path], root: Path | None = None) -> ReadFiles:
    """Read files, and all files of folders, those of their folders included; names that start with a dot are left out.

    Args:
        root: as in ``DeclaredStream``; the caller's, never the file's.

    Raises:
        InvalidRequestError: a path is not there, cannot be read, or a folder has no file of a stream; or ``root`` is
            no folder.
    """
    _need_root(root)
    found: list[DeclaredStream] = []
    problems: list[FileProblem] = []
    for path in _files(paths):
        read = read_stream(path, root)
        if isinstance(read, DeclaredStream):
            found.append(read)
        else:
            problems += read
    found.sort(key=lambda one: (one.stream_id, str(one.path)))
    return ReadFiles(*_without_conflicts(found, problems))


def are_folders(paths: Sequence[Path]) -> bool:
    """Whether a stream that no file of these declares is declared nowhere: a single file may have others next to it."""
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
    """As people name a file: from the current folder, if it is below that."""
    whole, here = path.absolute(), Path.cwd()
    return whole.relative_to(here) if whole.is_relative_to(here) else whole


def _need_root(root: Path | None) -> None:
    if root is not None and not os.path.isdir(root):  # noqa: PTH112 - a name that is too long is no folder
        raise InvalidRequestError(
            "the root of these files is no folder",
            root=str(root),
            next_step="Name the folder that their paths may not leave.",
        )


def read_stream(path: Path, root: Path | None = None) -> DeclaredStream | list[FileProblem]:
    """The stream of one file, or what is wrong with it; ``root``: as in ``DeclaredStream``."""
    if root is not None and not path.resolve().is_relative_to(root.resolve()):
        return [FileProblem(path, 0, "", f"this file is not below the root ({root})")]
    try:
        values, lines = _values(path)
    except _UnreadableError as error:
        return [FileProblem(path, error.line, error.where, error.reason)]
    try:
        declaration = StreamDeclaration.model_validate(values)
    except ValidationError as error:
        return [_problem_of(path, lines, dict(one)) for one in error.errors(include_url=False)]
    try:
        check_stream_id(declaration.id)
    except InvalidRequestError as error:
        return [FileProblem(path, lines.of(("id",)), "id", reason_of(error))]
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
    found: list[DeclaredStream], problems: list[FileProblem]
) -> tuple[tuple[DeclaredStream, ...], tuple[FileProblem, ...]]:
    """Without streams of one id, or that wait for each other or for one that no file declares."""
    times = Counter(one.stream_id for one in found)
    first: dict[str, DeclaredStream] = {}
    for one in found:
        if times[one.stream_id] > 1 and one.stream_id in first:
            reason = f"another file declares this stream: {first[one.stream_id].path}"
            problems.append(FileProblem(one.path, 0, "id", reason))
        first.setdefault(one.stream_id, one)
    kept = [one for one in found if times[one.stream_id] == 1]
    before = {one.stream_id: one.declaration.depends_on for one in found}
    for one in found:
        for other in one.declaration.depends_on:
            if other not in before:
                near = difflib.get_close_matches(other, list(before), 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                problems.append(FileProblem(one.path, 0, "depends_on", f"no file declares the stream {other}{hint}"))
    for stream_id in _in_circles(before):
        problems.append(FileProblem(first[stream_id].path, 0, "depends_on", f"{stream_id} waits for itself"))
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


def file_values(path: Path) -> tuple[dict[str, Any], Lines]:
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
        text = "another document starts here, and a file declares one stream"
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
        reason = f"this looks like a value of YAML's types and is not one ({error}); put it in quotes if it is a text"
        raise _UnreadableError(node.start_mark.line + 1, reason, ".".join(at)) from None


def _problem_of(path: Path, lines: Lines, error: Mapping[str, Any]) -> FileProblem:
    at = tuple(str(part) for part in error["loc"])
    return FileProblem(path, lines.of(at), ".".join(at), _reason(error, at))


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


# The requests that a declaration amounts to.


def deploy_request(declared: DeclaredStream, home_uri: str, request_id: str | None = None) -> DeployRequest:
    """The request that deploys all of a declaration.

    Raises:
        InvalidRequestError: a value is malformed, or two contradict each other.
    """
    try:
        return _deploy_request(declared, home_uri, request_id)
    except InvalidRequestError as error:
        error.next_step = error.next_step.replace(CONSENT, "")  # a file has no such field
        raise


def _deploy_request(declared: DeclaredStream, home_uri: str, request_id: str | None) -> DeployRequest:
    if declared.root is not None:
        _keep_below(declared)
    return request_to_deploy(
        declared.stream_id,
        **_version_values(declared, home_uri),
        **values_in(StartTerms, declared.declaration),
        **stream_values(declared),
        reason=f"declared in {declared.path.name}",
        request_id=request_id,
    )


def _version_values(declared: DeclaredStream, home_uri: str) -> dict[str, Any]:
    """What its file declares of its version, as ``read_patch`` takes it."""
    given = values_in(Version, declared.declaration)
    paths = (one for one in terms_of(Version) if is_path(one) and one.name in given)
    found = given | {one.name: _with_paths(declared, one, given[one.name]) for one in paths}
    folder = given.get("working_folder")
    found["working_folder"] = Path(folder).expanduser() if folder else None  # a relative one is refused
    if "launcher" in given:
        options = plain_options(given["launcher"].get("options", {}))
        found["launcher"] = LauncherChoice(**{**given["launcher"], "options": options})
    conf = given.get("conf", {})
    return found | {
        "conf": {**conf, **_conf_of_state(_asked_state(declared), conf)},
        "settings": replace(default_settings(home_uri), **given.get("settings", {})),
    }


def check_script(declared: DeclaredStream) -> None:
    """Compile the script, where its driver has this machine's Python: the error then comes before any driver.

    Raises:
        InvalidRequestError: it has a syntax error; with its line.
    """
    given = values_in(Version, declared.declaration)
    if given.get("spark_conn_id") is not None or given.get("launcher", {}).get("name", LOCAL) != LOCAL:
        return
    path = _path(declared, given["application"])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape is the script's own matter
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        place = f"{path}:{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else str(path)
        raise InvalidRequestError(
            "the script has a syntax error",
            place=place,
            error=error.msg if isinstance(error, SyntaxError) else str(error),
            next_step="Fix the script.",
        ) from None
    except OSError:
        pass  # reported by the read of its version


def upgrade_request(declared: DeclaredStream, home_uri: str, before: Version) -> UpgradeRequest:
    """The request that hands the stream over to the declared version.

    Args:
        before: the version of the current deployment.

    Raises:
        InvalidRequestError: as ``deploy_request``.
    """
    rewrite = rewrite_of(declared, before)
    # An upgrade starts as the state demands; ``start`` is of deployments that are no upgrades.
    request = deploy_request(declared, home_uri)
    request = replace(request, terms=replace(request.terms, start=None), rewrite=rewrite, stream=StreamTerms())
    terms = upgrade_terms(declared)
    if rewrite is not None:
        terms = replace(terms, mode="restore" if terms.mode == "auto" else terms.mode, allow_drain=False)
    return UpgradeRequest(request, terms)


def upgrade_terms(declared: DeclaredStream) -> UpgradeTerms:
    """How a changed version of it takes over."""
    return UpgradeTerms(**values_in(UpgradeTerms, declared.declaration))


def version_after(declared: DeclaredStream, home_uri: str, before: Version) -> Version:
    """The declared version as it follows another one. Raises as ``deploy_request``."""
    rewrite = rewrite_of(declared, before)
    return replace(deploy_request(declared, home_uri), rewrite=rewrite).following(before)


def stream_values(declared: DeclaredStream) -> dict[str, Any]:
    """What its file sets of the stream itself, by the names of ``StreamTerms``: what is left out has its default."""
    given = values_in(StreamTerms, declared.declaration)
    return {one.name: _whole(one, given.get(one.name)) for one in terms_of(StreamTerms)}


def _whole(one: Term, given: Any) -> Any:
    if one.kind == "part":
        is_there = given is not None or not one.is_optional
        return {**values_of(one.part, one.part()), **(given or {})} if is_there else {}
    if one.kind == "mapping":
        return given or {}
    return (given or "").strip() if one.kind == "text" else given


def rewrite_of(declared: DeclaredStream, before: Version) -> StateRewrite | None:
    """How the state is rewritten, if the declaration asks for another form than the current version has."""
    asked = _asked_state(declared)
    check_terms(asked)
    needed = {name: text for name, text in conf_of(asked).items() if before.conf.get(name) != text}
    kept = {name: value for name, value in values_of(StateRewrite, asked).items() if _is_needed(name, value, needed)}
    rewrite = StateRewrite(**kept)
    if rewrite.rewriter_spark:
        rewrite = replace(rewrite, rewriter_spark=str(_path(declared, rewrite.rewriter_spark)))
    return None if rewrite.is_of_nothing else rewrite


def _is_needed(name: str, value: Any, needed: Mapping[str, str]) -> bool:
    """Whether the current version lacks a setting that this value requires, or it requires none."""
    conf = conf_of(StateRewrite(**{name: value}))
    return not conf or not needed.keys().isdisjoint(conf)


def _asked_state(declared: DeclaredStream) -> StateRewrite:
    return StateRewrite(**values_in(StateRewrite, declared.declaration))


def _conf_of_state(asked: StateRewrite, conf: Mapping[str, str]) -> dict[str, str]:
    found = conf_of(asked)
    for name, text in found.items():
        if conf.get(name, text) != text:
            raise InvalidRequestError(
                "the settings of the state contradict its configuration",
                setting=name,
                conf=conf[name],
                state=text,
                next_step="Leave the setting out of conf.",
            )
    return found


def _with_paths(declared: DeclaredStream, one: Term, given: Any) -> Any:
    """The paths of a term."""
    if one.kind == "path":
        return _path(declared, given)
    if takes_uris(one):
        return tuple(text if _is_uri(text) else str(_path(declared, text)) for text in given)
    return tuple(_path(declared, text) for text in given)


def _path(declared: DeclaredStream, text: str) -> Path:
    """A path of the file; not resolved: a folder that is swapped by a link stays one."""
    return declared.path.parent / Path(text).expanduser()


def _keep_below(declared: DeclaredStream) -> None:
    """Check that no local path of the file leaves its root: none that it names, and none that is found there.

    Raises:
        InvalidRequestError: one does; or the modules of the script cannot be found.
    """
    given = values_in(Version, declared.declaration)
    options = given.get("launcher", {}).get("options", {})
    texts = list(map(str, filter(None, [given.get("working_folder"), options.get(PYTHON_ENV)])))
    for one in terms_of(Version):
        if is_path(one) and one.name in given:
            named = [given[one.name]] if one.kind == "path" else given[one.name]
            texts += [text for text in named if not (takes_uris(one) and _is_elsewhere(text))]
    for text in texts:
        _need_below(declared, _path(declared, path_of_file_uri(text) if text.startswith("file:") else text), text)
    for text in given.get("py_files", ()):
        for path in _path(declared, text).rglob("*"):  # of a folder, what is linked into it
            _need_below(declared, path, text)
    for module in modules_beside(_path(declared, given["application"]), given.get("modules")):
        _need_below(declared, module.path, module.name)


def _need_below(declared: DeclaredStream, path: Path, text: str) -> None:
    if declared.root is not None and not path.resolve().is_relative_to(declared.root.resolve()):
        raise InvalidRequestError(
            "this path leaves the root of these files",
            path=text,
            leads_to=str(path.resolve()),
            root=str(declared.root),
            next_step="Move what is needed below the root; or whoever applies the file names another root.",
        )


def _is_elsewhere(text: str) -> bool:
    return _is_uri(text) and not text.startswith("file:")


def _is_uri(text: str) -> bool:
    return "://" in text or text.startswith("local:")
