"""What is recorded of a stream besides its versions: alert rules, restarts, retention, owner and labels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from difflib import get_close_matches
from typing import Any, ClassVar, Literal, get_args

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import (
    Attempt,
    Count,
    DeploymentId,
    DeploymentIdOrNone,
    Message,
    QueryName,
    Seconds,
    SnapshotId,
    StreamId,
    UpgradeIdOrNone,
    Word,
    message,
)
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.protocol.manifest import SnapshotSlot
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
        120.0, help="a driver lives and has given no sign of life for this long", most=_MOST_SECONDS
    )
    no_commit_seconds: Seconds | None = term(
        900.0,
        help="a query with input left has committed nothing for this long, and for three batches",
        most=_MOST_SECONDS,
    )
    lag_over: int | None = term(
        None,
        help="a query is further behind, in the unit of its source: rows, files, versions, bytes",
        least=0,
        most=_MOST,
    )
    lag_growing_seconds: Seconds | None = term(
        600.0, help="for this long a query has fallen further behind", most=_MOST_SECONDS
    )
    watermark_behind_seconds: Seconds | None = term(
        None, help="a watermark is further behind the driver's clock", most=_MOST_SECONDS
    )
    state_rows_over: int | None = term(None, help="the state of a query has more rows", least=0, most=_MOST)
    state_memory_bytes_over: int | None = term(
        None, help="the state of a query takes more memory, as Spark reports it", least=0, most=_MOST
    )
    state_growing_seconds: Seconds | None = term(
        3600.0, help="within this time the state of a query got more new rows than the query read", most=_MOST_SECONDS
    )
    snapshot_age_seconds: Seconds | None = term(
        None,
        help="the newest snapshot of a running stream is older. By default three times its schedule of snapshots, if it"
        " has one",
        most=_MOST_SECONDS,
    )
    off: tuple[str, ...] = term((), help="names of rules that are not evaluated")

    def has(self, rule: RuleName) -> bool:
        """Whether this rule is evaluated, as far as ``off`` decides that."""
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
    """One alert that is raised.

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
    """A message about an alert that is decided, and not known to be sent.

    Attributes:
        at: when the alert was seen to be raised or resolved.
        by: the process that sends it; "" for the next one that looks.
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
    """What one audience was notified of about a stream, and what the next evaluation compares with.

    Attributes:
        deployment_id, attempt: what was current at the last evaluation.
        upgrade_id: the upgrade that was under way then; "" if not set.
        failed_upgrade_id: the last upgrade that did not end as asked, while its stream stays as it left it.
        standing: the alerts that are raised.
        owed: the messages still due about them, and about those that were resolved, oldest first.
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
    """The alert rules of a stream, and what each audience was notified of. Changed by compare-and-swap only.

    Attributes:
        audiences: by name, such as ``watch`` or ``airflow``: each gets every alert once, however many send it.
        write_id: unique per write, so that a writer recognises its own (Law 8).
    """

    is_signed: ClassVar[bool] = True

    stream_id: StreamId
    write_id: str
    updated_at: datetime
    updated_by: str
    rules: AlertRules = field(default_factory=AlertRules)
    audiences: Mapping[str, Told] = field(default_factory=dict)


# What happens when a driver fails: the policy of a stream, and what watchers have recorded; both in its register.

OnFailure = Literal["restart", "alert", "nothing"]
_DAY_SECONDS = 86_400.0
_HEADING = "Restart"


