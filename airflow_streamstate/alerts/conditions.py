"""Which alert rules apply to a stream, and what is reported: each alert once when raised, once when resolved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import ClassVar, Literal

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.observe.health import (
    NOISE,
    STILL_BATCHES,
    beats_of,
    describe_behind,
    left_at_least,
    paces_of,
    query_caught_up,
)
from airflow_streamstate.controller.observe.observation import ALIVE, Observation, gave_up_of
from airflow_streamstate.controller.observe.views import StreamStatus
from airflow_streamstate.controller.wait.waiting import is_healthy
from airflow_streamstate.errors import DataError, DeploymentNotFoundError, InvalidRequestError
from airflow_streamstate.protocol.commands import BY_THE_DRIVER
from airflow_streamstate.protocol.events import (
    TERMINAL_EVENTS,
    Accepted,
    Claimed,
    Drained,
    DrainFailed,
    Event,
    Failed,
    Fenced,
    QueryFailed,
    QueryStarted,
    Stopped,
)
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.protocol.ids import order_of, upgrade_of_rehearsal
from airflow_streamstate.protocol.policies import Alert, AlertRules, GrowthSample, Owed, RuleName, Told
from airflow_streamstate.protocol.positions import QueryBeat
from airflow_streamstate.protocol.redaction import shortened

# Drivers and queries that died between two polls, and that another attempt or deployment has replaced since.

MOST_DEPLOYMENTS = 20
"""At most this many deployments since the last poll are examined, the newest ones."""


@dataclass(frozen=True)
class Deaths:
    """What died since the last poll, and is replaced.

    Attributes:
        driver: the last driver, in one line, or "".
        queries: by name, why each query failed while the others ran.
    """

    driver: str = ""
    queries: Mapping[str, str] = field(default_factory=dict)


NONE = Deaths()


def deaths_since(controller: Controller, told: Told, seen: Observation) -> Deaths:
    """What died from the attempt that was current at the last poll to the one before the current one.

    A new version that its upgrade abandoned is left out: that is reported as the failure of the upgrade.
    """
    before, now = (told.deployment_id, told.attempt), (seen.deployment_id, seen.attempt)
    if not told.deployment_id or before == now:
        return NONE
    driver, queries = "", dict[str, str]()
    ids = controller.home.control(seen.stream_id).deployment_ids()
    first, last = order_of(told.deployment_id), order_of(seen.deployment_id)
    for deployment_id in [one for one in ids if first <= order_of(one) <= last][-MOST_DEPLOYMENTS:]:
        if _was_given_up(controller, seen.stream_id, deployment_id):
            continue
        entries = controller.events(seen.stream_id, deployment_id)
        events = [entry.event for entry in entries if entry.event is not None]
        for attempt in sorted({event.attempt for event in events}):
            if (deployment_id == told.deployment_id and attempt < told.attempt) or (deployment_id, attempt) == now:
                continue
            own = [event for event in events if event.attempt == attempt]
            why = why_dead(own, is_whole=len(events) == len(entries))
            if why:
                driver = f"attempt {attempt} of {deployment_id} has ended since the last poll: {why}"
            else:
                queries |= failed_queries(own)
    return Deaths(driver, queries)


def _was_given_up(controller: Controller, stream_id: str, deployment_id: str) -> bool:
    """Whether a deployment is the new version of an upgrade that has not kept it."""
    try:
        request_id = controller.home.control(stream_id).spec(deployment_id).request_id
        upgrade_id = upgrade_of_rehearsal(request_id) if request_id.endswith("-new") else None
        return upgrade_id is not None and controller.upgrades.view(stream_id, upgrade_id).outcome != "upgraded"
    except DeploymentNotFoundError:
        return True  # it was never started, or is pruned
    except (DataError, InvalidRequestError):
        return False


def why_dead(events: Sequence[Event], *, is_whole: bool) -> str:
    """Why the driver of an attempt that is not current any more died, by the events of that attempt; "" where it ended
    as it was ordered to, or never was, or where its end may be among events that cannot be read (not ``is_whole``)."""
    end = next((event for event in reversed(events) if isinstance(event, TERMINAL_EVENTS)), None)
    if end is None:
        was_there = any(isinstance(event, Claimed) for event in events)
        return "without a last event" if was_there and is_whole else ""
    if isinstance(end, Failed):
        return end.sentence
    if isinstance(end, Fenced):
        return "it was fenced"
    by = {event.command.get("requested_by") for event in events if isinstance(event, Accepted)}
    return "its machine asked the driver to end" if isinstance(end, Stopped) and by == {BY_THE_DRIVER} else ""


def failed_queries(events: Sequence[Event]) -> dict[str, str]:
    """By name, why each query failed that was not started again in the attempt of these events."""
    found: dict[str, str] = {}
    for event in events:
        if isinstance(event, QueryFailed):
            found[event.query_name] = event.error
        elif isinstance(event, QueryStarted):
            found.pop(event.query_name, None)
    return found


SCHEDULES = 3.0
"""A snapshot is old after this many times the schedule of snapshots."""
_DEAD = frozenset({"failed", "lost", "fenced"})


@dataclass(frozen=True)
class Sight:
    """What was seen of a stream at one moment.

    Attributes:
        seen: None for a stream whose control objects cannot be read.
        failed_upgrade: why the last upgrade did not end as asked, by its id, or empty.
        deaths: what died since the last poll, and is replaced.
        is_home_just_back: the home was away until a moment ago, for its drivers perhaps as well: it is not known yet
            whether one that gave no sign of life gives one now.
    """

    status: StreamStatus
    seen: Observation | None
    failed_upgrade: Mapping[str, str]
    deaths: Deaths = NONE
    is_home_just_back: bool = False

    @property
    def is_changing(self) -> bool:
        """Whether a drain, a stop or an upgrade moves the stream: then only its own failure is an alert. An upgrade
        that has touched nothing, or that nobody drives any more, moves nothing."""
        return self.status.upgrade_hold in ("moving", "unreadable") or self.status.state in ("draining", "stopping")


@dataclass(frozen=True)
class Condition:
    """A rule that holds; ``subject`` and ``text`` as those of an ``Alert``."""

    rule: RuleName
    subject: str
    text: str

    @property
    def key(self) -> tuple[str, str]:
        """What an alert is deduplicated by, in addition to the stream."""
        return self.rule, self.subject


def conditions(rules: AlertRules, sight: Sight, told: Told) -> Iterator[Condition]:
    """Every rule that holds now, whatever was reported before; growth is left out."""
    status, seen = sight.status, sight.seen
    if seen is None:
        yield from _if(rules, "unreadable", "", status.error or status.why)
        return
    if seen.register.retirement is not None:
        return
    for upgrade_id, text in sight.failed_upgrade.items():
        yield from _if(rules, "upgrade_failed", upgrade_id, text)
    if status.upgrade_hold == "abandoned":
        yield from _if(rules, "upgrade_abandoned", str(seen.register.upgrade_id), status.upgrade)
    yield from _of_drain(rules, seen)
    yield from _of_silence(rules, sight)
    if sight.is_changing:
        yield from _of_deaths(rules, sight, told)
        return
    yield from _of_driver(rules, sight, told)
    if status.state not in ALIVE:
        return
    yield from _of_snapshots(rules, sight)
    for name, query in status.queries.items():
        if query.error:
            yield from _if(rules, "query_died", name, f"query {name} has failed: {query.error}")
    for name, beat in _active(sight):
        yield from _of_query(rules, sight, name, beat)


def growth(rules: AlertRules, sight: Sight, told: Told) -> Iterator[tuple[RuleName, str, str | None]]:
    """Of each active query, what grows: the rule, the query and the text; "" for no growth, None for not yet known."""
    if sight.is_changing:
        return
    for name, beat in _active(sight):
        seconds = rules.lag_growing_seconds
        if seconds is not None and rules.has("lag_growing"):
            yield "lag_growing", name, _lag_growth(name, beat, told.lag_samples.get(name, ()), seconds)
        seconds = rules.state_growing_seconds
        if seconds is not None and rules.has("state_growing"):
            yield "state_growing", name, _state_growth(name, beat, told.state_samples.get(name, ()), seconds)


def sampled(
    samples: Mapping[str, tuple[GrowthSample, ...]], sight: Sight, seconds: float | None
) -> Mapping[str, tuple[GrowthSample, ...]]:
    """The samples with one of now, where the newer one is half of ``seconds`` old; None: none are needed.

    So the older one is always from half to all of that time ago, and a restarted process continues from it.
    """
    if seconds is None:
        return {}
    found = {name: samples.get(name, ()) for name, _ in _active(sight)}
    beat_at = _beat_at(sight)
    for name, beat in _active(sight):
        known = found[name]
        if beat_at is not None and (not known or (beat_at - known[-1].at).total_seconds() >= seconds / 2):
            found[name] = (*known[-1:], _sample_of(beat, beat_at))
    return {name: known for name, known in found.items() if known}


def _if(rules: AlertRules, rule: RuleName, subject: str, text: str) -> Iterator[Condition]:
    if rules.has(rule):
        yield Condition(rule, subject, text)


def _of_drain(rules: AlertRules, seen: Observation) -> Iterator[Condition]:
    """A drain of this attempt that failed, unless a later one was done or is under way."""
    failed = next(seen.of_kind(DrainFailed), None)
    if failed is None or failed.cause == "cancelled" or seen.is_draining or next(seen.of_kind(Drained), None):
        return
    yield from _if(rules, "drain_failed", failed.command_id, f"the drain failed: {failed.error}")


def _of_silence(rules: AlertRules, sight: Sight) -> Iterator[Condition]:
    """Also while an upgrade, a drain or a stop is under way: it would wait for this driver."""
    status, age, limit = sight.status, sight.status.heartbeat_age_seconds, rules.driver_silent_seconds
    if sight.is_home_just_back or status.state != "silent" or not status.is_current:
        return
    if limit is not None and age is not None and age > limit:
        text = (
            f"attempt {status.attempt} lives and has given no sign of life for {age:,.0f} s, and {limit:,.0f} s at most"
        )
        yield from _if(rules, "driver_silent", "", text)


def _of_driver(rules: AlertRules, sight: Sight, told: Told) -> Iterator[Condition]:
    status, seen = sight.status, sight.seen
    assert seen is not None  # noqa: S101 - the caller has looked
    gave_up = gave_up_of(seen)
    if gave_up:
        yield from _if(rules, "gave_up", "", f"it is not restarted any more: {gave_up}")
    if (status.state in _DEAD and status.is_current) or seen.was_ended_by_machine:
        why = status.error or status.why
        yield from _if(rules, "driver_dead", "", f"attempt {status.attempt} is {status.state}: {why}")
        return
    record = seen.register.restarts
    is_same = told.deployment_id == status.deployment_id and 0 < told.attempt < status.attempt
    if is_same and record is not None and record.is_started and record.attempt == status.attempt:
        text = f"attempt {status.attempt} was started, since the one before it failed: {record.reason}"
        yield from _if(rules, "driver_dead", "", text)
        return
    yield from _of_deaths(rules, sight, told)


def _of_deaths(rules: AlertRules, sight: Sight, told: Told) -> Iterator[Condition]:
    """What died between two polls, unless it was reported before its successor started."""
    standing = {(alert.rule, alert.subject) for alert in told.standing}
    if sight.deaths.driver and ("driver_dead", "") not in standing:
        yield from _if(rules, "driver_dead", "", sight.deaths.driver)
    for name, error in sight.deaths.queries.items():
        if ("query_died", name) not in standing:
            yield from _if(rules, "query_died", name, f"query {name} has failed: {error}")


def _of_snapshots(rules: AlertRules, sight: Sight) -> Iterator[Condition]:
    status, seen = sight.status, sight.seen
    assert seen is not None  # noqa: S101 - the caller has looked
    every, limit = seen.spec.version.settings.snapshot_every_seconds, rules.snapshot_age_seconds
    if limit is None and every is not None:
        limit = SCHEDULES * every
    if limit is None:
        return
    age = status.snapshot_age_seconds
    if age is not None and age > limit:
        yield from _if(
            rules, "snapshot_age", "", f"the newest snapshot is {age:,.0f} s old, and {limit:,.0f} s at most"
        )
        return
    since = status.running_since_at
    if age is None and since is not None and (seen.observed_at - since).total_seconds() > limit:
        yield from _if(rules, "snapshot_age", "", f"it has run for more than {limit:,.0f} s, and has no snapshot")


def _of_query(rules: AlertRules, sight: Sight, name: str, beat: QueryBeat) -> Iterator[Condition]:
    still = _seconds_without_commit(sight, beat)
    limit = rules.no_commit_seconds
    if limit is not None and still is not None and still > max(limit, STILL_BATCHES * (beat.batch_seconds or 0.0)):
        yield from _if(rules, "no_commit", name, f"query {name} has committed nothing for {still:,.0f} s")
    if rules.lag_over is not None and max(_lag_of(beat).values(), default=0) > rules.lag_over:
        text = f"query {name} is {describe_behind(beat.lags)}, and {rules.lag_over:,} at most"
        yield from _if(rules, "lag", name, text)
    behind = watermark_behind_seconds(sight, beat)
    limit = rules.watermark_behind_seconds
    if limit is not None and behind is not None and behind > limit:
        text = f"the watermark of query {name} is {behind:,.0f} s behind, and {limit:,.0f} s at most"
        yield from _if(rules, "watermark", name, text)
    yield from _of_state(rules, name, beat)


def _of_state(rules: AlertRules, name: str, beat: QueryBeat) -> Iterator[Condition]:
    most, rows = rules.state_rows_over, beat.state_rows
    if most is not None and rows is not None and rows > most:
        yield from _if(rules, "state_rows", name, f"the state of query {name} has {rows:,} rows, and {most:,} at most")
    most, used = rules.state_memory_bytes_over, beat.state_memory_bytes
    if most is not None and used is not None and used > most:
        text = f"the state of query {name} takes {used:,} bytes of memory, and {most:,} at most"
        yield from _if(rules, "state_memory", name, text)


def _seconds_without_commit(sight: Sight, beat: QueryBeat) -> float | None:
    """Since its last commit, or the start of its attempt; None where it has nothing to commit."""
    beat_at, started_at = _beat_at(sight), sight.status.running_since_at
    if beat_at is None or query_caught_up(beat).is_so:
        return None
    moments = [moment for moment in (beat.committed_at, started_at) if moment is not None]
    return (beat_at - max(moments)).total_seconds() if moments else None


def watermark_behind_seconds(sight: Sight, beat: QueryBeat) -> float | None:
    """By how much the watermark of a query is older than the driver's clock; None for no watermark."""
    beat_at = _beat_at(sight)
    if beat_at is None or beat.watermark_at is None:
        return None
    return (beat_at - beat.watermark_at).total_seconds()


