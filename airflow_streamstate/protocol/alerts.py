"""When a stream is alerted about: its rules, and what was said of it; both in one register of the stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from difflib import get_close_matches
from typing import Any, ClassVar, Literal, get_args

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import Message, message
from airflow_streamstate.protocol.fields import (
    Attempt,
    DeploymentIdOrNone,
    QueryName,
    Seconds,
    StreamId,
    UpgradeIdOrNone,
)
from airflow_streamstate.protocol.terms.declaration import check_names, check_terms, term, terms_of

RuleName = Literal[
    "driver_dead", "driver_silent", "query_died", "gave_up", "no_commit", "lag", "lag_growing", "watermark",
    "state_rows", "state_memory", "state_growing", "snapshot_age", "upgrade_failed", "upgrade_abandoned",
    "drain_failed", "unreadable",
]  # fmt: skip
RULES: tuple[RuleName, ...] = get_args(RuleName)
_MOST = 2.0**53
_MOST_SECONDS = 315_360_000.0


def alert_values(given: Mapping[str, object]) -> dict[str, Any]:
    """Values of alert rules that were given as text: numbers, ``none`` for no threshold, and for ``off`` the names of
    rules. What is unknown or no number stays as it is: ``AlertRules.changed`` refuses it."""
    return {name: _off(value) if name == "off" else _threshold(name, value) for name, value in given.items()}


def _off(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(filter(None, (one.strip() for one in value.split(","))))
    if value is None:
        return ()
    return tuple(map(str, value)) if isinstance(value, Sequence) else (str(value),)


def _threshold(name: str, value: object) -> object:
    if not isinstance(value, str):
        return value
    if value.strip().lower() in ("none", ""):
        return None
    try:
        return int(value) if _KINDS.get(name) == "whole" else float(value)
    except ValueError:
        return value


@dataclass(frozen=True)
class AlertRules:
    """The rules of a stream. A rule whose threshold is None is not evaluated, but for ``snapshot_age_seconds``."""

    driver_silent_seconds: Seconds | None = term(
        120.0, help="a driver lives and has given no sign of life for so long", most=_MOST_SECONDS
    )
    no_commit_seconds: Seconds | None = term(
        900.0,
        help="a query with input left has committed nothing for so long, and for three batches",
        most=_MOST_SECONDS,
    )
    lag_over: int | None = term(
        None,
        help="a query is further behind, in the unit of its source: rows, files, versions, bytes",
        least=0,
        most=_MOST,
    )
    lag_growing_seconds: Seconds | None = term(
        600.0, help="a query has fallen further behind over so long", most=_MOST_SECONDS
    )
    watermark_behind_seconds: Seconds | None = term(
        None, help="a watermark is further behind the driver's clock", most=_MOST_SECONDS
    )
    state_rows_over: int | None = term(None, help="the state of a query has more rows", least=0, most=_MOST)
    state_memory_bytes_over: int | None = term(
        None, help="the state of a query takes more memory, as Spark reports it", least=0, most=_MOST
    )
    state_growing_seconds: Seconds | None = term(
        3600.0, help="over so long the state of a query got more new rows than the query read", most=_MOST_SECONDS
    )
    snapshot_age_seconds: Seconds | None = term(
        None,
        help="the newest snapshot of a running stream is older. By default three times its schedule of snapshots, if it"
        " has one",
        most=_MOST_SECONDS,
    )
    off: tuple[str, ...] = term((), help="names of rules that are not evaluated")

    def has(self, rule: RuleName) -> bool:
        """Whether this rule is evaluated, as far as ``off`` says."""
        return rule not in self.off

    def changed(self, given: Mapping[str, Any]) -> AlertRules:
        """The rules with these values in place of their own.

        Raises:
            InvalidRequestError: there is no such value or rule, or a value is out of its range.
        """
        check_names(AlertRules, given, "the alert rules have no such value")
        found = replace(self, **given)
        found._check()
        return found

    def _check(self) -> None:
        check_rules(self.off)
        check_terms(self)


_KINDS = {one.name: one.kind for one in terms_of(AlertRules)}


def check_rules(names: tuple[str, ...]) -> tuple[str, ...]:
    """The same names of rules. Raises InvalidRequestError: there is no such rule."""
    for name in names:
        if name not in RULES:
            near = get_close_matches(str(name), RULES, 1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise InvalidRequestError(
                "there is no such alert rule", name=str(name)[:60], next_step=f"{hint}There are {', '.join(RULES)}."
            )
    return names


@dataclass(frozen=True)
class Alert:
    """One alert that stands.

    Attributes:
        alert_id: unique; the resolved alert has the same.
        rule: the name of its rule.
        subject: the query, upgrade or drain that it is about; "" for the whole stream.
        text: one line, without secrets.
    """

    alert_id: str
    rule: str
    subject: str
    raised_at: datetime
    text: str


@dataclass(frozen=True)
class GrowthSample:
    """What a query was like at one moment, by the driver's clock; what grows is compared with it.

    Attributes:
        lag: the smallest lag of its newest batches, by unit.
        state_rows, input_rows_per_second: None where unknown.
    """

    at: datetime
    lag: Mapping[str, int] = field(default_factory=dict)
    state_rows: int | None = None
    input_rows_per_second: float | None = None


@dataclass(frozen=True)
class Owed:
    """A message about an alert that is decided, and not known to be told.

    Attributes:
        at: when the alert was seen to be raised or resolved.
        by: the process that tells it; "" for the next one that looks.
        since: since when that process does: another one takes over what is owed for too long.
    """

    kind: Literal["raised", "resolved"]
    alert: Alert
    deployment_id: DeploymentIdOrNone
    at: datetime
    by: str
    since: datetime


@dataclass(frozen=True)
class Told:
    """What one audience was told of a stream, and what the next evaluation compares with.

    Attributes:
        deployment_id, attempt: what was current at the last evaluation.
        upgrade_id: the upgrade that was under way then; "" for none.
        failed_upgrade_id: the last upgrade that did not end as asked, while its stream stays as it left it.
        standing: the alerts that stand.
        owed: what is still to be told of them, and of those that were resolved, oldest first.
        lag_samples, state_samples: per query, the older and the newer sample of each rule about growth.
    """

    deployment_id: DeploymentIdOrNone = ""
    attempt: Attempt = 0
    upgrade_id: UpgradeIdOrNone = ""
    failed_upgrade_id: UpgradeIdOrNone = ""
    standing: tuple[Alert, ...] = ()
    owed: tuple[Owed, ...] = ()
    lag_samples: Mapping[QueryName, tuple[GrowthSample, ...]] = field(default_factory=dict)
    state_samples: Mapping[QueryName, tuple[GrowthSample, ...]] = field(default_factory=dict)


@message
@dataclass(frozen=True)
class AlertRegister(Message):
    """The alert rules of a stream, and what each audience was told. Changed by compare-and-swap only.

    Attributes:
        audiences: by name, such as ``watch`` or ``airflow``: each is told every alert once, however many tell it.
        write_id: unique per write, so that a writer recognises its own (Law 8).
    """

    is_signed: ClassVar[bool] = True

    stream_id: StreamId
    write_id: str
    updated_at: datetime
    updated_by: str
    rules: AlertRules = field(default_factory=AlertRules)
    audiences: Mapping[str, Told] = field(default_factory=dict)
