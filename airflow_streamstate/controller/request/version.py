"""A version of a stream's code: the script, its files, arguments and configuration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from typing import Any

from airflow_streamstate.protocol.records import (
    Artifact,
    DeploymentSpec,
    LauncherChoice,
    OnQueryFailure,
    StartPlan,
)
from airflow_streamstate.protocol.settings import AgentSettings


@dataclass(frozen=True)
class Version:
    """What a ``DeploymentSpec`` runs, without its deployment, start and time; ``settings``: None for the home's."""

    application: Artifact
    arguments: tuple[str, ...]
    master: str
    conf: Mapping[str, str]
    py_files: tuple[Artifact, ...]
    files: tuple[Artifact, ...]
    packages: tuple[str, ...]
    settings: AgentSettings | None
    spark_conn_id: str | None = None
    jars: tuple[Artifact | str, ...] = ()
    version_label: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    attaches: bool = False
    mirrors: tuple[str, ...] = ()
    snapshots: str = ""
    on_query_failure: OnQueryFailure = "script"
    modules: tuple[Artifact, ...] = ()
    script_path: str = ""
    working_folder: str = ""
    launcher: LauncherChoice | None = None
    code_digest: str = ""

    @classmethod
    def of(cls, spec: DeploymentSpec) -> Version:
        """The version that a recorded deployment runs."""
        return cls(**{each.name: getattr(spec, each.name) for each in fields(cls)})

    def digested(self) -> Version:
        """With ``code_digest``, one digest over the code, equal for equal versions."""
        code: dict[str, object] = {
            "application": asdict(self.application),
            "py_files": [asdict(artifact) for artifact in self.py_files],
            "files": [asdict(artifact) for artifact in self.files],
            "arguments": list(self.arguments),
            "conf": dict(self.conf),
            "packages": list(self.packages),
            "jars": [jar if isinstance(jar, str) else asdict(jar) for jar in self.jars],
            "master": self.master,
            "spark_conn_id": self.spark_conn_id,
            "environment": dict(self.environment),
            "attaches": self.attaches,
            "launcher": None if self.launcher is None else asdict(self.launcher),
            "modules": [asdict(artifact) for artifact in self.modules],
        }
        return replace(self, code_digest=digest_of(code))

    def as_spec(
        self,
        *,
        stream_id: str,
        deployment_id: str,
        fencing_token: int,
        start: StartPlan,
        checkpoints_uri: str,
        default: AgentSettings,
        request_id: str,
        requested_by: str,
        reason: str,
        created_at: datetime,
    ) -> DeploymentSpec:
        """The record of a deployment of this version; ``default``: the settings where the version has none."""
        own: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        own["conf"], own["environment"] = dict(self.conf), dict(self.environment)
        own["settings"] = self.settings or default
        own["snapshots"] = "" if self.snapshots == checkpoints_uri else self.snapshots
        return DeploymentSpec(
            stream_id=stream_id,
            deployment_id=deployment_id,
            fencing_token=fencing_token,
            start=start,
            checkpoints_uri=checkpoints_uri,
            request_id=request_id,
            requested_by=requested_by,
            reason=reason,
            created_at=created_at,
            **own,
        )


def digest_of(value: Mapping[str, object]) -> str:
    """Hex sha256 of a plain JSON object."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
