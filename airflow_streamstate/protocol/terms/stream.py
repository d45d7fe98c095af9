"""What is recorded of a stream, whatever version it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_streamstate.protocol.alerts import AlertRules
from airflow_streamstate.protocol.ownership import Ownership
from airflow_streamstate.protocol.restarts import RestartPolicy
from airflow_streamstate.protocol.retention import RetentionPolicy


@dataclass(frozen=True)
class StreamTerms:
    """What a deploy changes of its stream; a change takes effect without a restart.

    Attributes:
        restart_policy: values of the stream's ``RestartPolicy`` to change; the others stay as they are.
        alert_rules: the same of its ``AlertRules``.
        owner, labels: of the stream; ``labels`` are all of them. None: as they are.
        retention: all values of the stream's ``RetentionPolicy``; none: no policy. None: as it is.

    Raises:
        InvalidRequestError: a value is malformed.
    """

    restart_policy: Mapping[str, Any] = field(default_factory=dict)
    alert_rules: Mapping[str, Any] = field(default_factory=dict)
    owner: str | None = None
    labels: Mapping[str, str] | None = None
    retention: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        RestartPolicy().changed(self.restart_policy)
        AlertRules().changed(self.alert_rules)
        Ownership().changed(self.owner, self.labels)
        RetentionPolicy.of(self.retention or {})
