"""What an audience is told of a stream: each alert once when it is raised, and once when it is resolved. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from airflow_streamstate.alerts.conditions import Condition, Sight, conditions, growth, sampled
from airflow_streamstate.protocol.alerts import Alert, AlertRules, Told
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.redaction import shortened

MAX_TEXT_CHARACTERS = 500
_OWN_FAILURES = frozenset({"upgrade_failed", "drain_failed"})


@dataclass(frozen=True)
class AlertChange:
    """An alert that was raised or resolved.

    Attributes:
        stream_id: "" for an alert about the home.
        at: when that was seen.
        owner, labels: of the stream.
    """

    kind: Literal["raised", "resolved"]
    stream_id: str
    deployment_id: str
    alert: Alert
    at: datetime
    owner: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """One line for people."""
        what = self.stream_id or "the home"
        return f"{what}: {self.words}" if self.kind == "raised" else f"{what}: resolved: {self.words}"

    @property
    def words(self) -> str:
        """The rule, its text, and the owner of the stream."""
        owner = f" (owner {self.owner})" if self.owner else ""
        return f"{self.alert.rule}: {self.alert.text}{owner}"

    def to_json(self) -> dict[str, object]:
        """``kind alert_id stream_id deployment_id owner labels rule subject text raised_at at``."""
        return {
            "kind": self.kind,
            "alert_id": self.alert.alert_id,
            "stream_id": self.stream_id,
            "deployment_id": self.deployment_id,
            "owner": self.owner,
            "labels": dict(self.labels),
            "rule": self.alert.rule,
            "subject": self.alert.subject,
            "text": self.alert.text,
            "raised_at": format_time(self.alert.raised_at),
            "at": format_time(self.at),
        }


@dataclass(frozen=True)
class Evaluation:
    """What is to be told, and what was told afterwards."""

    changes: tuple[AlertChange, ...]
    told: Told


def evaluate(rules: AlertRules, sight: Sight, told: Told, now: datetime, new_id: Callable[[], str]) -> Evaluation:
    """Compare what is seen of a stream with what was told.

    Args:
        told: to this audience, before.
        new_id: makes the ids of alerts.
    """
    held = {one.key: one for one in conditions(rules, sight, told)}
    unknown: set[tuple[str, str]] = set()
    for rule, name, text in growth(rules, sight, told):
        if text is None:
            unknown.add((rule, name))
        elif text:
            held[rule, name] = Condition(rule, name, text)
    standing, changes = [], []
    for alert in told.standing:
        key = alert.rule, alert.subject
        if key in held or key in unknown or _is_left(sight, alert):
            standing.append(alert)
            held.pop(key, None)
        else:
            changes.append(_change("resolved", sight, alert, now))
    for one in held.values():
        text = shortened(one.text, (), MAX_TEXT_CHARACTERS, in_a_line=True)
        alert = Alert(new_id(), one.rule, one.subject, now, text)
        standing.append(alert)
        changes.append(_change("raised", sight, alert, now))
    return Evaluation(tuple(changes), replace(_followed(rules, sight, told), standing=tuple(standing)))


def _change(kind: Literal["raised", "resolved"], sight: Sight, alert: Alert, now: datetime) -> AlertChange:
    status = sight.status
    return AlertChange(kind, status.stream_id, status.deployment_id, alert, now, status.owner, status.labels)


def _is_left(sight: Sight, alert: Alert) -> bool:
    """Whether nothing is said of an alert now, since it is not known whether it holds."""
    if sight.seen is None:
        return True
    if alert.rule == "upgrade_failed":
        return bool(sight.status.upgrade)  # another one is under way: its end says
    return sight.is_changing and alert.rule not in _OWN_FAILURES


def _followed(rules: AlertRules, sight: Sight, told: Told) -> Told:
    """What the next evaluation compares with."""
    if sight.seen is None:
        return told
    status = sight.status
    under_way = str(sight.seen.register.upgrade_id) if status.upgrade else ""
    found = replace(
        told,
        deployment_id=status.deployment_id,
        attempt=status.attempt,
        upgrade_id=under_way,
        failed_upgrade_id=next(iter(sight.failed_upgrade), ""),
    )
    if sight.is_changing:
        return replace(found, lag_samples={}, state_samples={})
    is_same = told.deployment_id == status.deployment_id
    lag, state = (told.lag_samples, told.state_samples) if is_same else ({}, {})
    return replace(
        found,
        lag_samples=sampled(lag, sight, rules.lag_growing_seconds if rules.has("lag_growing") else None),
        state_samples=sampled(state, sight, rules.state_growing_seconds if rules.has("state_growing") else None),
    )
