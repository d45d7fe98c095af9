"""What must be done about a stream whose driver may have failed: one pure function to a closed union.

Durations are added up from what single clocks have measured, so watchers whose clocks differ decide the same: how long
an attempt lived is measured by its driver's clock, how long a watcher has waited by its own.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from typing import Literal

from airflow_streamstate.controller.observe.observation import ALIVE, Observation
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.events import Claimed, Failed, QueryFailed, QueryStarted
from airflow_streamstate.protocol.policies import BatchFailure, RestartPolicy, Restarts
from airflow_streamstate.protocol.records import StreamRegister
from airflow_streamstate.protocol.redaction import redact_text

SAME_FAILURES = 3
"""A batch that has failed so often in a row with the same error fails again."""
JITTER = 0.2
"""The most that is added to a backoff, as a part of it."""
LAUNCH_AGAIN_SECONDS = 15.0
"""An attempt that a watcher has started and not launched for this long is launched by any other."""
HELD_SECONDS = 15.0
"""How often a stream is looked at that an upgrade or a deploy holds: whether its owner still gives signs of life."""
SILENT_SECONDS = 15.0
"""How often a driver that is silent is looked at."""
ENDING_SECONDS = 10.0
"""How often a driver is polled that has recorded its last event and runs on; its end is seen at once."""
MAX_TEXT_CHARACTERS = 2_000
_MOST_GROWTHS = 64
_VARYING = re.compile(
    r"0x[0-9a-fA-F]+"
    r"|(?<![0-9a-zA-Z])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9a-zA-Z])"
    r"|(?<![0-9a-zA-Z])(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}(?![0-9a-zA-Z])"
    r"|@[0-9a-f]{5,8}(?![0-9a-zA-Z])"
    r"|\d+"
)
"""Addresses, UUIDs, digests, identities of Java objects, numbers."""

Sight = Literal[
    "up", "degraded", "launching", "ended", "held", "ending", "lost", "failed", "waiting", "gave_up", "alert",
    "recorded", "restarting", "silent", "unreadable", "upgrading",
]  # fmt: skip
"""What a watcher reports of a stream, as a word."""


@dataclass(frozen=True)
class Desired:
    """What is wanted of a stream: from its register alone."""

    policy: RestartPolicy
    record: Restarts | None
    is_retired: bool

    @classmethod
    def of(cls, register: StreamRegister) -> Desired:
        """Of a register."""
        return cls(register.restart_policy, register.restarts, register.retirement is not None)


@dataclass(frozen=True)
class Observed:
    """What a watcher has seen of a stream.

    Attributes:
        owner: the upgrade, rollback or deploy that holds the stream, or "".
        own_return: the id of the rollback that a watcher has started and that holds the stream, or "".
        abandoned: the id of an upgrade that holds the stream and that nobody drives any more, or "".
        order: the stop or drain that was ordered and holds, or "".
        lost: what is lost or damaged of its checkpoints; "" for nothing.
        waited_seconds: how long this watcher has seen the register as it is.
        silent_seconds: how long this watcher itself has seen the driver silent, without a pause (``SilenceWatch``).
        host: of this watcher.
        secrets: of the deployment: hidden in all that is reported and recorded.
    """

    seen: Observation
    owner: str = ""
    own_return: str = ""
    abandoned: str = ""
    order: str = ""
    lost: str = ""
    waited_seconds: float = 0.0
    silent_seconds: float = 0.0
    host: str = ""
    secrets: tuple[str, ...] = ()

    def line(self, text: str) -> str:
        """The text in one line that is not too long, without secrets."""
        return one_line(text, self.secrets)


def one_line(text: str, secrets: tuple[str, ...]) -> str:
    """As ``Observed.line``."""
    return " ".join(redact_text(text, secrets).split())[:MAX_TEXT_CHARACTERS]


@dataclass(frozen=True)
class Leave:
    """Nothing must be done now; ``due_seconds``: until something must be, None if that is not known."""

    sight: Sight
    text: str
    due_seconds: float | None = None


@dataclass(frozen=True)
class Record:
    """Write this into the register, unless it has changed; None: no record."""

    record: Restarts | None
    sight: Sight
    text: str


@dataclass(frozen=True)
class StartNext:
    """Move the register to the next attempt, with this record of it, and launch it."""

    record: Restarts
    text: str


@dataclass(frozen=True)
class EndHung:
    """End the driver, which hangs; ``record``: to be written first, None where it is written."""

    record: Restarts | None
    text: str


@dataclass(frozen=True)
class GoBack:
    """Start the rollback to the newest good snapshot: the checkpoint is lost, and the policy asks for it."""

    text: str


@dataclass(frozen=True)
class ContinueReturn:
    """Take the next steps of the rollback that a watcher has started."""

    upgrade_id: str


@dataclass(frozen=True)
class TakeOverDriver:
    """Take the next steps of an upgrade that nobody drives any more."""

    upgrade_id: str


@dataclass(frozen=True)
class LaunchCurrent:
    """Launch the current attempt: a watcher started it, and ended before it had launched it."""

    text: str


Action = Leave | Record | StartNext | EndHung | GoBack | ContinueReturn | TakeOverDriver | LaunchCurrent


def reconcile(desired: Desired, observed: Observed, now: datetime, chance: float) -> Action:
    """What a watcher does about a stream.

    Args:
        now: by the watcher's clock; only recorded.
        chance: a random number in [0, 1), for the jitter of a backoff.
    """
    left = _left_alone(desired, observed)
    if left is not None:
        return left
    if observed.seen.state == "silent":
        return _of_silence(desired, observed, now, chance)
    seen, policy = observed.seen, desired.policy
    failure = _failure(seen)
    if policy.on_failure == "nothing":
        return Leave("failed", failure)
    record = desired.record
    known = record if record is not None and _is_of(record, seen) and not record.is_started else None
    if policy.on_failure == "alert":
        if known is not None:
            return Leave("failed", known.gave_up or failure)
        return Record(replace(fresh_record(observed, now, failure), is_told=True), "alert", failure)
    if known is None or known.is_told:
        return _of_new_failure(after_failure(desired, observed, now, chance), observed, now)
    return _of_known_failure(known, policy, observed, now)


def _of_new_failure(found: Restarts, observed: Observed, now: datetime) -> Record | StartNext:
    if found.gave_up:
        return Record(found, "gave_up", found.gave_up)
    if found.backoff_seconds == 0 and not observed.lost:
        return _start_next(found, observed, now)
    return Record(found, "recorded", f"{found.reason}; {_next_words(found)}")


def _of_known_failure(record: Restarts, policy: RestartPolicy, observed: Observed, now: datetime) -> Action:
    if record.gave_up:
        return Leave("gave_up", record.gave_up)
    left_seconds = (record.backoff_seconds or 0.0) - observed.waited_seconds
    if left_seconds > 0:
        return Leave("waiting", f"{record.reason}; {_next_words(record)}", left_seconds)
    if observed.lost and policy.restore_lost_checkpoint:
        return GoBack(observed.lost)
    return _start_next(record, observed, now)


def _left_alone(desired: Desired, observed: Observed) -> Action | None:
    """What is done for a stream that has not failed, or that is not the watchers'; None for one that has failed."""
    seen = observed.seen
    state = seen.state
    if desired.is_retired:
        return Leave("ended", "it is retired")
    if observed.own_return:
        return ContinueReturn(observed.own_return)
    if observed.abandoned:
        return TakeOverDriver(observed.abandoned)
    if observed.owner:
        return Leave("held", observed.owner, HELD_SECONDS)
    if state == "launching" and seen.is_unlaunched:
        return _of_unlaunched(desired.record, observed)
    if state == "lost":
        return Leave("lost", f"{seen.why}; it is not restarted while it may run")
    if state == "silent":
        return None
    if state in ALIVE:
        return _woken(desired.record, seen) or _of_alive(seen)
    if state not in ("failed", "fenced") and not seen.was_ended_by_machine:
        return Leave("ended", state)
    return Leave("held", observed.order) if observed.order else _not_proven(seen)


