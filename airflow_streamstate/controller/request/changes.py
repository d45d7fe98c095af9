"""A change of what a stream runs: the fields that it names are new, all others stay as in the current deployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from airflow_streamstate.controller.request.code_files import CodeFile, jar_files, script_file, with_python_env
from airflow_streamstate.controller.request.literal_secrets import check_attached_arguments
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.controller.request.resolved_request import (
    DEFAULT_MASTER,
    ResolvedRequest,
    Return,
    check_attaches,
    code_files,
    digests_of,
    jars_of,
    named_launcher,
)
from airflow_streamstate.controller.request.rewrites import check_rewrite, conf_of, migration_file
from airflow_streamstate.controller.request.script_modules import modules_beside, script_path_of
from airflow_streamstate.controller.request.script_paths import notes_on_paths
from airflow_streamstate.controller.request.script_triggers import refuse_triggers
from airflow_streamstate.controller.request.version import Version, digest_of
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.interface import LOCAL, PYTHON_ENV
from airflow_streamstate.protocol.records import (
    Artifact,
    LauncherChoice,
    OnQueryFailure,
    StartMode,
    StateRewrite,
    StateStoreName,
)
from airflow_streamstate.store.base import Store

_NO_SCRIPT = Path("script.py")
_OF_REWRITE = ("partitions", "state_store", "checkpoint_format", "migration", "auto_migrate")


class Change(Protocol):
    """What a stream is to run next: a ``ChangeRequest``, or a ``ResolvedRequest``."""

    @property
    def stream_id(self) -> str:
        """The stream."""

    @property
    def reason(self) -> str:
        """Shown to people."""

    @property
    def fresh_queries(self) -> tuple[str, ...]:
        """Queries that may start with nothing although the snapshot does not have them."""

    @property
    def digest(self) -> str:
        """Hex sha256 over the whole request; raises InvalidRequestError where a file cannot be read."""

    def as_deploy_request(self) -> DeployRequest:
        """The same as a request to deploy."""

    def applied_to(self, before: Version, home: Store) -> Version:
        """The version that would run, its files pinned; raises InvalidRequestError as ``digest``."""

    def notes(self, before: Version) -> tuple[str, ...]:
        """For people, on the paths that the new version names (``script_paths``)."""


@dataclass(frozen=True)
class ChangeRequest:
    """What is to change, with the fields of ``DeployRequest``; None for what stays.

    Attributes:
        arguments, py_files, files, packages, jars: replace those of the current deployment.
        modules: with ``application``, as in ``DeployRequest``.
        working_folder: replaces that of the current deployment.
        conf, environment: merged into those of the current deployment, key by key.
        master, spark_conn_id: one replaces the other.
        launcher: ``local`` by name for the caller's machine; None for unchanged. Options of the same launcher, or of
            one without a name, are merged into those of the current deployment; an empty text removes one.
        version_label: None for that of the current version, or for none with a new script.
        partitions: of the state of each operator: Spark's state is written anew in that number.
        state_store: ``rocksdb``: the state is written anew into that store.
        checkpoint_format: Spark's state checkpoint format, 1 or 2: the state is written anew in it.
        migration: local path of a file with the user's functions from old to new state (``migration``), pinned.
        auto_migrate: migrate state of another form without a function, where that needs none.

    Raises:
        InvalidRequestError: as ``DeployRequest``.
    """

    stream_id: str
    application: Path | None = None
    arguments: tuple[str, ...] | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    master: str | None = None
    spark_conn_id: str | None = None
    py_files: tuple[Path, ...] | None = None
    files: tuple[Path, ...] | None = None
    packages: tuple[str, ...] | None = None
    jars: tuple[str, ...] | None = None
    fresh_queries: tuple[str, ...] = ()
    renamed_queries: Mapping[str, str] = field(default_factory=dict)
    moved_sources: Mapping[str, str] = field(default_factory=dict)
    accept_lost_input: tuple[str, ...] = ()
    discard_state: bool = False
    allow_literal_secrets: bool = False
    version_label: str | None = None
    on_query_failure: OnQueryFailure | None = None
    modules: tuple[str, ...] | None = None
    working_folder: Path | None = None
    launcher: LauncherChoice | None = None
    reason: str = ""
    partitions: int | None = None
    state_store: StateStoreName | None = None
    checkpoint_format: int | None = None
    migration: Path | None = None
    auto_migrate: bool = False

    def __post_init__(self) -> None:
        check_rewrite(self.partitions, self.state_store, self.checkpoint_format)
        self.as_deploy_request()
        if self.modules is not None and self.application is None:
            raise InvalidRequestError(
                "modules are those of a new script, and no script is given",
                modules=list(self.modules),
                next_step="Give the script, too.",
            )

    def as_deploy_request(self) -> DeployRequest:
        given: dict[str, Any] = {
            name: value for name, value in vars(self).items() if value is not None and name not in _OF_REWRITE
        }
        given["rewrite"] = self.rewrite
        return DeployRequest(**{"application": _NO_SCRIPT, **given})

    @property
    def rewrite(self) -> StateRewrite | None:
        """How the state is written anew; None for as it is.

        Raises:
            InvalidRequestError: the migration cannot be read, or is not usable.
        """
        file = None if self.migration is None else migration_file(self.migration)
        found = StateRewrite(
            self.partitions,
            self.state_store,
            self.checkpoint_format,
            None if file is None else file.artifact,
            is_automatic=self.auto_migrate,
        )
        return None if found == StateRewrite() else found

    def applied_to(self, before: Version, home: Store) -> Version:
        return changed(before, self, home)

    def notes(self, before: Version) -> tuple[str, ...]:
        script = self.application or Path(before.script_path)
        if not script.is_file():
            return ()
        folder = before.working_folder if self.working_folder is None else str(self.working_folder)
        arguments = before.arguments if self.arguments is None else self.arguments
        modules = modules_beside(script, self.modules)
        return notes_on_paths(script, modules, arguments, folder, before.working_folder)

    @property
    def digest(self) -> str:
        asked: dict[str, object] = {**vars(self), "conf": dict(self.conf), "environment": dict(self.environment)}
        asked["application"] = None
        if self.application is not None:
            asked["application"] = asdict(script_file(self.application).artifact)
            asked["modules"] = [asdict(file.artifact) for file in modules_beside(self.application, self.modules)]
        if self.working_folder is not None:
            asked["working_folder"] = str(self.working_folder)
        for what in ("py_files", "files"):
            paths = getattr(self, what)
            asked[what] = None if paths is None else [asdict(found) for found in digests_of(paths, what)]
        if self.jars is not None:
            asked["jars"] = [jar if isinstance(jar, str) else asdict(jar) for jar in jars_of(self.jars)]
        if self.migration is not None:
            asked["migration"] = asdict(migration_file(self.migration).artifact)
        launcher = with_python_env(self.launcher, lambda file: file.artifact)
        asked["launcher"] = None if launcher is None else asdict(launcher)
        return digest_of({"verb": "change", **asked})


def pinned(
    stream_id: str,
    version: Version,
    *,
    fresh_queries: tuple[str, ...] = (),
    renamed_queries: Mapping[str, str] = MappingProxyType({}),
    moved_sources: Mapping[str, str] = MappingProxyType({}),
    accept_lost_input: tuple[str, ...] = (),
    discard_state: bool = False,
    reason: str = "",
    start: StartMode | None = None,
    returns: Return | None = None,
    rehearsal_id: str | None = None,
    rewrite: StateRewrite | None = None,
    accept_hazards: bool = False,
) -> ResolvedRequest:
    """A request for a recorded version whose files are in the home (Law 15); arguments as in ``ChangeRequest`` and
    ``ResolvedRequest``.

    Args:
        start: "fresh" to begin with nothing; None for what the end of the current deployment decides.
    """
    own: dict[str, Any] = {name: value for name, value in vars(version).items() if name != "code_digest"}
    own["application"], own["master"] = Path(version.application.name), version.master or None
    own["working_folder"] = Path(version.working_folder) if version.working_folder else None
    own["jars"] = tuple(jar if isinstance(jar, str) else jar.name for jar in version.jars)
    del own["modules"], own["script_path"]
    for what in ("py_files", "files"):
        own[what] = tuple(Path(artifact.name) for artifact in own[what])
    request = DeployRequest(
        stream_id=stream_id,
        start=start,
        discard_state=discard_state,
        fresh_queries=fresh_queries,
        renamed_queries=renamed_queries,
        moved_sources=moved_sources,
        accept_lost_input=accept_lost_input,
        reason=reason,
        allow_literal_secrets=True,  # the home has them already
        rewrite=rewrite,
        accept_hazards=accept_hazards,
        **own,
    )
    digest = digest_of(
        {
            "verb": "pinned",
            "code": version.code_digest,
            "start": start,
            "discard_state": discard_state,
            "fresh_queries": sorted(fresh_queries),
            "renamed_queries": dict(renamed_queries),
            "moved_sources": dict(moved_sources),
            "accept_lost_input": sorted(accept_lost_input),
            "rewrite": None if rewrite is None else asdict(rewrite),
            "accept_hazards": accept_hazards,
        }
    )
    return ResolvedRequest(request, version, digest, is_pinned=True, returns=returns, rehearsal_id=rehearsal_id)


def changed(before: Version, request: ChangeRequest, home: Store) -> Version:
    """The version that would run, its files pinned (Law 15).

    Raises:
        InvalidRequestError: a file cannot be read, or two files of one kind have the same name.
        UnsupportedCheckpointError: the script asks for a trigger that knows no barrier.
    """
    if request.migration is not None:
        _pin(home, request, migration_file(request.migration))
    application, modules, script_path = before.application, before.modules, before.script_path
    if request.application is not None:
        script = script_file(request.application)
        check_attaches(request.application, attaches=before.attaches)
        beside = modules_beside(request.application, request.modules)
        refuse_triggers(request.application, beside)
        application = _pin(home, request, script)
        modules = tuple(_pin(home, request, file) for file in beside)
        script_path = script_path_of(request.application)
    if before.attaches and request.arguments is not None:
        check_attached_arguments(request.arguments)
    launcher, master, spark_conn_id, folder = _where(before, request)
    version_label = request.version_label
    if version_label is None:
        version_label = before.version_label if request.application is None else ""
    version = replace(
        before,
        application=application,
        arguments=before.arguments if request.arguments is None else request.arguments,
        conf={**before.conf, **request.conf, **conf_of(request.rewrite)},
        environment={**before.environment, **request.environment},
        py_files=_pinned(home, request, "py_files", before.py_files),
        files=_pinned(home, request, "files", before.files),
        packages=before.packages if request.packages is None else request.packages,
        jars=_pinned_jars(home, request, before.jars),
        master=master or "",
        spark_conn_id=spark_conn_id,
        version_label=version_label,
        on_query_failure=request.on_query_failure or before.on_query_failure,
        modules=modules,
        script_path=script_path,
        working_folder=folder,
        launcher=with_python_env(launcher, lambda file: _pin(home, request, file)),
    )
    return version.digested()


def _where(before: Version, request: ChangeRequest) -> tuple[LauncherChoice | None, str | None, str | None, str]:
    """Launcher, master, Spark connection and working folder; a move to another launcher keeps none of the others."""
    # A Spark connection starts drivers on this machine.
    asked = LauncherChoice(LOCAL) if request.spark_conn_id is not None else request.launcher
    launcher = launcher_after(before.launcher, asked)
    master, spark_conn_id = request.master, request.spark_conn_id
    has_moved = (launcher and launcher.name) != (before.launcher and before.launcher.name)
    if master is None and spark_conn_id is None:
        if has_moved:
            master = "" if launcher else DEFAULT_MASTER
        else:
            master, spark_conn_id = before.master, before.spark_conn_id
    if request.working_folder is not None:
        return launcher, master, spark_conn_id, str(request.working_folder)
    return launcher, master, spark_conn_id, "" if has_moved else before.working_folder


def launcher_after(before: LauncherChoice | None, asked: LauncherChoice | None) -> LauncherChoice | None:
    """The launcher of the version after a change, by the one before and what is asked; None for this machine.

    Raises InvalidRequestError for options without a launcher.
    """
    if asked is None:
        return before
    if asked.name == LOCAL or (not asked.name and before is None):
        return named_launcher(asked)
    if before is not None and asked.name in ("", before.name):
        merged = {**before.options, **asked.options}
        kept = {name: value for name, value in merged.items() if value != ""}
        env = None if PYTHON_ENV in asked.options else before.python_env
        return LauncherChoice(before.name, kept, asked.conn_id or before.conn_id, env)
    return asked


def _pinned(home: Store, request: ChangeRequest, what: str, before: tuple[Artifact, ...]) -> tuple[Artifact, ...]:
    paths: tuple[Path, ...] | None = getattr(request, what)
    if paths is None:
        return before
    return tuple(_pin(home, request, file) for file in code_files(paths, what))


def _pinned_jars(home: Store, request: ChangeRequest, before: tuple[Artifact | str, ...]) -> tuple[Artifact | str, ...]:
    if request.jars is None:
        return before
    return tuple(jar if isinstance(jar, str) else _pin(home, request, jar) for jar in jar_files(request.jars))


def _pin(home: Store, request: ChangeRequest, file: CodeFile) -> Artifact:
    return file.pin(home, request.stream_id)