@dataclass(frozen=True)
class RestartPolicy:
    """What watchers do when a driver of the stream fails."""

    on_failure: OnFailure = term(
        "nothing",
        help="what `streamstate watch` does when a driver fails: start it again, report it once, or only show it",
        heading=_HEADING,
        verbs=("upgrade",),
    )
    initial_backoff_seconds: Seconds = term(
        10.0, help="seconds from the first failure to the restart", heading=_HEADING, least=0, most=_DAY_SECONDS
    )
    backoff_factor: float = term(
        2.0, help="how much longer each further backoff is, until a driver was healthy", heading=_HEADING, least=1,
        most=100,
    )  # fmt: skip
    max_backoff_seconds: Seconds = term(
        300.0,
        help="the longest backoff; up to a fifth is added at random",
        heading=_HEADING,
        least=0,
        most=_DAY_SECONDS,
    )
    max_restarts: int = term(
        5,
        help="after this many restarts within {restart_window_seconds} the stream stays failed",
        heading=_HEADING,
        least=1,
        most=1_000_000,
    )
    restart_window_seconds: Seconds = term(
        3600.0, help="see {max_restarts}", heading=_HEADING, least=1, most=31 * _DAY_SECONDS
    )
    healthy_for_seconds: Seconds = term(
        600.0,
        help="a driver that committed batches and lived for this long makes all counts start again",
        heading=_HEADING,
        least=1,
        most=31 * _DAY_SECONDS,
    )
    restore_lost_checkpoint: bool = term(
        False,
        help="if a checkpoint is lost or damaged, go back to the newest good snapshot, and undo the sinks to it; else"
        " the stream stays failed",
        flag="--restore-lost-checkpoint/--no-restore-lost-checkpoint",
        heading=_HEADING,
    )
    hung_after_seconds: Seconds = term(
        600.0,
        help="a driver that lives and gives no sign of life for this long is ended, then restarted; 0: never",
        heading=_HEADING,
        least=0,
        most=31 * _DAY_SECONDS,
    )

    def changed(self, given: Mapping[str, Any]) -> RestartPolicy:
        """The policy with these values in place of its own.

        Raises:
            InvalidRequestError: there is no such value, or one is out of its range.
        """
        check_names(RestartPolicy, given, "the restart policy has no such value")
        found = replace(self, **given)
        found._check()
        return found

    def _check(self) -> None:
        check_terms(self)
        if self.max_backoff_seconds < self.initial_backoff_seconds:
            raise InvalidRequestError(
                "the longest backoff of the restart policy is shorter than the first one",
                initial_backoff_seconds=self.initial_backoff_seconds,
                max_backoff_seconds=self.max_backoff_seconds,
                next_step="Raise max_backoff_seconds, or lower initial_backoff_seconds.",
            )


@dataclass(frozen=True)
class BatchFailure:
    """A batch that fails: what is compared with the next failure.

    Attributes:
        error: the cause in one line.
        times: how often in a row.
    """

    query_name: QueryName
    batch_id: int
    error: str
    times: int


@dataclass(frozen=True)
class Restarts:
    """What watchers have recorded of a stream's failures. A deploy or resume by anybody else removes it.

    Attributes:
        deployment_id, attempt: the attempt whose failure is recorded, or that a watcher has started.
        is_started: that attempt was started by a watcher, and no failure of it is recorded yet.
        recorded_at: by the clock of the watcher that wrote it.
        recorded_on: the host of that watcher; "" where no watcher did, but a stop or a kill by somebody.
        ages_seconds: of each restart that counts, how many seconds are known to have passed since it. Sums of what
            single clocks measured, so clocks that differ do not matter.
        failures: in a row, without a healthy attempt between them.
        backoff_seconds: from ``recorded_at`` to the next attempt; None if there will be none.
        reason: of the last failure, for humans.
        batch: the batch that failed last; None where no batch did.
        gave_up: why no attempt follows; "" where one does.
        is_told: ``alert`` has reported that failure.
        is_hung: the attempt was silent for too long, so its driver is ended before the next attempt; a driver that
            wakes before its end makes this record void.
    """

    deployment_id: DeploymentId
    attempt: Attempt
    is_started: bool
    recorded_at: datetime
    recorded_on: str
    ages_seconds: tuple[Seconds, ...] = ()
    failures: int = 0
    backoff_seconds: Seconds | None = None
    reason: str = ""
    batch: BatchFailure | None = None
    gave_up: str = ""
    is_told: bool = False
    is_hung: bool = False

    @property
    def is_of_somebody(self) -> bool:
        """Whether somebody ended that attempt by a stop or a kill, and ``reason`` states who."""
        return not self.recorded_on and bool(self.gave_up)


# Which snapshots a stream keeps: its policy, and the register of what is kept, changed by compare-and-swap.
#
# That a snapshot is taken, read, pinned or removed is decided in this one object, so that two changes have an order.

KEPT_SNAPSHOTS = 10
"""The number of snapshots kept by default."""
MAX_AGE_SECONDS = 100 * 365 * 86_400.0