def _of_alive(seen: Observation) -> Leave:
    state = seen.state
    sight: Sight = "launching" if state == "launching" else "degraded" if state == "degraded" else "up"
    return Leave(sight, seen.why if state == "degraded" else f"attempt {seen.attempt} is {state}")


def _of_unlaunched(record: Restarts | None, observed: Observed) -> Leave | LaunchCurrent:
    seen = observed.seen
    is_ours = record is not None and _is_of(record, seen) and record.is_started
    if not is_ours or seen.register.attempt_mode != "run":
        return Leave("launching", seen.why)
    left_seconds = LAUNCH_AGAIN_SECONDS - observed.waited_seconds
    if left_seconds > 0:
        return Leave("launching", "a watcher is launching it", left_seconds)
    return LaunchCurrent(f"attempt {seen.attempt} was started and never launched")


def _of_silence(desired: Desired, observed: Observed, now: datetime, chance: float) -> Action:
    """What is done about a driver that its launcher reports as alive, and that gives no sign of life.

    It is ended only once this watcher has seen the silence itself, twice as long as a sign of life may be old: so
    neither a wrong clock nor an outage of the home, which is the same silence of every driver, ends one that works.
    """
    seen, policy = observed.seen, desired.policy
    record = desired.record
    known = record if record is not None and _is_of(record, seen) and record.is_hung else None
    if policy.on_failure != "restart" or not policy.hung_after_seconds:
        return Leave("silent", seen.why, SILENT_SECONDS)
    if observed.order:
        return Leave("silent", f"{seen.why}; {observed.order}", SILENT_SECONDS)
    if known is not None and known.gave_up:
        return Leave("silent", f"{seen.why}; {known.gave_up}", SILENT_SECONDS)
    left_seconds = max(
        policy.hung_after_seconds - (seen.heartbeat_age_seconds or 0.0),
        2 * seen.spec.version.settings.lost_after_seconds - observed.silent_seconds,
    )
    if left_seconds > 0:
        text = f"attempt {seen.attempt} is silent; it is ended after {policy.hung_after_seconds:g} s of silence"
        return Leave("silent", text, min(left_seconds, SILENT_SECONDS))
    if known is not None:
        return EndHung(None, known.reason)
    found = replace(after_failure(desired, observed, now, chance), is_hung=True)
    return Record(found, "silent", found.gave_up) if found.gave_up else EndHung(found, found.reason)


