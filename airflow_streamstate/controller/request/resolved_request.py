"""A request to deploy whose files were read: the version that runs, and one digest over the whole request."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from airflow_streamstate.controller.request.code_files import (
    CodeFile,
    jar_files,
    py_file,
    python_env_file,
    refuse_twice,
    script_file,
    with_python_env,
)
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.controller.request.script_modules import folder_of, modules_beside, script_path_of
from airflow_streamstate.controller.request.script_paths import notes_on_paths
from airflow_streamstate.controller.request.script_triggers import refuse_triggers
from airflow_streamstate.controller.request.version import Version, digest_of
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.interface import LOCAL
from airflow_streamstate.protocol.records import NO_SNAPSHOTS, Artifact, DeploymentSpec, LauncherChoice
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.open import open_store

DEFAULT_MASTER = "local[*]"
LEAST_HEARTBEATS = 2
"""A driver may be late with a heartbeat, and must not be with two."""


def checked_place(request: DeployRequest) -> str:
    """The place of the snapshots as the deployment records it: a whole URI, "none", or "" for with the checkpoints.

    Raises:
        InvalidRequestError: it names no store, or contradicts the rest of the request.
    """
    asked = request.snapshots
    if asked == NO_SNAPSHOTS:
        every = None if request.settings is None else request.settings.snapshot_every_seconds
        if every is not None:
            raise InvalidRequestError(
                "a deployment that keeps no snapshots cannot take periodic ones",
                snapshot_every_seconds=every,
                next_step="Leave out the setting, or `--snapshots none`.",
            )
        return asked
    if not asked:
        return ""
    uri = open_store(asked).uri
    if uri in request.mirrors:
        raise InvalidRequestError(
            "a mirror is another place than that of the snapshots",
            mirror=uri,
            next_step="Name another disk, bucket or region.",
        )
    return uri


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
class ResolvedRequest:
    """A request to deploy, with the version that it resolved to.

    Attributes:
        request: how the deployment starts, and what is permitted.
        digest: hex sha256 over the whole request.
        is_pinned: the files are in the home already.
        returns: None for a start from the end of the current deployment.
        rehearsal_id: the rehearsal whose driver waits to become this deployment's.
    """

    request: DeployRequest
    version: Version
    digest: str
    is_pinned: bool = False
    returns: Return | None = None
    rehearsal_id: str | None = None

    @property
    def stream_id(self) -> str:
        return self.request.stream_id

    @property
    def reason(self) -> str:
        return self.request.reason

    @property
    def fresh_queries(self) -> tuple[str, ...]:
        return self.request.fresh_queries

    def as_deploy_request(self) -> DeployRequest:
        return self.request

    def applied_to(self, before: Version, home: Store) -> Version:  # noqa: ARG002 - nothing stays as before
        return self.version

    def notes(self, before: Version | None) -> tuple[str, ...]:
        """As ``Change.notes``; ``before``: None for a first version."""
        if self.is_pinned:
            return ()
        request, folder = self.request, self.version.working_folder
        modules = modules_beside(request.application, request.modules)
        was = "" if before is None else before.working_folder
        return notes_on_paths(request.application, modules, request.arguments, folder, was)

    def pin(self, home: Store) -> None:
        """Copy the files into the home, by their digests (Law 15).

        Raises:
            InvalidRequestError: a file cannot be read, or was changed since it was first read.
        """
        if self.is_pinned:
            return
        request, version = self.request, self.version
        modules = (CodeFile(each.name, folder_of(request.application) / each.name) for each in version.modules)
        env = python_env_file(request.launcher)
        files = (
            CodeFile(request.application.name, request.application),
            *modules,
            *code_files(request.py_files, "py_files"),
            *code_files(request.files, "files"),
            *(jar for jar in jar_files(request.jars) if isinstance(jar, CodeFile)),
            *(() if env is None else (env,)),
        )
        pinned = (
            version.application,
            *version.modules,
            *version.py_files,
            *version.files,
            *(jar for jar in version.jars if isinstance(jar, Artifact)),
            *(
                ()
                if version.launcher is None or version.launcher.python_env is None
                else (version.launcher.python_env,)
            ),
        )
        for file, artifact in zip(files, pinned, strict=True):
            if file.pin(home, request.stream_id) != artifact:
                raise file.was_changed()


def resolve_request(request: DeployRequest) -> ResolvedRequest:
    """Read the files of a request.

    Raises:
        InvalidRequestError: a file cannot be read, or two files of one kind have the same name.
        UnsupportedCheckpointError: the script asks for a trigger that knows no barrier.
    """
    request = replace(request, snapshots=checked_place(request))
    _refuse_short_silence(request.settings)
    application = script_file(request.application).artifact
    check_attaches(request.application, attaches=request.attaches)
    modules = modules_beside(request.application, request.modules)
    refuse_triggers(request.application, modules)
    version = Version(
        application=application,
        arguments=request.arguments,
        master=request.master or ("" if request.spark_conn_id or named_launcher(request.launcher) else DEFAULT_MASTER),
        conf=request.conf,
        py_files=digests_of(request.py_files, "py_files"),
        files=digests_of(request.files, "files"),
        modules=tuple(file.artifact for file in modules),
        script_path=script_path_of(request.application),
        working_folder="" if request.working_folder is None else str(request.working_folder),
        packages=request.packages,
        settings=request.settings,
        spark_conn_id=request.spark_conn_id,
        jars=jars_of(request.jars),
        version_label=request.version_label,
        environment=request.environment,
        attaches=request.attaches,
        mirrors=request.mirrors,
        snapshots=request.snapshots,
        on_query_failure=request.on_query_failure,
        launcher=with_python_env(named_launcher(request.launcher), lambda file: file.artifact),
    ).digested()
    asked: dict[str, object] = {
        "verb": "deploy",
        "code": version.code_digest,
        "start": request.start,
        "snapshot_id": request.snapshot_id,
        "discard_state": request.discard_state,
        "fresh_queries": sorted(request.fresh_queries),
        "version_label": request.version_label,
        "settings": None if request.settings is None else asdict(request.settings),
        "renamed_queries": dict(request.renamed_queries),
        "moved_sources": dict(request.moved_sources),
        "accept_lost_input": sorted(request.accept_lost_input),
        "max_snapshot_age_seconds": request.max_snapshot_age_seconds,
        "offsets": {name: list(lines) for name, lines in request.offsets.items()},
        "begins_at": None if request.begins_at is None else request.begins_at.isoformat(),
        "accept_repeated_input": sorted(request.accept_repeated_input),
        "accept_hazards": request.accept_hazards,
        "mirrors": sorted(request.mirrors),
        "snapshots": request.snapshots,
        "restart_policy": dict(request.restart_policy),
        "alert_rules": dict(request.alert_rules),
        "owner": request.owner,
        "labels": dict(request.labels or {}),
        "retention": dict(request.retention or {}),
        "on_query_failure": request.on_query_failure,
        "working_folder": None if request.working_folder is None else str(request.working_folder),
    }
    return ResolvedRequest(request, version, digest_of(asked))


def named_launcher(launcher: LauncherChoice | None) -> LauncherChoice | None:
    """The launcher of a request to deploy; None for this machine.

    Raises:
        InvalidRequestError: options or a connection are given, and no launcher that takes any.
    """
    if launcher is None or launcher == LauncherChoice(LOCAL):
        return None
    if launcher.conn_id and not launcher.options and launcher.name in ("", LOCAL):
        raise InvalidRequestError(
            "drivers on this machine need no Airflow connection of a launcher",
            launcher_conn_id=launcher.conn_id,
            next_step="Leave it out, or name the launcher that it belongs to. A Spark connection is spark_conn_id.",
        )
    if launcher.name in ("", LOCAL):
        raise InvalidRequestError(
            "options of a launcher are given, and no launcher that has any",
            options=sorted(launcher.options),
            conn_id=launcher.conn_id,
            next_step="Name the launcher, too, for example --launcher kubernetes.",
        )
    return launcher


def in_working_folder(resolved: ResolvedRequest, before: DeploymentSpec | None) -> ResolvedRequest:
    """The request with a working folder: its own, else that of the version before, else the current folder.

    Drivers on other machines run in the folder of their launch, unless the request names one.

    Args:
        before: the version that it follows; None for the first one of a stream.

    Raises:
        InvalidRequestError: the current folder is gone.
    """
    if resolved.version.launcher is not None:
        return resolved
    folder = resolved.version.working_folder or ("" if before is None else before.working_folder)
    if not folder:
        try:
            folder = str(Path.cwd())
        except OSError:
            raise InvalidRequestError(
                "the current folder is gone, so drivers cannot run in it",
                next_step="Change to a folder that exists, or name one with --working-folder.",
            ) from None
    return replace(resolved, version=replace(resolved.version, working_folder=folder))


def _refuse_short_silence(settings: AgentSettings | None) -> None:
    """Refuse settings by which a driver that works would be silent for long enough to count as lost, or as ended where
    a cluster reports so, between two of its heartbeats (1a.8)."""
    if settings is not None and settings.lost_after_seconds < LEAST_HEARTBEATS * settings.heartbeat_seconds:
        raise InvalidRequestError(
            "a driver that works would count as lost between two of its heartbeats",
            heartbeat_seconds=settings.heartbeat_seconds,
            lost_after_seconds=settings.lost_after_seconds,
            next_step=f"Give a lost_after_seconds of at least {LEAST_HEARTBEATS} times heartbeat_seconds.",
        )


def check_attaches(script: Path, *, attaches: bool) -> None:
    """Check that a script which has to attach by itself contains ``attach``; raises InvalidRequestError."""
    if attaches and script.suffix != ".py":
        raise InvalidRequestError(
            "spark-submit runs a script that attaches only if its name ends in .py",
            application=str(script),
            next_step="Rename it, or deploy it without --attach.",
        )
    if attaches and b"attach" not in CodeFile(script.name, script).read():
        raise InvalidRequestError(
            "this script never calls attach, so no agent would supervise its queries",
            application=str(script),
            next_step="Call airflow_streamstate.driver.attach() in it, or deploy it without --attach.",
        )


def code_files(paths: tuple[Path, ...], what: str) -> tuple[CodeFile, ...]:
    """Files of one kind, ``py_files`` or ``files``.

    Raises:
        InvalidRequestError: two have the same name, or one is no file of its kind.
    """
    files = tuple(py_file(path) if what == "py_files" else CodeFile(path.name, path) for path in paths)
    refuse_twice(what, [file.name for file in files])
    return files


def digests_of(paths: tuple[Path, ...], what: str) -> tuple[Artifact, ...]:
    """Files of one kind as they will be pinned; raises as ``code_files``, and where one cannot be read."""
    return tuple(file.artifact for file in code_files(paths, what))


def jars_of(jars: tuple[str, ...]) -> tuple[Artifact | str, ...]:
    """Jars as they will be recorded; raises as ``jar_files``, and where one cannot be read."""
    return tuple(jar if isinstance(jar, str) else jar.artifact for jar in jar_files(jars))