@dataclass(frozen=True)
class RetentionPolicy:
    """How many snapshots to keep, and for how long.

    Raises:
        InvalidRequestError: a value is out of its range.
    """

    keep: int | None = term(
        None, help="this many of the newest snapshots stay at any age; 0 if only {older_than_seconds} is given", least=0
    )
    older_than_seconds: Seconds | None = term(
        None,
        help="only snapshots that were taken, and last read, longer ago than this are removed",
        least=0,
        most=MAX_AGE_SECONDS,
    )
    at_mirrors: bool = term(False, help="copies at its mirrors that newer snapshots have replaced are removed, too")

    def __post_init__(self) -> None:
        check_terms(self)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> RetentionPolicy | None:
        """The policy to record with a stream, of values by name; None of no values: no policy.

        Raises:
            InvalidRequestError: there is no such value, one is out of its range, or no value defines what stays.
        """
        if not given:
            return None
        check_names(cls, given, "the retention has no such value")
        policy = cls(**given)
        if policy.keep is None and policy.older_than_seconds is None:
            raise InvalidRequestError(
                "the retention does not say which snapshots stay",
                next_step="Give keep, older_than_seconds or both.",
            )
        return policy

    @property
    def kept_count(self) -> int:
        """How many of the newest stay at any age."""
        if self.keep is not None:
            return self.keep
        return KEPT_SNAPSHOTS if self.older_than_seconds is None else 0

    @property
    def words(self) -> str:
        """The policy in one line, for humans."""
        stays = [f"the newest {self.kept_count:,}"] if self.kept_count else []
        if self.older_than_seconds is not None:
            stays.append(f"what was used in the last {self.older_than_seconds:,.0f} s")
        found = f"keeps {' and '.join(stays)}" if stays else "keeps nothing but what is needed"
        return f"{found}; at its mirrors, too" if self.at_mirrors else found


@dataclass(frozen=True)
class LastPrune:
    """The last prune by the policy that is recorded with the stream.

    Attributes:
        policy: that policy, as it was.
        newest_snapshot_id: the newest snapshot that the prune knew.
    """

    at: datetime
    policy: RetentionPolicy
    newest_snapshot_id: SnapshotId | None = None


@dataclass(frozen=True)
class SnapshotInProgress:
    """A snapshot that is being taken.

    Attributes:
        base_ids: the snapshots whose files it may refer to; none of them is removed in the meantime.
        take: how often its id was started again after an abandoned partial one; from 1.
        begun_at, expires_at: after the latter it counts as abandoned.
    """

    snapshot_id: SnapshotId
    base_ids: tuple[SnapshotId, ...]
    take: Count
    begun_at: datetime
    expires_at: datetime


@dataclass(frozen=True)
class LeaseRecord:
    """A reader uses a snapshot; until the lease expires, none of its files is removed."""

    snapshot_id: SnapshotId
    reader: str
    taken_at: datetime
    expires_at: datetime


@dataclass(frozen=True)
class Pin:
    """The snapshot is kept until a user removes the pin."""

    pinned_at: datetime
    pinned_by: str


@dataclass(frozen=True)
class PendingDeletion:
    """A snapshot that is being removed.

    Attributes:
        condemned_at: when that was decided.
        take: its data up to this take are removed.
        data_uri: of the place of its data; "" for next to the checkpoints.
    """

    condemned_at: datetime
    take: Count = 1
    data_uri: Word = ""


@dataclass(frozen=True)
class KnownGood:
    """The last version of the stream that was healthy."""

    deployment_id: DeploymentId
    marked_at: datetime


@dataclass(frozen=True)
class SettledLineage(View):
    """The result of an audit whose evidence was pruned.

    Attributes:
        through: the deployment up to which every beginning was audited.
        is_whole: each of them was exact, apart from what was allowed by name.
    """

    form: ClassVar[str] = "through ok=is_whole audited_at"

    through: DeploymentId
    is_whole: bool
    audited_at: datetime


