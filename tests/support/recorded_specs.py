"""Records of deployments that run another version."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_streamstate.protocol.records import DeploymentSpec


def with_version(spec: DeploymentSpec, **terms: Any) -> DeploymentSpec:
    """The same record, with these terms of its version changed."""
    return replace(spec, version=replace(spec.version, **terms))