def _woken(record: Restarts | None, seen: Observation) -> Record | None:
    """Withdraws what was recorded of an attempt that hung, and works again."""
    if record is None or not record.is_hung or not _is_of(record, seen):
        return None
    is_first = not record.ages_seconds and record.failures <= 1
    before = replace(
        record, is_started=True, is_hung=False, failures=max(record.failures - 1, 0), backoff_seconds=None, gave_up=""
    )
    return Record(None if is_first else before, "up", f"attempt {seen.attempt} was silent, and works again")


def _not_proven(seen: Observation) -> Leave | None:
    """The reason why it is not certain that the driver of a failed attempt has ended; None where it has."""
    status = seen.launch_status
    if seen.is_closed or (status is None and not seen.is_claimed) or (status is not None and status.has_ended):
        return None
    if status is not None and status.state in ("running", "pending"):
        return Leave("ending", "its driver has written its last event, and has not ended yet", ENDING_SECONDS)
    why = "no launch of it is recorded" if status is None else status.reason
    return Leave("lost", f"it is not known here whether its driver has ended ({why})")


def after_failure(desired: Desired, observed: Observed, now: datetime, chance: float) -> Restarts:
    """The record of an attempt that has failed, for a stream that must be restarted."""
    seen, policy = observed.seen, desired.policy
    before = desired.record
    if before is not None and (before.deployment_id != seen.deployment_id or before.is_told):
        before = None
    ages: tuple[float, ...] = ()
    failures = 1
    if before is not None and not was_healthy(seen, policy.healthy_for_seconds):
        ages, failures = _older(before.ages_seconds, life_seconds(seen), policy), before.failures + 1
    batch = _failed_batch(observed, None if before is None else before.batch)
    if isinstance(seen.terminal, Failed) and seen.terminal.refuses_start:
        refused = f"the driver refused the start, and would refuse it again: {_failure(seen)}"
        return replace(fresh_record(observed, now, _failure(seen)), failures=failures, gave_up=refused)
    found = replace(fresh_record(observed, now, _failure(seen)), ages_seconds=ages, failures=failures, batch=batch)
    return _judged(found, policy, chance, observed.lost)


def after_refusal(
    record: Restarts, policy: RestartPolicy, error: str, now: datetime, chance: float, *, is_final: bool
) -> Restarts:
    """The record of a restart that was refused before the attempt took a number.

    Args:
        record: of the failure that had to be fixed.
        is_final: no repeated try can succeed.
    """
    refused = replace(
        record,
        recorded_at=now,
        ages_seconds=(*_older(record.ages_seconds, record.backoff_seconds or 0.0, policy), 0.0),
        failures=record.failures + 1,
        reason=error,
        gave_up=error if is_final else "",
    )
    return replace(refused, backoff_seconds=None) if is_final else _judged(refused, policy, chance, "")


def _judged(found: Restarts, policy: RestartPolicy, chance: float, lost: str) -> Restarts:
    """The record with its backoff, or with the reason why no attempt follows."""
    gave_up = ""
    if found.batch is not None and found.batch.times >= SAME_FAILURES:
        gave_up = (
            f"batch {found.batch.batch_id} of query {found.batch.query_name} fails, {found.batch.times} times with the"
            f" same error: `replay` it, or `skip` it. {found.batch.error}"
        )
    elif len(found.ages_seconds) >= policy.max_restarts:
        tries = "1 restart" if policy.max_restarts == 1 else f"{len(found.ages_seconds)} restarts"
        gave_up = f"{tries} within {policy.restart_window_seconds:g} s did not help: {found.reason}"
    if gave_up:
        way = "" if not lost else f" ({lost}: `streamstate rollback --snapshot ID` goes back to a snapshot)"
        return replace(found, backoff_seconds=None, gave_up=f"{gave_up}{way}")
    backoff_seconds = policy.initial_backoff_seconds
    for _ in range(min(found.failures - 1, _MOST_GROWTHS)):
        backoff_seconds = min(backoff_seconds * policy.backoff_factor, policy.max_backoff_seconds)
    return replace(found, backoff_seconds=round(backoff_seconds * (1 + JITTER * chance), 3))