@message
@dataclass(frozen=True)
class RetentionRegister(Message):
    """What is kept of a stream, and for which reader.

    Attributes:
        generation: grows with every change of what may refer to a file: ``makings`` and ``condemned``. A reader that
            finds the same number before and after reading the manifests has read them as of one moment.
        newest_snapshot_id: the last completed one; the next one shares its files.
        makings: by the id of the try.
        leases: by id.
        pins, used, condemned: by snapshot; ``used``: when it was last read.
        halves: partial snapshots without a known writer, and since when that is known.
        unused_artifacts: by digest, since when no deployment runs them.
        known_good: None where none has been healthy yet.
        settled: of beginnings whose evidence is gone; None if not set.
        places: URIs at which data of snapshots may be, besides the store of the checkpoints.
        last_prune: by the recorded policy; None if not set.
    """

    stream_id: StreamId
    write_id: str
    updated_at: datetime
    updated_by: str
    generation: int = 0
    newest_snapshot_id: SnapshotId | None = None
    makings: Mapping[str, SnapshotInProgress] = field(default_factory=dict)
    leases: Mapping[str, LeaseRecord] = field(default_factory=dict)
    pins: Mapping[SnapshotId, Pin] = field(default_factory=dict)
    used: Mapping[SnapshotId, datetime] = field(default_factory=dict)
    condemned: Mapping[SnapshotId, PendingDeletion] = field(default_factory=dict)
    halves: Mapping[str, datetime] = field(default_factory=dict)
    unused_artifacts: Mapping[str, datetime] = field(default_factory=dict)
    known_good: KnownGood | None = None
    settled: SettledLineage | None = None
    places: tuple[Word, ...] = ()
    last_prune: LastPrune | None = None


@message
@dataclass(frozen=True)
class AbandonedSnapshot(SnapshotSlot):
    """Tombstone in the place of a manifest: this partial snapshot was abandoned; its writer must start over.

    Attributes:
        take: of the partial snapshot; the next one is started under the next number.
    """

    stream_id: StreamId
    snapshot_id: SnapshotId
    take: Count
    abandoned_at: datetime
    abandoned_by: str
    write_id: str


# Whose a stream is, for humans: its owner and its labels; both in its register.

MAX_LABELS = 32
MAX_CHARACTERS = 100
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Ownership:
    """Whose a stream is. It names nothing that is run, so a change restarts nothing.

    Attributes:
        owner: a person or a team; "" if not set.
        labels: by name, such as ``team`` or ``tier``; a value may be "".
    """

    owner: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def changed(self, owner: str | None = None, labels: Mapping[str, str] | None = None) -> Ownership:
        """The same with another owner, and with these labels in place of all others; None: as they are.

        Raises:
            InvalidRequestError: a name or a value cannot be recorded.
        """
        found = replace(
            self,
            owner=self.owner if owner is None else owner.strip(),
            labels=dict(sorted((self.labels if labels is None else labels).items())),
        )
        found._check()
        return found

    def has(self, label: str) -> bool:
        """Whether it has a label, given as ``NAME`` or ``NAME=VALUE``."""
        name, equals, value = label.partition("=")
        return name in self.labels and (not equals or self.labels[name] == value)

    def _check(self) -> None:
        _check_text("owner", self.owner)
        if len(self.labels) > MAX_LABELS:
            raise InvalidRequestError(
                "a stream cannot have this many labels",
                labels=len(self.labels),
                next_step=f"Give {MAX_LABELS} labels at most.",
            )
        for name, value in self.labels.items():
            _check_name(name)
            _check_text(f"labels.{name}", value)


def check_label(label: str) -> str:
    """The same label, ``NAME`` or ``NAME=VALUE``. Raises InvalidRequestError: no stream can have such a label."""
    _check_name(label.partition("=")[0])
    return label


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequestError(
            "this cannot be the name of a label",
            name=_shown(name),
            next_step="Use 1 to 63 letters, digits and . _ / - with a letter or digit at both ends.",
        )


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > MAX_CHARACTERS or not value.isprintable():
        raise InvalidRequestError(
            "this owner or label cannot be recorded",
            name=name,
            value=_shown(value),
            next_step=f"Use one line of at most {MAX_CHARACTERS} characters.",
        )


def _shown(value: object) -> str:
    text = str(value)[:MAX_CHARACTERS]
    return text if text.isprintable() else repr(text)