def _lag_growth(name: str, beat: QueryBeat, samples: tuple[GrowthSample, ...], seconds: float) -> str | None:
    older = _older(samples, seconds)
    if not any(pace.falls_behind for pace in paces_of(beat).values()):
        return ""
    if older is None:
        return None
    grown = {unit: (older.lag.get(unit, 0), left) for unit, left in _lag_of(beat).items()}
    worse = {unit: pair for unit, pair in grown.items() if pair[1] > pair[0] * NOISE}
    if not worse:
        return ""
    words = " and ".join(f"{left:,} {unit}, {before:,} before" for unit, (before, left) in worse.items())
    return f"query {name} falls further behind: {words}"


def _state_growth(name: str, beat: QueryBeat, samples: tuple[GrowthSample, ...], seconds: float) -> str | None:
    older = _older(samples, seconds)
    if older is None or beat.state_rows is None or older.state_rows is None:
        return None
    elapsed_seconds = (samples[-1].at - older.at).total_seconds()
    newest = samples[-1]
    rates = [one.input_rows_per_second for one in samples if one.input_rows_per_second is not None]
    if newest.state_rows is None or len(rates) < len(samples):
        return None
    added, read = newest.state_rows - older.state_rows, elapsed_seconds * sum(rates) / len(rates)
    if added <= 0 or added <= read * NOISE:
        return ""
    return f"the state of query {name} got {added:,} rows in {elapsed_seconds:,.0f} s, and the query read {read:,.0f}"


