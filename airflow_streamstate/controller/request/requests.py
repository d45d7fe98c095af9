"""The requests to deploy a version and to change what a stream runs, checked as far as that needs no home."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from airflow_streamstate.checkpoint.file_source import plain_moves
from airflow_streamstate.controller.request.patch import (
    Patch,
    check_rewriter,
    check_texts,
    following,
    migration_file,
    patched,
    read_patch,
    whole_version,
)
from airflow_streamstate.controller.request.scripts import modules_beside, notes_on_paths
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.ids import check_id, check_stream_id
from airflow_streamstate.protocol.manifest import check_moves
from airflow_streamstate.protocol.records import StateRewrite
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.protocol.terms.declaration import check_given, terms_of
from airflow_streamstate.protocol.terms.version import HandoverTerms, StartTerms, StreamTerms, Version, digest_of
from airflow_streamstate.store.base import Store


class Change(Protocol):
    """What a stream is to run next: a ``ChangeRequest``, or a ``DeployRequest``."""

    @property
    def stream_id(self) -> str:
        """The stream."""

    @property
    def reason(self) -> str:
        """Shown to people."""

    @property
    def terms(self) -> StartTerms:
        """How it starts, and what is consented to."""

    @property
    def rewrite(self) -> StateRewrite | None:
        """How the state is rewritten; None for as it is."""

    @property
    def digest(self) -> str:
        """Hex sha256 over the whole request."""

    def applied_to(self, before: Version, home: Store) -> Version:
        """The version that would run, its files pinned; raises InvalidRequestError where one cannot be."""

    def notes(self, before: Version | None) -> tuple[str, ...]:
        """Notes on the paths that the new version names (``script_paths``); ``before``: None for a first version."""


@dataclass(frozen=True)
class Return:
    """A start at the beginning of the current deployment instead of its end (Law 14).

    Attributes:
        snapshot_id: the snapshot that the current deployment started from.
        undoes: the driver undoes its output in each sink; without that it must have neither committed nor planned a
            batch.
        undo_command: undoes the output of a ``foreachBatch``.
        accept_duplicates: sinks that cannot be undone may get rows twice.
    """

    snapshot_id: str
    undoes: bool = False
    undo_command: tuple[str, ...] = ()
    accept_duplicates: bool = False


@dataclass(frozen=True)
class DeployRequest:
    """A request to run a version of a stream.

    Attributes:
        version: what it runs. ``settings`` of a given version are those of ``settings``.
        terms: how it starts.
        stream: what changes of its stream.
        settings: of the agent in the driver; None for those of the version that it follows, or of the home.
        patch: what the version was made of; None for a recorded one, whose files are in the home.
        rewrite: how the state is rewritten; None for as it is.
        request_id: the same for all tries of one request (Law 2); None for a new one.
        returns: None for a start from the end of the current deployment.
        rehearsal_id: the rehearsal whose driver waits to become this deployment's.

    Raises:
        InvalidRequestError: a value is malformed, or two of them contradict each other.
    """

    stream_id: str
    version: Version
    terms: StartTerms = field(default_factory=StartTerms)
    stream: StreamTerms = field(default_factory=StreamTerms)
    settings: AgentSettings | None = None
    patch: Patch | None = None
    rewrite: StateRewrite | None = None
    reason: str = ""
    request_id: str | None = None
    returns: Return | None = None
    rehearsal_id: str | None = None

    def __post_init__(self) -> None:
        _check(self.stream_id, self.reason, self.terms)
        if self.request_id is not None:
            check_id(self.request_id, "request id")

    @property
    def digest(self) -> str:
        """Hex sha256 over the whole request."""
        asked = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _OF_ONE_TRY}
        if self.patch is None:  # a recorded version: its drivers may find more modules between two tries
            asked["version"] = replace(self.version, modules=())
        return digest_of({"verb": "deploy", **as_plain(asked)})

    def pin(self, home: Store) -> None:
        """Copy the files of a given version into the home. Raises as ``Patch.pin``."""
        if self.patch is not None:
            self.patch.pin(home, self.stream_id)

    def settled(self, default: AgentSettings) -> Version:
        """The version with its settings; ``default``: where the request has none."""
        return self.version if self.patch is None else replace(self.version, settings=self.settings or default)

    def following(self, before: Version) -> Version:
        """The version as it follows another one."""
        version = self.settled(before.settings)
        return version if self.patch is None else following(version, before, self.rewrite)

    def applied_to(self, before: Version, home: Store) -> Version:
        self.pin(home)
        after = self.following(before)
        check_rewriter(self.rewrite, after)
        return after

    def notes(self, before: Version | None) -> tuple[str, ...]:
        if self.patch is None or self.patch.script is None:
            return ()
        was = "" if before is None else before.working_folder
        script, modules = self.patch.script.path, self.patch.modules
        return notes_on_paths(script, modules, self.version.arguments, self.version.working_folder, was)


_OF_ONE_TRY = frozenset({"patch", "reason", "request_id", "returns", "rehearsal_id"})
_WHERE_A_FILE_IS = "script_path"
"""Two tries of one request may differ in it."""


@dataclass(frozen=True)
class ChangeRequest:
    """A request to change what a stream runs: what the patch does not name stays as it is.

    Attributes:
        terms: how it starts, and what is consented to.
        rewrite: how the state is rewritten; None for as it is.

    Raises:
        InvalidRequestError: as ``DeployRequest``.
    """

    stream_id: str
    patch: Patch = field(default_factory=Patch)
    terms: StartTerms = field(default_factory=StartTerms)
    rewrite: StateRewrite | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        _check(self.stream_id, self.reason, self.terms)

    @property
    def digest(self) -> str:
        """Hex sha256 over the whole request."""
        asked = {each.name: getattr(self, each.name) for each in fields(self)}
        values = {name: value for name, value in self.patch.values.items() if name != _WHERE_A_FILE_IS}
        return digest_of({"verb": "change", **as_plain({**asked, "patch": values})})

    def applied_to(self, before: Version, home: Store) -> Version:
        after = patched(before, self.patch, self.rewrite)
        check_rewriter(self.rewrite, after)
        self.patch.pin(home, self.stream_id)
        return after

    def notes(self, before: Version | None) -> tuple[str, ...]:
        if before is None:
            return ()
        script = Path(before.script_path) if self.patch.script is None else self.patch.script.path
        if not script.is_file():
            return ()
        modules = modules_beside(script) if self.patch.script is None else self.patch.modules
        folder = self.patch.values.get("working_folder", before.working_folder)
        arguments = self.patch.values.get("arguments", before.arguments)
        return notes_on_paths(script, modules, arguments, folder, before.working_folder)


def deploy_request(stream_id: str, application: Path, arguments: tuple[str, ...] = (), **given: Any) -> DeployRequest:
    """A request to make a script the next version of a stream.

    Args:
        given: terms of ``Version`` (as ``read_patch`` takes them), ``StartTerms`` and ``StreamTerms``, by name; and
            ``settings``, ``reason``, ``request_id``.

    Raises:
        InvalidRequestError: a value is malformed, two of them contradict each other, or a file cannot be read.
        UnsupportedCheckpointError: the script asks for a trigger that knows no barrier.
    """
    own = {name: given.pop(name) for name in ("reason", "request_id") if name in given}
    terms, stream = StartTerms(**_taken(given, StartTerms)), StreamTerms(**_taken(given, StreamTerms))
    _check(stream_id, str(own.get("reason", "")), terms)
    settings = given.get("settings")
    patch = read_patch(application=application, arguments=arguments, **given)
    return DeployRequest(stream_id, whole_version(patch), terms, stream, settings, patch, **own)


def change_request(
    stream_id: str,
    application: Path | None = None,
    *,
    reason: str = "",
    **given: Any,
) -> ChangeRequest:
    """A request to change what a stream runs.

    Args:
        given: terms of ``Version`` (as ``read_patch`` takes them), ``HandoverTerms`` and ``StateRewrite``, by name;
            ``migration`` as a local path.

    Raises:
        InvalidRequestError: as ``deploy_request``.
    """
    rewrite = _taken(given, StateRewrite)
    check_given(StateRewrite, rewrite)
    terms = StartTerms(**_taken(given, HandoverTerms))
    _check(stream_id, reason, terms)
    patch = read_patch(application=application, **given)
    if rewrite.get("migration") is not None:
        file = migration_file(rewrite["migration"])
        rewrite["migration"], patch = file.artifact, replace(patch, files=(*patch.files, file))
    if rewrite.get("rewriter_spark"):
        # Not resolved: a link such as /opt/spark stays one.
        rewrite["rewriter_spark"] = os.path.abspath(Path(rewrite["rewriter_spark"]).expanduser())  # noqa: PTH100
    asked = StateRewrite(**rewrite)
    return ChangeRequest(stream_id, patch, terms, None if asked.is_of_nothing else asked, reason)


def _taken(given: dict[str, Any], kind: type[Any]) -> dict[str, Any]:
    return {each.name: given.pop(each.name) for each in terms_of(kind) if each.name in given}


def _check(stream_id: str, reason: str, terms: StartTerms) -> None:
    check_stream_id(stream_id)
    check_moves(plain_moves(terms.move_sources))
    check_texts({**vars(terms), "reason": reason})


def as_plain(value: Any) -> Any:
    """A value for a digest."""
    if is_dataclass(value) and not isinstance(value, type):
        retried = {one.name: one.declared.retried for one in terms_of(type(value))} | {_WHERE_A_FILE_IS: "freely"}
        names = [each.name for each in fields(value) if retried.get(each.name) != "freely"]
        return {
            name: sorted(getattr(value, name))
            if retried.get(name) == "in any order"
            else as_plain(getattr(value, name))
            for name in names
        }
    if isinstance(value, Mapping):
        return {name: as_plain(each) for name, each in value.items()}
    return [as_plain(each) for each in value] if isinstance(value, list | tuple) else value
