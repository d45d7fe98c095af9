"""What is recorded of a stream, whatever version it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.alerts import AlertRules
from airflow_streamstate.protocol.ownership import Ownership
from airflow_streamstate.protocol.restarts import RestartPolicy
from airflow_streamstate.protocol.retention import RetentionPolicy
from airflow_streamstate.protocol.terms.declaration import term

_OF_ITS_OWN = "`streamstate {verb}` changes it"


@dataclass(frozen=True)
class StreamTerms:
    """What a deploy changes of its stream. No driver is replaced for it.

    Attributes:
        restart_policy, alert_rules: values to change; the others stay as they are.
        retention: all values of the stream's ``RetentionPolicy``; none: no policy. None: as it is.
        labels: all of them. None: as they are.

    Raises:
        InvalidRequestError: a value is malformed.
    """

    restart_policy: Mapping[str, Any] = term(
        {},
        help="what watchers do when a driver of the stream fails",
        part=RestartPolicy,
        names={"files": "restart", "operators": "restart"},
        changes="stream",
    )
    alert_rules: Mapping[str, Any] = term(
        {},
        help="when people are told of the stream",
        part=AlertRules,
        names={"files": "alerts", "operators": "alerts"},
        changes="stream",
        in_shell=_OF_ITS_OWN.format(verb="alerts"),
    )
    owner: str | None = term(
        None,
        help="a person or a team; alerts, `streamstate status` and the page name it",
        names={"operators": "stream_owner"},
        changes="stream",
        in_shell=_OF_ITS_OWN.format(verb="label"),
    )
    labels: Mapping[str, str] | None = term(
        None,
        help="all labels of the stream by name, for --canary, `streamstate list --label`, the page and metrics",
        changes="stream",
        in_shell=_OF_ITS_OWN.format(verb="label"),
    )
    retention: Mapping[str, Any] | None = term(
        None,
        help="which snapshots of the stream stay when it is pruned, by watchers too",
        part=RetentionPolicy,
        changes="stream",
        in_shell=_OF_ITS_OWN.format(verb="snapshot retention"),
    )

    def __post_init__(self) -> None:
        RestartPolicy().changed(self.restart_policy)
        AlertRules().changed(self.alert_rules)
        Ownership().changed(self.owner, self.labels)
        RetentionPolicy.of(self.retention or {})