def _older(samples: tuple[GrowthSample, ...], seconds: float) -> GrowthSample | None:
    """The older sample, if there are two that are far enough apart."""
    if len(samples) < 2 or (samples[-1].at - samples[0].at).total_seconds() < seconds / 2:
        return None
    return samples[0]


def _sample_of(beat: QueryBeat, at: datetime) -> GrowthSample:
    return GrowthSample(at, _lag_of(beat), beat.state_rows, beat.input_rows_per_second)


def _lag_of(beat: QueryBeat) -> dict[str, int]:
    """The smallest lag of the newest batches, by unit; a query that found no input has none."""
    found: dict[str, int] = {}
    for lag in () if beat.is_idle else beat.lags:
        left = left_at_least(lag)
        if left is not None:
            found[lag.unit] = found.get(lag.unit, 0) + left
    return found


def _active(sight: Sight) -> Iterator[tuple[str, QueryBeat]]:
    """The running queries, as the last heartbeat of the attempt reports them."""
    if sight.seen is None:
        return
    beats = beats_of(sight.seen)
    for name, query in sight.status.queries.items():
        if query.is_active and name in beats:
            yield name, beats[name]


def _beat_at(sight: Sight) -> datetime | None:
    """When the last heartbeat was written, by the driver's clock."""
    beat = None if sight.seen is None else sight.seen.heartbeat
    return None if beat is None else beat.at


