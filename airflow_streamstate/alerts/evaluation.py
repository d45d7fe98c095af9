"""What an audience is told of a stream: each alert once when it is raised, and once when it is resolved. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import ClassVar, Literal

from airflow_streamstate.alerts.conditions import Condition, Sight, conditions, growth, sampled
from airflow_streamstate.controller.observe.views import StreamStatus
from airflow_streamstate.controller.wait.waiting import is_healthy
from airflow_streamstate.protocol.alerts import Alert, AlertRules, Owed, Told
from airflow_streamstate.protocol.redaction import shortened
from airflow_streamstate.protocol.views import View

MAX_TEXT_CHARACTERS = 500
TELL_AGAIN_AFTER = timedelta(minutes=5)
"""A message that is owed for so long is told by the next process that looks."""
MAX_OWED = 100
"""So many messages are owed of a stream; the oldest of more are given up."""
_OWN_FAILURES = frozenset({"upgrade_failed", "upgrade_abandoned", "drain_failed", "driver_silent"})
"""Rules that are evaluated while an upgrade, a drain or a stop is under way, too."""
_OF_SILENCE = frozenset({*_OWN_FAILURES, "driver_dead", "gave_up"})
"""Rules that are evaluated of a driver that is silent: what the others look at is unknown then."""


@dataclass(frozen=True)
class AlertChange(View):
    """An alert that was raised or resolved.

    Attributes:
        stream_id: "" for an alert about the home.
        at: when that was seen.
        owner, labels: of the stream.
    """

    form: ClassVar[str] = (
        "message_id kind alert_id=alert.alert_id stream_id deployment_id owner labels rule=alert.rule"
        " subject=alert.subject text=alert.text raised_at=alert.raised_at at"
    )

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

    @property
    def message_id(self) -> str:
        """The same for each repeat of this message, by whichever process."""
        return f"{self.alert.alert_id}/{self.kind}"


def owed_change(status: StreamStatus, owed: Owed) -> AlertChange:
    """The change that a message is about; the stream is told as it is now."""
    return AlertChange(
        owed.kind, status.stream_id, owed.deployment_id, owed.alert, owed.at, status.owner, status.labels
    )


def taken_over(owed: tuple[Owed, ...], by: str, now: datetime) -> tuple[Owed, ...]:
    """The same messages, with those as its own that this process is to tell.

    A process that still tries to tell one says so from time to time, so that no other one takes it over.
    """

    def taken(one: Owed) -> Owed:
        limit = TELL_AGAIN_AFTER / 2 if one.by == by else TELL_AGAIN_AFTER
        return replace(one, by=by, since=now) if not one.by or now - one.since >= limit else one

    return tuple(map(taken, owed))


def evaluate(
    rules: AlertRules, sight: Sight, told: Told, now: datetime, new_id: Callable[[], str], by: str = ""
) -> Told:
    """Compare what is seen of a stream with what was told; what is told and owed afterwards.

    Args:
        told: to this audience, before.
        new_id: makes the ids of alerts.
        by: the process that tells what is new.
    """
    deployment_id = sight.status.deployment_id
    held = {one.key: one for one in conditions(rules, sight, told)}
    unknown: set[tuple[str, str]] = set()
    for rule, name, text in growth(rules, sight, told):
        if text is None:
            unknown.add((rule, name))
        elif text:
            held[rule, name] = Condition(rule, name, text)
    standing, owed = [], list(taken_over(told.owed, by, now))
    for alert in told.standing:
        key = alert.rule, alert.subject
        if key in held or key in unknown or _is_left(sight, alert):
            standing.append(alert)
            held.pop(key, None)
        else:
            owed.append(Owed("resolved", alert, deployment_id, now, by, now))
    for one in held.values():
        text = shortened(one.text, (), MAX_TEXT_CHARACTERS, in_a_line=True)
        alert = Alert(new_id(), one.rule, one.subject, now, text)
        standing.append(alert)
        owed.append(Owed("raised", alert, deployment_id, now, by, now))
    return replace(_followed(rules, sight, told), standing=tuple(standing), owed=tuple(owed[-MAX_OWED:]))


def _is_left(sight: Sight, alert: Alert) -> bool:
    """Whether nothing is said of an alert now, since it is not known whether it holds."""
    if sight.seen is None:
        return True
    if alert.rule == "upgrade_failed":
        return bool(sight.status.upgrade)  # another one is under way: its end says
    if alert.rule == "driver_dead" and sight.status.state in ("launching", "running") and not is_healthy(sight.seen):
        return True  # a driver that was started may fail like the one before
    if alert.rule == "driver_silent" and sight.is_home_just_back and sight.status.state == "silent":
        return True
    if sight.status.state == "silent" and alert.rule not in _OF_SILENCE:
        return True
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
