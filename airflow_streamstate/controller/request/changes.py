"""A change of what a stream runs: what it names is new, all else stays as the current deployment has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from airflow_streamstate.control.artifacts import pin
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.controller.request.resolved_request import (
    ResolvedRequest,
    Return,
    absolute_jar,
    check_attaches,
    code_digest_of,
    digest_of,
    digest_of_file,
    digests_of,
)
from airflow_streamstate.protocol.records import Artifact, DeploymentSpec, OnQueryFailure, StartMode
from airflow_streamstate.store.base import Store

_NO_SCRIPT = Path("script.py")


class Change(Protocol):
    """What is to run next, however it is known."""

    @property
    def stream_id(self) -> str:
        """The stream."""

    @property
    def reason(self) -> str:
        """For people."""

    @property
    def fresh_queries(self) -> tuple[str, ...]:
        """Queries that may start with nothing although the snapshot does not know them."""

    @property
    def digest(self) -> str:
        """Over all that it asks for."""

    def as_deploy_request(self) -> DeployRequest:
        """What it says, as a request to deploy says it."""

    def applied_to(self, before: DeploymentSpec, home: Store) -> DeploymentSpec:
        """The record of what would run; ids, start and times are those of ``before``."""


@dataclass(frozen=True)
class ChangeRequest:
    """What is to change; None for what stays.

    Attributes:
        stream_id: the stream.
        application: local path of the new script.
        arguments: its arguments, all of them.
        conf: Spark's configuration, laid over that of the current deployment, key by key.
        environment: variables of the driver, in the same way.
        master, spark_conn_id: one takes the place of the other.
        py_files, files, packages, jars: all of a kind.
        fresh_queries: queries that may start with nothing although the snapshot does not know them.
        accept_lost_input: queries that may go on although input behind their offsets cannot be read any more.
        discard_state: drop state that a drain could not flush (Law 16).
        allow_literal_secrets: values under secret-like names may be recorded in the home as they are.
        version_label: the user's own name of the version; None: none for another script, else that of the current one.
        on_query_failure: as in ``DeploymentSpec``.
        reason: for people.

    Raises:
        InvalidRequestError: something of it cannot be.
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
    accept_lost_input: tuple[str, ...] = ()
    discard_state: bool = False
    allow_literal_secrets: bool = False
    version_label: str | None = None
    on_query_failure: OnQueryFailure | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        self.as_deploy_request()

    def as_deploy_request(self) -> DeployRequest:
        """What it says, as a request to deploy says it: checked by the same rules, decided by the same functions."""
        given: dict[str, Any] = {name: value for name, value in vars(self).items() if value is not None}
        return DeployRequest(**{"application": _NO_SCRIPT, **given})

    def applied_to(self, before: DeploymentSpec, home: Store) -> DeploymentSpec:
        """As ``changed``."""
        return changed(before, self, home)

    @property
    def digest(self) -> str:
        """Over all that it asks for; raises InvalidRequestError where a file cannot be read."""
        asked: dict[str, object] = {**vars(self), "conf": dict(self.conf), "environment": dict(self.environment)}
        asked["application"] = None if self.application is None else asdict(digest_of_file(self.application))
        for what in ("py_files", "files"):
            paths = getattr(self, what)
            asked[what] = None if paths is None else [asdict(found) for found in digests_of(paths, what)]
        for name in ("version_label", "on_query_failure"):
            if asked[name] is None:  # as what earlier versions recorded
                del asked[name]
        return digest_of({"verb": "change", **asked})


