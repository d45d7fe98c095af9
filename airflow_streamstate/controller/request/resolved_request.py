"""What a request asks for, as digests: the same request id with another wish is told, and so is unchanged code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path

from airflow_streamstate.control.artifacts import pin
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.records import NO_SNAPSHOTS, Artifact, DeploymentSpec, StartPlan
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.store.base import Store
from airflow_streamstate.store.open import open_store

# Where a request wants its snapshots to be kept, as far as that can be judged without the home.


def checked_place(request: DeployRequest) -> str:
    """What the record of the deployment is to say: a whole URI, "none", or "" for with its checkpoints.

    Raises:
        InvalidRequestError: it names no store, or is not to be had with what else is asked for.
    """
    asked = request.snapshots
    if asked == NO_SNAPSHOTS:
        every = None if request.settings is None else request.settings.snapshot_every_seconds
        if every is not None:
            raise InvalidRequestError(
                "a deployment that keeps no snapshots takes none every so often",
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


DEFAULT_MASTER = "local[*]"
_READ_BYTES = 1 << 20
_FIRST_SETTINGS = ("command_poll_seconds", "heartbeat_seconds", "lost_after_seconds", "exit_grace_seconds")
"""What digests of earlier releases were made over."""


@dataclass(frozen=True)
class Return:
    """Going back to where a deployment that is given up had begun, instead of where it ended (Law 14).

    Attributes:
        snapshot_id: where it had begun.
        undoes: what it wrote since then is undone, sink by sink; else it must have neither committed nor planned
            anything.
        undo_command: undoes what a ``foreachBatch`` wrote.
        accepts_duplicates: rows may come twice on sinks that cannot be undone.
    """

    snapshot_id: str
    undoes: bool = False
    undo_command: tuple[str, ...] = ()
    accepts_duplicates: bool = False


@dataclass(frozen=True)
class ResolvedRequest:
    """A deploy request whose files were read.

    Attributes:
        application, py_files, files: as they will be pinned.
        jars: local paths made absolute; URIs word for word.
        master: "" where the connection says it.
        code_digest: over what runs: files, arguments, configuration, environment, packages, jars, master, connection.
        request_digest: over all that is asked for.
        is_pinned: its files lie in the home already.
        returns: it goes back to where the current deployment had begun; None for one that goes on from its end.
        rehearsal_id: of a driver that waits to be this deployment; None for none.
    """

    request: DeployRequest
    application: Artifact
    py_files: tuple[Artifact, ...]
    files: tuple[Artifact, ...]
    jars: tuple[str, ...]
    master: str
    code_digest: str
    request_digest: str
    is_pinned: bool = False
    returns: Return | None = None
    rehearsal_id: str | None = None

    def as_spec(
        self,
        *,
        deployment_id: str,
        fencing_token: int,
        start: StartPlan,
        checkpoints_uri: str,
        default: AgentSettings,
        request_id: str,
        requested_by: str,
        created_at: datetime,
    ) -> DeploymentSpec:
        """The record of the deployment that it becomes; ``default``: the settings where it names none."""
        request = self.request
        return DeploymentSpec(
            stream_id=request.stream_id,
            deployment_id=deployment_id,
            fencing_token=fencing_token,
            application=self.application,
            arguments=request.arguments,
            master=self.master,
            conf=dict(request.conf),
            py_files=self.py_files,
            files=self.files,
            packages=request.packages,
            start=start,
            checkpoints_uri=checkpoints_uri,
            code_digest=self.code_digest,
            request_id=request_id,
            requested_by=requested_by,
            reason=request.reason,
            created_at=created_at,
            settings=request.settings or default,
            spark_conn_id=request.spark_conn_id,
            jars=self.jars,
            version_label=request.version_label,
            environment=dict(request.environment),
            attaches=request.attaches,
            mirrors=request.mirrors,
            snapshots="" if request.snapshots == checkpoints_uri else request.snapshots,
            on_query_failure=request.on_query_failure,
        )

    def pin(self, home: Store) -> None:
        """Copy the files into the home, by their digests (Law 15).

        Raises:
            InvalidRequestError: one cannot be read, or was changed since it was first read.
        """
        if self.is_pinned:
            return
        request = self.request
        wanted = (self.application, *self.py_files, *self.files)
        for path, artifact in zip((request.application, *request.py_files, *request.files), wanted, strict=True):
            if pin(home, request.stream_id, path) != artifact:
                raise InvalidRequestError(
                    "this file was changed while it was being deployed",
                    path=str(path),
                    next_step="Deploy again when nobody writes it.",
                )


def resolve_request(request: DeployRequest) -> ResolvedRequest:
    """The wish of a request.

    Raises:
        InvalidRequestError: a file cannot be read, or two files of one kind have the same name.
    """
    request = replace(request, snapshots=checked_place(request))
    application = digest_of_file(request.application)
    check_attaches(request.application, attaches=request.attaches)
    py_files = digests_of(request.py_files, "py_files")
    files = digests_of(request.files, "files")
    jars = tuple(absolute_jar(jar) for jar in request.jars)
    master = request.master or ("" if request.spark_conn_id else DEFAULT_MASTER)
    code_digest = code_digest_of(
        application,
        py_files=py_files,
        files=files,
        arguments=request.arguments,
        conf=request.conf,
        packages=request.packages,
        jars=jars,
        master=master,
        spark_conn_id=request.spark_conn_id,
        environment=request.environment,
        attaches=request.attaches,
    )
    asked: dict[str, object] = {
        "verb": "deploy",
        "code": code_digest,
        "start": request.start,
        "snapshot_id": request.snapshot_id,
        "discard_state": request.discard_state,
        "fresh_queries": sorted(request.fresh_queries),
        "version_label": request.version_label,
        "settings": None if request.settings is None else _settings_asked(request.settings),
    }
    if request.accept_lost_input:  # as the environment
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
    return ResolvedRequest(request, application, py_files, files, jars, master, code_digest, digest_of(asked))


def _settings_asked(settings: AgentSettings) -> dict[str, object]:
    """Those that were always there, and the later ones where they are not as they are by default."""
    default = asdict(AgentSettings())
    return {
        name: value for name, value in asdict(settings).items() if name in _FIRST_SETTINGS or value != default[name]
    }


def code_digest_of(
    application: Artifact,
    *,
    py_files: Sequence[Artifact],
    files: Sequence[Artifact],
    arguments: Sequence[str],
    conf: Mapping[str, str],
    packages: Sequence[str],
    jars: Sequence[str],
    master: str,
    spark_conn_id: str | None,
    environment: Mapping[str, str],
    attaches: bool,
) -> str:
    """The one digest over what runs; equal for equal runs, whoever asked for them."""
    code: dict[str, object] = {
        "application": asdict(application),
        "py_files": [asdict(artifact) for artifact in py_files],
        "files": [asdict(artifact) for artifact in files],
        "arguments": list(arguments),
        "conf": dict(conf),
        "packages": list(packages),
        "jars": list(jars),
        "master": master,
        "spark_conn_id": spark_conn_id,
    }
    if environment:  # without any, the digest is the one that earlier versions recorded
        code["environment"] = dict(environment)
    if attaches:
        code["attaches"] = True
    return digest_of(code)


def check_attaches(script: Path, *, attaches: bool) -> None:
    """See that a script which is to attach by itself says so somewhere: without that nobody would supervise it.

    Raises:
        InvalidRequestError: it does not.
    """
    if attaches and b"attach" not in script.read_bytes():
        raise InvalidRequestError(
            "this script never says attach, so that nobody would supervise its queries",
            application=str(script),
            next_step="Call airflow_streamstate.driver.attach() in it, or deploy it without --attach.",
        )


def digest_of(value: Mapping[str, object]) -> str:
    """Hex sha256 of a plain JSON object."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def digests_of(paths: tuple[Path, ...], what: str) -> tuple[Artifact, ...]:
    """Files of one kind as they will be pinned; raises as ``digest_of_file``, and where two have the same name."""
    artifacts = tuple(digest_of_file(path) for path in paths)
    names = [artifact.name for artifact in artifacts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidRequestError(
            "two files of this kind have the same name", kind=what, names=twice, next_step="Rename one of them."
        )
    return artifacts


def digest_of_file(path: Path) -> Artifact:
    """A file as it will be pinned.

    Raises:
        InvalidRequestError: it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_READ_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise InvalidRequestError(
            "this file cannot be read",
            path=str(path),
            reason=error.strerror or type(error).__name__,
            next_step="Give the path of a file that exists on this machine.",
        ) from None
    return Artifact(name=path.name, sha256=digest.hexdigest())


def absolute_jar(jar: str) -> str:
    """A local path made absolute; a URI word for word."""
    return jar if ":" in jar else str(Path(jar).absolute())
