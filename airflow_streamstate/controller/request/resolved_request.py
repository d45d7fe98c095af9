"""A request to deploy whose files were read: the version that runs, and one digest over the whole request."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from airflow_streamstate.control.artifacts import pin
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.controller.request.version import Version, digest_of
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.records import NO_SNAPSHOTS, Artifact
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.open import open_store

DEFAULT_MASTER = "local[*]"
_FIRST_SETTINGS = ("command_poll_seconds", "heartbeat_seconds", "lost_after_seconds", "exit_grace_seconds")
"""What digests of earlier releases were made over."""


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
        accepts_duplicates: sinks that cannot be undone may get rows twice.
    """

    snapshot_id: str
    undoes: bool = False
    undo_command: tuple[str, ...] = ()
    accepts_duplicates: bool = False


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

    def pin(self, home: Store) -> None:
        """Copy the files into the home, by their digests (Law 15).

        Raises:
            InvalidRequestError: a file cannot be read, or was changed since it was first read.
        """
        if self.is_pinned:
            return
        request, version = self.request, self.version
        paths = (request.application, *request.py_files, *request.files)
        for path, artifact in zip(paths, (version.application, *version.py_files, *version.files), strict=True):
            if pin(home, request.stream_id, path) != artifact:
                raise InvalidRequestError(
                    "this file was changed while it was being deployed",
                    path=str(path),
                    next_step="Deploy again when nothing writes it.",
                )


def resolve_request(request: DeployRequest) -> ResolvedRequest:
    """Read the files of a request.

    Raises:
        InvalidRequestError: a file cannot be read, or two files of one kind have the same name.
    """
    request = replace(request, snapshots=checked_place(request))
    application = digest_of_file(request.application)
    check_attaches(request.application, attaches=request.attaches)
    version = Version(
        application=application,
        arguments=request.arguments,
        master=request.master or ("" if request.spark_conn_id else DEFAULT_MASTER),
        conf=request.conf,
        py_files=digests_of(request.py_files, "py_files"),
        files=digests_of(request.files, "files"),
        packages=request.packages,
        settings=request.settings,
        spark_conn_id=request.spark_conn_id,
        jars=tuple(absolute_jar(jar) for jar in request.jars),
        version_label=request.version_label,
        environment=request.environment,
        attaches=request.attaches,
        mirrors=request.mirrors,
        snapshots=request.snapshots,
        on_query_failure=request.on_query_failure,
    ).digested()
    asked: dict[str, object] = {
        "verb": "deploy",
        "code": version.code_digest,
        "start": request.start,
        "snapshot_id": request.snapshot_id,
        "discard_state": request.discard_state,
        "fresh_queries": sorted(request.fresh_queries),
        "version_label": request.version_label,
        "settings": None if request.settings is None else _settings_asked(request.settings),
    }
    # Fields that came later are left out at their defaults, which keeps the digests of earlier releases.
    if request.accept_lost_input:
        asked["accept_lost_input"] = sorted(request.accept_lost_input)
    if request.max_snapshot_age_seconds is not None:
        asked["max_snapshot_age_seconds"] = request.max_snapshot_age_seconds
    if request.begins_elsewhere:
        asked["offsets"] = {name: list(lines) for name, lines in request.offsets.items()}
        asked["begins_at"] = None if request.begins_at is None else request.begins_at.isoformat()
        asked["accept_repeated_input"] = sorted(request.accept_repeated_input)
    if request.mirrors:
        asked["mirrors"] = sorted(request.mirrors)
    if request.snapshots:
        asked["snapshots"] = request.snapshots
    if request.on_query_failure != "script":
        asked["on_query_failure"] = request.on_query_failure
    return ResolvedRequest(request, version, digest_of(asked))


def _settings_asked(settings: AgentSettings) -> dict[str, object]:
    """The settings of the first release, and later ones where they differ from their defaults."""
    default = asdict(AgentSettings())
    return {
        name: value for name, value in asdict(settings).items() if name in _FIRST_SETTINGS or value != default[name]
    }


def check_attaches(script: Path, *, attaches: bool) -> None:
    """Check that a script which has to attach by itself contains ``attach``; raises InvalidRequestError."""
    if attaches and b"attach" not in script.read_bytes():
        raise InvalidRequestError(
            "this script never calls attach, so no agent would supervise its queries",
            application=str(script),
            next_step="Call airflow_streamstate.driver.attach() in it, or deploy it without --attach.",
        )


def digests_of(paths: tuple[Path, ...], what: str) -> tuple[Artifact, ...]:
    """Files of one kind as they will be pinned; raises as ``digest_of_file``, and where two have the same name."""
    artifacts = tuple(digest_of_file(path) for path in paths)
    names = [artifact.name for artifact in artifacts]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidRequestError(
            "two files of this kind have the same name", kind=what, names=twice, next_step="Rename one of them."
        )
    return artifacts


def digest_of_file(path: Path) -> Artifact:
    """A file as it will be pinned; raises InvalidRequestError where it cannot be read."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
    except OSError as error:
        raise InvalidRequestError(
            "this file cannot be read",
            path=str(path),
            reason=error.strerror or type(error).__name__,
            next_step="Give the path of a file that exists on this machine.",
        ) from None
    return Artifact(name=path.name, sha256=digest.hexdigest())


def absolute_jar(jar: str) -> str:
    """A local path made absolute; a URI unchanged."""
    return jar if ":" in jar else str(Path(jar).absolute())