def _start_next(record: Restarts, observed: Observed, now: datetime) -> StartNext:
    seen = observed.seen
    waited = record.backoff_seconds or 0.0
    started = replace(
        record,
        attempt=seen.attempt + 1,
        is_started=True,
        is_hung=False,
        recorded_at=now,
        recorded_on=observed.host,
        ages_seconds=(*(age + waited for age in record.ages_seconds), 0.0),
        backoff_seconds=None,
    )
    return StartNext(started, f"attempt {started.attempt}: {record.reason}")


def fresh_record(observed: Observed, now: datetime, reason: str) -> Restarts:
    """The record of the failure of the observed attempt, and nothing before it."""
    seen = observed.seen
    return Restarts(
        deployment_id=seen.deployment_id,
        attempt=seen.attempt,
        is_started=False,
        recorded_at=now,
        recorded_on=observed.host,
        reason=reason,
    )


def _is_of(record: Restarts, seen: Observation) -> bool:
    return (record.deployment_id, record.attempt) == (seen.deployment_id, seen.attempt)


def _older(ages: tuple[float, ...], seconds: float, policy: RestartPolicy) -> tuple[float, ...]:
    """The ages of the restarts that still count after ``seconds`` more."""
    return tuple(round(age + seconds, 3) for age in ages if age + seconds < policy.restart_window_seconds)


def life_seconds(seen: Observation) -> float:
    """From the claim of the attempt to its last sign of life, both by its driver's clock; 0 for no driver."""
    claimed = next(seen.of_kind(Claimed), None)
    return 0.0 if claimed is None else max((seen.silent_since_at - claimed.at).total_seconds(), 0.0)


def was_healthy(seen: Observation, seconds: float) -> bool:
    """Whether the attempt lived this long after its first query, and each query committed a batch or found no input."""
    starts = list(seen.of_kind(QueryStarted))
    beat = seen.heartbeat
    if not starts or beat is None or beat.attempt != seen.attempt or not beat.queries:
        return False
    began_at = starts[-1].at
    for query in beat.queries.values():
        has_committed = query.committed_at is not None and query.committed_at >= began_at
        if not has_committed and not query.idle_triggers:
            return False
    return (seen.silent_since_at - began_at).total_seconds() >= seconds


def _failed_batch(observed: Observed, before: BatchFailure | None) -> BatchFailure | None:
    """The batch that failed last in this attempt, and how often in a row it has by now."""
    found = [event for event in observed.seen.failed_queries.values() if event.planned_batch_id is not None]
    if not found:
        return None
    event = max(found, key=lambda each: each.at)
    batch = BatchFailure(event.query_name, int(event.planned_batch_id or 0), observed.line(event.error), 1)
    is_same = before is not None and _cause(before) == _cause(batch)
    return replace(batch, times=before.times + 1) if before is not None and is_same else batch


def _cause(batch: BatchFailure) -> tuple[str, int, str]:
    """What errors of one cause have in common: they differ in numbers, addresses and the names of temporary files."""
    return batch.query_name, batch.batch_id, _VARYING.sub("#", batch.error)


def _failure(seen: Observation) -> str:
    """Why the attempt failed, in one line."""
    terminal = seen.terminal
    if seen.state == "silent":
        age_seconds = seen.heartbeat_age_seconds or 0.0
        return f"attempt {seen.attempt} hung: its driver lived, and gave no sign of life for {age_seconds:.0f} s"
    if seen.was_ended_by_machine:
        return f"attempt {seen.attempt} was stopped: its machine asked the driver to end"
    if isinstance(terminal, Failed):
        failed = next((event for event in seen.of_kind(QueryFailed)), None)
        where = "" if failed is None or failed.planned_batch_id is None else f" in batch {failed.planned_batch_id}"
        query = f"query {failed.query_name}{where}: " if failed is not None else ""
        return f"attempt {seen.attempt} failed: {query}{terminal.sentence}"
    return f"attempt {seen.attempt} failed: {seen.why}"


def _next_words(record: Restarts) -> str:
    return f"attempt {record.attempt + 1} follows after {record.backoff_seconds or 0:.0f} s"