@dataclass(frozen=True)
class PinnedVersion:
    """A version whose record is there, and whose files lie in the home (Law 15).

    Attributes:
        spec: its record; ids, start and times of it count for nothing.
        fresh_queries, accept_lost_input, discard_state, reason: as in ``ChangeRequest``.
        start: "fresh" to begin with nothing; None for what the end of the current deployment decides.
    """

    spec: DeploymentSpec
    fresh_queries: tuple[str, ...] = ()
    accept_lost_input: tuple[str, ...] = ()
    discard_state: bool = False
    reason: str = ""
    start: StartMode | None = None

    @property
    def stream_id(self) -> str:
        """The stream."""
        return self.spec.stream_id

    @property
    def digest(self) -> str:
        """Over all that it asks for."""
        asked = [self.discard_state, self.start, *sorted(self.fresh_queries), None, *sorted(self.accept_lost_input)]
        return digest_of({"verb": "pinned", "code": self.spec.code_digest, "asked": asked})

    def as_deploy_request(self) -> DeployRequest:
        """As a request to deploy says it; its paths are the names of pinned files."""
        spec = self.spec
        return DeployRequest(
            stream_id=spec.stream_id,
            application=Path(spec.application.name),
            arguments=spec.arguments,
            master=spec.master or None,
            conf=spec.conf,
            py_files=tuple(Path(artifact.name) for artifact in spec.py_files),
            files=tuple(Path(artifact.name) for artifact in spec.files),
            packages=spec.packages,
            jars=spec.jars,
            start=self.start,
            discard_state=self.discard_state,
            fresh_queries=self.fresh_queries,
            accept_lost_input=self.accept_lost_input,
            reason=self.reason,
            version_label=spec.version_label,
            spark_conn_id=spec.spark_conn_id,
            settings=spec.settings,
            environment=spec.environment,
            attaches=spec.attaches,
            mirrors=spec.mirrors,
            snapshots=spec.snapshots,
            on_query_failure=spec.on_query_failure,
            allow_literal_secrets=True,  # as it was recorded
        )

    def applied_to(self, before: DeploymentSpec, home: Store) -> DeploymentSpec:  # noqa: ARG002 - all is pinned
        """Its own record."""
        return self.spec

    def wish(self, returns: Return | None = None, rehearsal_id: str | None = None) -> ResolvedRequest:
        """The wish to deploy it.

        Args:
            returns: it goes back to where the current deployment had begun.
            rehearsal_id: of a driver that waits to be it.
        """
        spec = self.spec
        return ResolvedRequest(
            request=self.as_deploy_request(),
            application=spec.application,
            py_files=spec.py_files,
            files=spec.files,
            jars=spec.jars,
            master=spec.master,
            code_digest=spec.code_digest,
            request_digest=self.digest,
            is_pinned=True,
            returns=returns,
            rehearsal_id=rehearsal_id,
        )


def changed(before: DeploymentSpec, request: ChangeRequest, home: Store) -> DeploymentSpec:
    """The record of what would run, its files pinned (Law 15); ids, start and times are those of ``before``.

    Raises:
        InvalidRequestError: a file cannot be read, or two files of one kind have the same name.
    """
    application = before.application
    if request.application is not None:
        check_attaches(request.application, attaches=before.attaches)
        application = pin(home, request.stream_id, request.application)
    master, spark_conn_id = _where(before, request)
    spec = replace(
        before,
        application=application,
        arguments=before.arguments if request.arguments is None else request.arguments,
        conf={**before.conf, **request.conf},
        environment={**before.environment, **request.environment},
        py_files=_pinned(home, request, "py_files", before.py_files),
        files=_pinned(home, request, "files", before.files),
        packages=before.packages if request.packages is None else request.packages,
        jars=before.jars if request.jars is None else tuple(absolute_jar(jar) for jar in request.jars),
        master=master,
        spark_conn_id=spark_conn_id,
        version_label=_label(before, request),
        on_query_failure=request.on_query_failure or before.on_query_failure,
    )
    return replace(
        spec,
        code_digest=code_digest_of(
            spec.application,
            py_files=spec.py_files,
            files=spec.files,
            arguments=spec.arguments,
            conf=spec.conf,
            packages=spec.packages,
            jars=spec.jars,
            master=spec.master,
            spark_conn_id=spec.spark_conn_id,
            environment=spec.environment,
            attaches=spec.attaches,
        ),
    )


def _pinned(home: Store, request: ChangeRequest, what: str, before: tuple[Artifact, ...]) -> tuple[Artifact, ...]:
    paths: tuple[Path, ...] | None = getattr(request, what)
    if paths is None:
        return before
    digests_of(paths, what)  # refuses two of one name
    return tuple(pin(home, request.stream_id, path) for path in paths)


def _label(before: DeploymentSpec, request: ChangeRequest) -> str:
    if request.version_label is not None:
        return request.version_label
    return before.version_label if request.application is None else ""


def _where(before: DeploymentSpec, request: ChangeRequest) -> tuple[str, str | None]:
    if request.spark_conn_id is not None:
        return request.master or "", request.spark_conn_id
    if request.master is not None:
        return request.master, None
    return before.master, before.spark_conn_id