# What an audience is notified of: each alert of a stream once when it is raised, and once when it is resolved. Pure.

MAX_TEXT_CHARACTERS = 500
TELL_AGAIN_AFTER = timedelta(minutes=5)
"""A message that is owed for this long is reported by the next process that polls."""
MAX_OWED = 100
"""At most this many messages are owed of a stream; the oldest of more are abandoned."""
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
        """One human-readable line."""
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
    """The change that a message is about, with the stream as it is now."""
    return AlertChange(
        owed.kind, status.stream_id, owed.deployment_id, owed.alert, owed.at, status.owner, status.labels
    )


def taken_over(owed: tuple[Owed, ...], by: str, now: datetime) -> tuple[Owed, ...]:
    """The same messages; those that this process must report are marked as its own.

    A process that still tries to report one records that from time to time, so that no other one takes it over.
    """

    def taken(one: Owed) -> Owed:
        limit = TELL_AGAIN_AFTER / 2 if one.by == by else TELL_AGAIN_AFTER
        return replace(one, by=by, since=now) if not one.by or now - one.since >= limit else one

    return tuple(map(taken, owed))


def evaluate(
    rules: AlertRules, sight: Sight, told: Told, now: datetime, new_id: Callable[[], str], by: str = ""
) -> Told:
    """Compare what is seen of a stream with what was reported; returns what is reported and owed afterwards.

    Args:
        told: what was reported to this audience before.
        new_id: makes the ids of alerts.
        by: the process that reports what is new.
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
    """Whether nothing is reported about an alert now, since it is not known whether it holds."""
    if sight.seen is None:
        return True
    if alert.rule == "upgrade_failed":
        return bool(sight.status.upgrade)  # another one is under way: its end decides
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
