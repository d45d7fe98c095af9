"""The request to deploy a stream, checked as far as that needs no home."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow_streamstate.checkpoint.moved_sources import plain_moves
from airflow_streamstate.controller.observe.snapshot_age import check_max_age
from airflow_streamstate.controller.request.literal_secrets import (
    check_attached_arguments,
    check_local_paths,
    check_plain_uris,
    check_secrets,
)
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.interface import LOCAL
from airflow_streamstate.protocol.alerts import AlertRules
from airflow_streamstate.protocol.ids import check_id, check_stream_id, encode_query_name
from airflow_streamstate.protocol.moved_sources import check_moves
from airflow_streamstate.protocol.ownership import Ownership
from airflow_streamstate.protocol.records import (
    ON_QUERY_FAILURE,
    LauncherChoice,
    OnQueryFailure,
    StartMode,
    StateRewrite,
)
from airflow_streamstate.protocol.restarts import RestartPolicy
from airflow_streamstate.protocol.retention import RetentionPolicy
from airflow_streamstate.protocol.settings import AgentSettings

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
START_MODES: tuple[StartMode, ...] = ("restore", "seed", "fresh")


@dataclass(frozen=True)
class DeployRequest:
    """A request to make a script the next version of a stream.

    Attributes:
        application: local path of the script, unmodified.
        arguments: the script's arguments; one may be a reference to a secret (``protocol.references``), alone or after
            ``--name=``.
        master: Spark's master URL; None for that of ``spark_conn_id``, or for ``local[*]``.
        conf: Spark's configuration; a value may be a reference to a secret.
        environment: additional variables of the driver; a value may be a reference to a secret.
        allow_literal_secrets: values under secret-like names may be recorded in the home as they are.
        py_files, files: local files, pinned like the script; ``py_files`` are modules, zips, eggs, wheels, or folders.
        modules: globs below the script's folder: what is pinned of it; None for what the script imports from there.
        working_folder: absolute folder in which its drivers run; None for that of the version before, or of a first
            version for the current folder.
        packages: Maven coordinates.
        jars: local paths, also with wildcards, pinned like the script; or URIs, word for word.
        start: None: the snapshot at the predecessor's end decides; a stream's first deployment starts fresh.
        snapshot_id: the expected start snapshot: a check, not a choice (1a.9).
        discard_state: drop state that the drain could not flush (Law 16).
        fresh_queries: queries that may start with nothing although the snapshot does not have them.
        renamed_queries: by the name that the snapshot has, the name that the script gives the query now.
        moved_sources: where folders of file sources were at the snapshot, and where the same files are now.
        accept_lost_input: queries that may go on although input after their offsets cannot be read any more.
        reason, version_label: shown to people.
        spark_conn_id: the Airflow connection whose spark-submit launches the driver.
        settings: of the agent in the driver; None for the defaults of the home.
        assume_dead: take over from a driver of unknown state.
        mirrors: URIs of places that the agent copies snapshots to.
        snapshots: the URI of the place of its snapshots; "" for with its checkpoints, "none" for no snapshots while it
            runs.
        rewrite: how the state is written anew, of an upgrade; None for as it is.
        request_id: the same for all tries of one request (Law 2); None for a new one.
        attaches: the script itself is submitted, its arguments on the command line, and calls ``driver.attach()``.
        max_snapshot_age_seconds: refuse to start from an older snapshot; None for no bound.
        offsets: for a seed: the start offset of each source by query, in Spark's format and the snapshot's order.
        begins_at: for a seed: every query starts with the input of this time instead.
        accept_repeated_input: queries that may read input again.
        accept_hazards: continue the state by a hazardous plan; a difference that needs a drain still needs it (Law 17).
        revives: deploy although the stream was retired.
        on_query_failure: what a failed query does to the others, as in ``DeploymentSpec``.
        launcher: what starts the drivers; None for this machine. A local path in its option ``python_env`` is pinned.
        restart_policy: values of the stream's ``RestartPolicy`` to change; the others stay as they are.
        alert_rules: the same of its ``AlertRules``.
        owner, labels: of the stream; ``labels`` are all of them. None: as they are.
        retention: all values of the stream's ``RetentionPolicy``; none: no policy. None: as it is.

    Raises:
        InvalidRequestError: a value is malformed, or two of them contradict each other.
    """

    stream_id: str
    application: Path
    arguments: tuple[str, ...] = ()
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    py_files: tuple[Path, ...] = ()
    files: tuple[Path, ...] = ()
    packages: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()
    start: StartMode | None = None
    snapshot_id: str | None = None
    discard_state: bool = False
    fresh_queries: tuple[str, ...] = ()
    renamed_queries: Mapping[str, str] = field(default_factory=dict)
    moved_sources: Mapping[str, str] = field(default_factory=dict)
    accept_lost_input: tuple[str, ...] = ()
    reason: str = ""
    version_label: str = ""
    spark_conn_id: str | None = None
    settings: AgentSettings | None = None
    assume_dead: bool = False
    request_id: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    allow_literal_secrets: bool = False
    attaches: bool = False
    max_snapshot_age_seconds: float | None = None
    offsets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    begins_at: datetime | None = None
    accept_repeated_input: tuple[str, ...] = ()
    accept_hazards: bool = False
    mirrors: tuple[str, ...] = ()
    snapshots: str = ""
    revives: bool = False
    on_query_failure: OnQueryFailure = "script"
    modules: tuple[str, ...] | None = None
    working_folder: Path | None = None
    rewrite: StateRewrite | None = None
    restart_policy: Mapping[str, Any] = field(default_factory=dict)
    launcher: LauncherChoice | None = None
    alert_rules: Mapping[str, Any] = field(default_factory=dict)
    owner: str | None = None
    labels: Mapping[str, str] | None = None
    retention: Mapping[str, Any] | None = None

    @property
    def begins_elsewhere(self) -> bool:
        """Whether it starts at other offsets than its predecessor's end."""
        return bool(self.offsets) or self.begins_at is not None

    def __post_init__(self) -> None:
        check_stream_id(self.stream_id)
        self._check_texts()
        self._check_environment()
        check_secrets(self.conf, self.arguments, self.environment, may_be_literal=self.allow_literal_secrets)
        check_plain_uris(jars=self.jars, packages=self.packages, master=(self.master or "",))
        check_local_paths(application=(self.application,), py_files=self.py_files, files=self.files)
        check_max_age(self.max_snapshot_age_seconds)
        RestartPolicy().changed(self.restart_policy)
        AlertRules().changed(self.alert_rules)
        Ownership().changed(self.owner, self.labels)
        RetentionPolicy.of(self.retention or {})
        if self.working_folder is not None and not self.working_folder.is_absolute():
            raise InvalidRequestError(
                "the working folder must be an absolute path",
                working_folder=str(self.working_folder),
                next_step="Give the whole path: it is the same wherever a driver is launched from.",
            )
        if self.request_id is not None:
            check_id(self.request_id, "request id")
        if self.snapshot_id is not None:
            check_id(self.snapshot_id, "snapshot id")
        if self.start is not None and self.start not in START_MODES:
            raise InvalidRequestError(
                "unknown start mode", start=str(self.start)[:60], next_step="Use restore, seed or fresh."
            )
        if self.on_query_failure not in ON_QUERY_FAILURE:
            raise InvalidRequestError(
                "unknown value of on_query_failure",
                on_query_failure=str(self.on_query_failure)[:60],
                next_step="Use degrade, fail or script (the default).",
            )
        if self.start == "fresh" and self.snapshot_id is not None:
            raise InvalidRequestError(
                "a fresh start takes nothing from a snapshot",
                snapshot_id=self.snapshot_id,
                next_step="Leave out the snapshot, or the fresh start.",
            )
        if self.attaches:
            check_attached_arguments(self.arguments)
        if self.launcher is not None:
            self._check_launcher(self.launcher)
        self._check_elsewhere()
        check_moves(plain_moves(self.moved_sources))
        named = (*self.renamed_queries, *self.renamed_queries.values(), *self.fresh_queries)
        for query_name in (*named, *self.accept_lost_input, *self.accept_repeated_input, *self.offsets):
            encode_query_name(query_name)

    def _check_launcher(self, launcher: LauncherChoice) -> None:
        if self.spark_conn_id is not None and launcher.name != LOCAL:
            raise InvalidRequestError(
                "a Spark connection starts drivers on this machine, and a launcher starts them elsewhere",
                launcher=launcher.name,
                spark_conn_id=self.spark_conn_id,
                next_step="Give one of them.",
            )
        try:
            json.dumps(launcher.options, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError):
            raise InvalidRequestError(
                "the options of a launcher must be plain JSON",
                launcher=launcher.name,
                next_step="Use texts, numbers, lists and objects, as in YAML.",
            ) from None

    def _check_elsewhere(self) -> None:
        if not self.begins_elsewhere:
            return
        if self.start != "seed":
            raise InvalidRequestError(
                "only a seed can begin elsewhere: state belongs to the offsets that it was built from",
                start=self.start,
                next_step="Say --start seed, or leave out the offsets and the time.",
            )
        if self.offsets and self.begins_at is not None:
            raise InvalidRequestError(
                "offsets and a time exclude each other", next_step="Give the offsets, or the time."
            )
        if self.begins_at is not None and self.begins_at.utcoffset() is None:
            raise InvalidRequestError(
                "this time has no time zone", begins_at=str(self.begins_at), next_step="End it with Z, or +01:00."
            )

    def _check_environment(self) -> None:
        for name, value in self.environment.items():
            if not _VARIABLE.fullmatch(name) or "\0" in value:
                raise InvalidRequestError(
                    "this environment variable cannot be given to a driver",
                    name=name[:60],
                    next_step="Use letters, digits and _ in its name, and no zero byte in its value.",
                )

    def _check_texts(self) -> None:
        """Refuse texts that cannot be recorded as UTF-8 (Law 15)."""
        for name, value in vars(self).items():
            parts = [*value, *value.values()] if isinstance(value, Mapping) else value
            for part in parts if isinstance(parts, list | tuple) else [parts]:
                if isinstance(part, str | Path) and not _is_text(str(part)):
                    raise InvalidRequestError(
                        "this text is not valid UTF-8 and cannot be recorded",
                        what=name,
                        next_step="Give valid text; if it is the name of a file, rename the file.",
                    )


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
