"""What was observed of one deployment at one moment, and what follows from that alone. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeVar

from airflow_streamstate.control import command_status
from airflow_streamstate.control.command_status import NEVER_SEEN, CommandStatus, fold
from airflow_streamstate.control.journal import CommandSlot, NumberedEvent
from airflow_streamstate.control.registers import CLOCKS_DIFFER_SECONDS
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.handovers import Repeat, describe_repeats, repeats_of
from airflow_streamstate.errors import ConflictError, IncompatibleUpgradeError, StreamStateError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.launch.interface import LOCAL, LaunchHandle, LaunchStatus
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.commands import BY_THE_DRIVER, DrainNotification, StopRequest
from airflow_streamstate.protocol.events import (
    TERMINAL_EVENTS,
    Accepted,
    Drained,
    DrainFailed,
    Draining,
    Event,
    Failed,
    Fenced,
    Finished,
    Ignored,
    QueryFailed,
    QueryStarted,
    Rejected,
    Started,
    Stopped,
)
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.positions import Heartbeat
from airflow_streamstate.protocol.records import Claim, DeploymentSpec, StreamRegister

if TYPE_CHECKING:
    from airflow_streamstate.checkpoint.log import Checkpoint


AnyEvent = TypeVar("AnyEvent", bound=Event)
State = Literal[
    "launching", "running", "degraded", "draining", "drained", "stopping", "stopped", "finished", "failed", "lost",
    "silent", "fenced",
]  # fmt: skip
ALIVE: frozenset[State] = frozenset({"launching", "running", "degraded", "draining", "stopping"})
"""The driver lives, and what it last reported holds."""
NOT_ENDED: frozenset[State] = ALIVE | {"silent"}
"""The driver lives, or its launcher reports that it does: what it last reported may be old."""
ENDED: frozenset[State] = frozenset({"drained", "stopped", "finished", "failed", "fenced"})


@dataclass(frozen=True)
class Observation:
    """One deployment at one moment. The launcher was asked before the events were read, so the terminal event of a
    driver that had ended is among them.

    Attributes:
        register_version: what a compare-and-swap of the register must name.
        attempt: the current attempt of the current deployment; of any other deployment, the last known one.
        events: every event of the deployment, in order.
        handle, launch_status: the launch of the attempt; None where none is known.
        claim: the driver that is the attempt; None before one claims it.
        heartbeat: the last one of any attempt.
        heartbeat_age_seconds: of that one, where it is of this attempt (``Observer``), or None.
    """

    register: StreamRegister
    register_version: str
    spec: DeploymentSpec
    attempt: int
    events: tuple[NumberedEvent, ...]
    handle: LaunchHandle | None
    launch_status: LaunchStatus | None
    claim: Claim | None
    heartbeat: Heartbeat | None
    observed_at: datetime
    heartbeat_age_seconds: float | None = None

    @property
    def stream_id(self) -> str:
        """As in the spec."""
        return self.spec.stream_id

    @property
    def deployment_id(self) -> str:
        """As in the spec."""
        return self.spec.deployment_id

    @property
    def is_current(self) -> bool:
        """Whether the register names this deployment."""
        return self.register.deployment_id == self.deployment_id

    @property
    def state(self) -> State:
        """The state of the deployment: the first row of ``STATE_TABLE`` that holds."""
        return self._row.state

    @property
    def _row(self) -> Row:
        return next(row for row in STATE_TABLE if row.holds(self))

    @property
    def why(self) -> str:
        """Why it is in that state, in one lower-case sentence."""
        return _explained(self)

    @property
    def last_event(self) -> NumberedEvent | None:
        """The last event that could be read."""
        return next((entry for entry in reversed(self.events) if entry.event is not None), None)

    def of_kind(self, kind: type[AnyEvent], *, any_attempt: bool = False) -> Iterator[AnyEvent]:
        """The events of a kind, newest first; of this attempt only, unless ``any_attempt``."""
        for event in self._newest_first:
            if isinstance(event, kind) and (any_attempt or event.attempt == self.attempt):
                yield event

    @cached_property
    def _newest_first(self) -> tuple[Event, ...]:
        return tuple(entry.event for entry in reversed(self.events) if entry.event is not None)

    @cached_property
    def commands(self) -> dict[str, CommandStatus]:
        """The status of each command of the deployment that an event names."""
        return self.commands_with(())

    def commands_with(self, slots: Iterable[CommandSlot]) -> dict[str, CommandStatus]:
        """The status of each command of the deployment that an event names, or that one of these objects holds."""
        return fold(slots, (entry.event for entry in self.events))

    def command_status(self, command_id: str) -> CommandStatus:
        """The status of one command, as far as events show it."""
        return self.commands.get(command_id, NEVER_SEEN)

    def number_of(self, event: Event | None) -> int:
        """The number of an event of this observation; 0 for any other."""
        return next((entry.number for entry in self.events if event is not None and entry.event is event), 0)

    @property
    def terminal(self) -> Event | None:
        """The event that ended this attempt; None before its end."""
        return next((event for event in self.of_kind(Event) if isinstance(event, TERMINAL_EVENTS)), None)

    @property
    def failed_queries(self) -> dict[str, QueryFailed]:
        """The queries of this attempt that have failed and were not started again, each with its last failure."""
        found: dict[str, QueryFailed] = {}
        for entry in self.events:
            event = entry.event
            if event is None or event.attempt != self.attempt:
                continue
            if isinstance(event, QueryFailed):
                found[event.query_name] = event
            elif isinstance(event, QueryStarted):
                found.pop(event.query_name, None)
        return found

    @property
    def drained(self) -> Drained | None:
        """The drain of this deployment, by any attempt: the first, since a deployment is drained once."""
        return next((entry.event for entry in self.events if isinstance(entry.event, Drained)), None)

    @property
    def has_come_to_its_end(self) -> bool:
        """Whether the stream has read all there was, and ended by itself: by the triggers of its queries, or since its
        sources report that nothing follows."""
        return self.state == "finished" or self.has_drained_itself

    @property
    def has_drained_itself(self) -> bool:
        """Whether it is drained because its sources report that nothing follows."""
        return self.drained is not None and bool(self.drained.reason)

    @property
    def is_closed(self) -> bool:
        """Whether a controller wrote the claim (pid 0), so that no driver can ever be this attempt."""
        return self.claim is not None and self.claim.pid == 0

    @property
    def is_claimed(self) -> bool:
        """Whether a driver is this attempt."""
        return self.claim is not None and self.claim.pid != 0

    @property
    def is_unlaunched(self) -> bool:
        """Whether no driver is known to be started for this attempt, so that a launch by its key is safe."""
        never = self.launch_status is None or self.launch_status.state == "pending"
        return never and self.claim is None and self.terminal is None

    @property
    def has_started(self) -> bool:
        """Whether this attempt has a Spark session."""
        return any(isinstance(event, Started | QueryStarted) for event in self.of_kind(Event))

    def accepted(self, kind: str) -> Accepted | None:
        """The last command of this kind that this attempt obeys."""
        return next((event for event in self.of_kind(Accepted) if event.command.get("kind") == kind), None)

    @property
    def was_ended_by_machine(self) -> bool:
        """Whether this attempt stopped because its machine asked its driver to end: the stream must continue."""
        order = self.accepted(StopRequest.kind)
        if not isinstance(self.terminal, Stopped) or order is None:
            return False
        # A stop that a person has ordered in the meantime was ignored, since the driver was stopping already.
        ignored = [event.command for event in self.of_kind(Ignored) if event.command.get("kind") == StopRequest.kind]
        by = {command.get("requested_by") for command in (order.command, *ignored)}
        return by == {BY_THE_DRIVER}

    @property
    def was_interrupted(self) -> bool:
        """Whether this attempt ended with its state kept, and nobody had asked for it: its machine did, or its script
        ended before its input."""
        terminal = self.terminal
        return self.was_ended_by_machine or (isinstance(terminal, Finished) and bool(terminal.unfinished))

    @property
    def is_draining(self) -> bool:
        """Whether this attempt has started to drain, and does not run on after all."""
        called_off = {event.command_id for event in self.of_kind(DrainFailed) if event.then == "runs_on"}
        obeyed = {event.command_id for event in self.of_kind(Draining)} | {
            event.command_id for event in self.of_kind(Accepted) if event.command.get("kind") == DrainNotification.kind
        }
        if obeyed - called_off:
            return True
        return self.is_current and self.register.attempt_mode == "drain" and self.is_claimed

    @property
    def has_old_heartbeat(self) -> bool:
        """Whether the last heartbeat of this attempt is so old that nothing it reports holds now."""
        age_seconds = self.heartbeat_age_seconds
        return age_seconds is not None and age_seconds > self.spec.version.settings.lost_after_seconds

    @property
    def silent_since_at(self) -> datetime:
        """The last sign of life of this attempt: event, heartbeat or claim; else the time of the register or spec."""
        signs = [event.at for event in self.of_kind(Event)][:1]
        if self.heartbeat is not None and self.heartbeat.attempt == self.attempt:
            signs.append(self.heartbeat.at)
        if self.claim is not None:
            signs.append(self.claim.claimed_at)
        return max(signs, default=self.register.updated_at if self.is_current else self.spec.created_at)


FENCED_STATUS = 4
"""The exit status of a driver that is not, or no longer, the attempt."""


def with_believed_end(seen: Observation, watched_seconds: float) -> Observation:
    """The observation in which a reported end counts, once the driver has been silent for ``lost_after_seconds``.

    A cluster may report an end while processes of the driver still work (``LaunchStatus.reported_end``). A driver whose
    processes work writes heartbeats. Where another driver has the claim of the attempt, the end of this one by
    FENCED_STATUS is no evidence about that one.

    Args:
        watched_seconds: for how long this process has seen no new sign of life, by its own clock. The age of the last
            one counts only where it is beyond what clocks of two machines may differ by.
    """
    status = seen.launch_status
    if status is None or seen.handle is None:
        return seen
    if seen.handle.launcher != LOCAL and status.exit_code == FENCED_STATUS and seen.is_claimed and not seen.terminal:
        reason = "another driver has claimed this attempt, and its end is not known"
        status = LaunchStatus("unknown", None, reason, status.observed_at, reported_end=True)
        seen = replace(seen, launch_status=status)
    if not status.reported_end:
        return seen
    limit_seconds = seen.spec.version.settings.lost_after_seconds
    age_seconds = (seen.observed_at - seen.silent_since_at).total_seconds()
    if watched_seconds <= limit_seconds and age_seconds <= limit_seconds + CLOCKS_DIFFER_SECONDS:
        return seen
    reason = f"{status.reason}; no sign of life of it for {max(watched_seconds, limit_seconds):.0f} s"
    return replace(seen, launch_status=LaunchStatus("gone", None, reason, status.observed_at))


def pending_drain(
    observation: Observation, slots: Iterable[CommandSlot], *, is_from_outside: bool = False
) -> DrainNotification | None:
    """The drain that holds for this deployment, or None.

    Args:
        slots: its recorded commands.
        is_from_outside: leave out one that its driver has ordered itself.
    """
    found = command_status.pending_drain(
        observation.commands_with(slots),
        stream_id=observation.stream_id,
        deployment_id=observation.deployment_id,
        now=observation.observed_at,
        is_from_outside=is_from_outside,
    )
    return None if found is None else found[0]


@dataclass(frozen=True)
class Row:
    """One row of the table: the state, and its condition as text and as a function."""

    state: State
    when: str
    holds: Callable[[Observation], bool]


STATE_TABLE: tuple[Row, ...] = (
    Row("drained", "some attempt reported Drained", lambda seen: seen.drained is not None),
    Row("stopped", "the attempt reported Stopped", lambda seen: isinstance(seen.terminal, Stopped)),
    Row(
        "failed",
        "the attempt reported Finished, and a query had not ended",
        lambda seen: isinstance(seen.terminal, Finished) and bool(seen.terminal.unfinished),
    ),
    Row("finished", "the attempt reported Finished", lambda seen: isinstance(seen.terminal, Finished)),
    Row("failed", "the attempt reported Failed", lambda seen: isinstance(seen.terminal, Failed)),
    Row("fenced", "the attempt reported Fenced", lambda seen: isinstance(seen.terminal, Fenced)),
    Row("fenced", "another deployment is current", lambda seen: not seen.is_current),
    Row("failed", "the driver has ended without a last event", lambda seen: _has_ended(seen)),
    Row("failed", "the attempt was abandoned before a driver had claimed it", lambda seen: seen.is_closed),
    Row(
        "lost",
        "the driver cannot be asked about, and its sign of life is older than lost_after_seconds",
        lambda seen: _is_unknown(seen) and _is_silent(seen),
    ),
    Row(
        "silent",
        "the launcher reports that the driver lives, and its last heartbeat is older than lost_after_seconds",
        lambda seen: _is_running(seen) and seen.has_old_heartbeat,
    ),
    Row("draining", "the attempt has accepted a drain, or was started for one", lambda seen: seen.is_draining),
    Row("stopping", "the attempt has accepted a stop", lambda seen: seen.accepted(StopRequest.kind) is not None),
    Row(
        "degraded",
        "the attempt reported QueryFailed of a query, and has not started it again",
        lambda seen: bool(seen.failed_queries),
    ),
    Row("running", "the attempt reported Started", lambda seen: seen.has_started),
    Row("launching", "otherwise", lambda _seen: True),
)


def _explained(observation: Observation) -> str:
    row = observation._row
    status = observation.launch_status
    if row.state == "launching" and observation.is_unlaunched:
        return "it is recorded, but no driver was started for it yet; resume starts one"
    if isinstance(observation.terminal, Finished) and row.state == "failed":
        return observation.terminal.sentence
    if row.state == "silent":
        return describe_silence(observation)
    if row.state == "degraded":
        return "; ".join(_describe_failed(event) for event in observation.failed_queries.values())
    if row.state == "failed" and observation.is_closed and observation.claim is not None:
        return observation.claim.agent_version
    if row.state in ("failed", "lost") and status is not None and observation.terminal is None:
        said = f"{row.when}: {status.reason}" if status.reason else row.when
        return said if row.state == "lost" else f"{said}{_perhaps_unread(observation)}"
    return row.when if row.when != "otherwise" else "its driver has not started its Spark session yet"


def describe_silence(seen: Observation) -> str:
    """Since when nothing is known of a driver that is silent, in one lower-case sentence."""
    age_seconds = seen.heartbeat_age_seconds or 0.0
    return (
        f"its driver lives, and has given no sign of life for {age_seconds:.0f} s: what it does is unknown since then"
    )


def _describe_failed(event: QueryFailed) -> str:
    where = "" if event.planned_batch_id is None else f" in batch {event.planned_batch_id}"
    return f"query {event.query_name} has failed{where}: {event.sentence}"


def markdown_table() -> str:
    """The table for the documentation."""
    lines = ["| | state | when (the first row that holds decides) |", "|---|---|---|"]
    lines += [f"| {number} | `{row.state}` | {row.when} |" for number, row in enumerate(STATE_TABLE, 1)]
    return "\n".join(lines)


def _perhaps_unread(seen: Observation) -> str:
    numbers = [str(entry.number) for entry in seen.events if entry.event is None]
    return f"; event {', '.join(numbers)} cannot be read, and may be that word" if numbers else ""


def _has_ended(seen: Observation) -> bool:
    return seen.launch_status is not None and seen.launch_status.has_ended


def _is_unknown(seen: Observation) -> bool:
    # Claimed without a known launch: its controller died before it recorded the launch.
    return seen.is_claimed if seen.launch_status is None else seen.launch_status.state == "unknown"


def _is_running(seen: Observation) -> bool:
    return seen.launch_status is not None and seen.launch_status.state == "running" and seen.is_claimed


def _is_silent(seen: Observation) -> bool:
    return (seen.observed_at - seen.silent_since_at).total_seconds() > seen.spec.version.settings.lost_after_seconds


# Batches of an observed deployment that ran again after a kill, and those that its next attempt runs again first.


def repeated(seen: Observation) -> tuple[Repeat, ...]:
    """The batches of this deployment that ran again, oldest first."""
    return tuple(repeats_of(_events(seen)))


def describe_foreseen(home: Home, seen: Observation) -> str:
    """What the next attempt of an ended deployment runs again, as one sentence; "" for nothing or unreadable logs."""
    from airflow_streamstate.controller.observe.lineage import repeats_to_come

    events = _events(seen)
    names = {event.query_name for event in events if isinstance(event, QueryStarted)}
    with suppress(StreamStateError):
        found = {name: checkpoint_of(home, seen, name) for name in names}
        there = {name: checkpoint for name, checkpoint in found.items() if checkpoint.exists()}
        control = home.control(seen.stream_id)
        coming = repeats_to_come(control, seen.deployment_id, seen.attempt + 1, events, there)
        return describe_repeats(seen.stream_id, coming)
    return ""


def checkpoint_of(home: Home, seen: Observation, query_name: str) -> Checkpoint:
    """The checkpoint of a query of the observed deployment, whether it exists or not."""
    from airflow_streamstate.checkpoint.log import Checkpoint

    return Checkpoint(home.checkpoints, layout.checkpoint_folder(seen.stream_id, seen.deployment_id, query_name))


def _events(seen: Observation) -> list[Event]:
    return [entry.event for entry in seen.events if entry.event is not None]


# Queries of an observed deployment that cannot resume in their own checkpoints: a source of them sends rows once.

OneTimeSources = Mapping[str, Mapping[str, str]]
"""By query, the sources that it cannot resume from: what each is -> why."""


def one_time_sources(home: Home, seen: Observation) -> OneTimeSources:
    """The queries that no attempt of this deployment can start again.

    They have committed an offset that means nothing to the next connection, and a resume never changes a checkpoint.
    Sources are those of the newest start of each query. A query whose log cannot be read is left out: its driver
    decides.
    """
    from airflow_streamstate.connectors.registry import known_sources, sending_once

    starts: dict[str, QueryStarted] = {}
    for event in seen.of_kind(QueryStarted, any_attempt=True):  # newest first
        starts.setdefault(event.query_name, event)
    found = {}
    for name, start in sorted(starts.items()):
        with suppress(StreamStateError):
            sources = sending_once(start.identities, _lines(home, seen, name), known_sources().connectors)
            if sources:
                found[name] = sources
    return found


def _lines(home: Home, seen: Observation, name: str) -> tuple[str, ...]:
    """The offsets of the last committed batch; none before the first."""
    checkpoint = checkpoint_of(home, seen, name)
    batch_id = checkpoint.position().batch_id if checkpoint.exists() else None
    entry = None if batch_id is None else checkpoint.read_offset(batch_id)
    return () if entry is None else entry.source_lines


def describe_why(found: OneTimeSources) -> str:
    """Why they cannot resume, as one clause."""
    return "; ".join(f"query {name} reads {what}: {why}" for name in found for what, why in found[name].items())


def consent(found: OneTimeSources) -> str:
    """The options with which a deploy starts them, with lost input."""
    return " ".join(f"--accept-lost-input {name}" for name in found)


# Queries whose trigger ends each run by itself (``availableNow``, ``once``): each attempt is one run. Pure.


def bounded_queries(seen: Observation) -> frozenset[str]:
    """The queries of this attempt whose last start had such a trigger."""
    starts = {event.query_name: event for event in reversed(list(seen.of_kind(QueryStarted)))}
    return frozenset(name for name, start in starts.items() if start.ends_by_itself)


def is_between_runs(seen: Observation) -> bool:
    """Whether the last run of a deployment whose queries all have such a trigger has ended by itself."""
    names = {event.query_name for event in seen.of_kind(QueryStarted)}
    return seen.state == "finished" and bool(names) and names == bounded_queries(seen)


def ended_runs(seen: Observation) -> frozenset[str]:
    """The queries of this attempt whose trigger has ended a run of them, without a failure."""
    beat = seen.heartbeat
    beats = {} if beat is None or beat.attempt != seen.attempt else beat.queries
    over = {name for name in bounded_queries(seen) if name in beats and beats[name].run_has_ended}
    return frozenset(over | repeated_runs(seen))


def repeated_runs(seen: Observation) -> frozenset[str]:
    """Queries with such a trigger that the script has started again in this attempt, after a run that did not fail."""
    if next(seen.of_kind(Accepted), None) is not None:
        return frozenset()  # the driver starts a query again, too: after a drain that was called off, or a skip
    starts = Counter(event.query_name for event in seen.of_kind(QueryStarted))
    starts.subtract(event.query_name for event in seen.of_kind(QueryFailed))
    return frozenset(name for name in bounded_queries(seen) if starts[name] > 1)


# How far a drain of a deployment has progressed in each query, by its events alone.

DrainPhase = Literal["accepted", "flushing", "drained", "failed"]


def drain_phases(seen: Observation) -> dict[str, DrainPhase]:
    """How far the last drain of the deployment has got, per query; queries that it does not concern are left out.

    ``accepted``: the query reads nothing new, or ends its batch · ``flushing``: its flush batch was announced ·
    ``drained``: that batch is committed · ``failed``: the drain failed at this query. A drain that was rejected or
    called off, or after which a later attempt runs, gives nothing.
    """
    status = seen.command_status(_last_drain(seen))
    if not (status.is_begun or status.is_flushing) or _means_nothing(status, seen):
        return {}
    flushes = status.flush_batch_ids or {}
    phases: dict[str, DrainPhase] = dict.fromkeys(_started_queries(seen, status), "accepted")
    phases |= dict.fromkeys(flushes, "flushing")
    phases |= dict.fromkeys(status.failed_queries, "failed")
    ends = [entry.event for entry in seen.events if isinstance(entry.event, Drained | Stopped | Finished)]
    for end in ends:
        for name, position in end.queries.items():
            # Where the deployment ended shows which flushes are committed (Law 13).
            if name in flushes and position.batch_id == flushes[name]:
                phases[name] = "drained"
            elif isinstance(end, Drained):
                phases.pop(name, None)  # carried on unflushed, or there was nothing to flush
    return phases


def _last_drain(seen: Observation) -> str:
    """The drain command that was started last, or ""."""
    for event in seen.of_kind(Event, any_attempt=True):
        if isinstance(event, Draining) or (
            isinstance(event, Accepted) and event.command.get("kind") == DrainNotification.kind
        ):
            return event.command_id
    return ""


def _means_nothing(status: CommandStatus, seen: Observation) -> bool:
    """Whether the queries run on as if no drain had been asked for, or it failed in an attempt that has ended."""
    end = status.end
    if isinstance(end, Rejected):
        return True
    if not isinstance(end, DrainFailed):
        return False
    return end.then == "runs_on" or (seen.drained is None and end.attempt != seen.attempt)


def _started_queries(seen: Observation, status: CommandStatus) -> Iterator[str]:
    """The queries that had started when the drain failed; all where it did not fail."""
    for entry in seen.events:
        if entry.event is status.end and isinstance(entry.event, DrainFailed):
            return
        if isinstance(entry.event, QueryStarted):
            yield entry.event.query_name


# The refusals of what a silent driver would not obey, each with the way that works. Pure.

AskedVerb = Literal["stop", "drain", "cancel", "snapshot", "deploy", "resume", "upgrade"]
_WAYS: Mapping[AskedVerb, str] = {
    "stop": "`streamstate stop {stream} --deadline 60 --on-deadline kill` ends its driver if it does not wake until"
    " then, and keeps its end",
    "drain": "`streamstate kill {stream}` ends its driver; then `streamstate drain {stream}` starts one that only"
    " flushes",
    "cancel": "`streamstate kill {stream}` ends its driver",
    "snapshot": "`streamstate kill {stream}` ends its driver; then `streamstate resume {stream}`, and ask again",
    "deploy": "`streamstate kill {stream}` ends its driver; then deploy again: it continues from the last commit",
    "resume": "`streamstate kill {stream}` ends its driver; then `streamstate resume {stream}` continues from the last"
    " commit",
    "upgrade": "`streamstate kill {stream}` ends its driver; then upgrade: the new version continues from the last"
    " commit",
}


def silent_error(seen: Observation, verb: AskedVerb) -> ConflictError:
    """The refusal of this verb for a stream that is ``silent``."""
    return ConflictError(
        "the stream is silent: its driver lives, and has given no sign of life, so it would obey nobody",
        stream_id=seen.stream_id,
        deployment_id=seen.deployment_id,
        attempt=seen.attempt,
        state=seen.state,
        silent_for_seconds=round(seen.heartbeat_age_seconds or 0.0, 1),
        next_step=f"{_WAYS[verb].format(stream=seen.stream_id)}. `streamstate status {seen.stream_id}` shows if it"
        " wakes.",
    )


# What watchers do about a stream's failures, as text for ``status``, ``list`` and ``home doctor``. Pure.


def gave_up_of(seen: Observation) -> str:
    """Why watchers start no attempt after the failure of this current one; "" where they do, or it has not failed."""
    record = seen.register.restarts
    if not seen.is_current or record is None or seen.register.restart_policy.on_failure == "nothing":
        return ""
    return record.gave_up if (record.deployment_id, record.attempt) == (seen.deployment_id, seen.attempt) else ""


def describe_restarts(seen: Observation) -> str:
    """The restart policy of a current deployment and what came of it, in one line; "" for ``nothing``."""
    register = seen.register
    policy, record = register.restart_policy, register.restarts
    if policy.on_failure == "nothing" or not seen.is_current:
        return ""
    if record is None or (record.deployment_id, record.attempt) != (seen.deployment_id, seen.attempt):
        return policy.on_failure
    if gave_up := gave_up_of(seen):
        return f"abandoned: {gave_up}"
    if record.is_told:
        return f"{policy.on_failure}: reported at {format_time(record.recorded_at)}"
    if record.is_started:
        count = len(record.ages_seconds)
        return f"{policy.on_failure}: restarted at {format_time(record.recorded_at)}, {count} of {policy.max_restarts}"
    due_at = record.recorded_at + timedelta(seconds=record.backoff_seconds or 0.0)
    return f"{policy.on_failure}: attempt {record.attempt + 1} is due at {format_time(due_at)}"


# The bound on the age of a snapshot that a deployment starts from (``--max-snapshot-age``).


def refuse_old_end(
    seen: Observation, kept: SnapshotManifest | None, max_age_seconds: float | None, now: datetime
) -> None:
    """Refuse the end of a deployment that is too old to start from; raises IncompatibleUpgradeError.

    ``kept``: the snapshot at that end. Where it does not exist, or a controller took it (perhaps long after), the last
    heartbeat counts.
    """
    taken_at = kept.taken_at if kept is not None and kept.taken_by == "agent" else seen.silent_since_at
    refuse_old(taken_at, None if kept is None else kept.snapshot_id, max_age_seconds, now)


def refuse_old(taken_at: datetime, snapshot_id: str | None, max_age_seconds: float | None, now: datetime) -> None:
    """Refuse what was taken before this bound, None for no bound; raises IncompatibleUpgradeError."""
    age_seconds = (now - taken_at).total_seconds()
    if max_age_seconds is None or age_seconds <= max_age_seconds:
        return
    raise IncompatibleUpgradeError(
        "the state to start from is older than was allowed",
        snapshot_id=snapshot_id,
        taken_at=taken_at,
        snapshot_age_seconds=round(age_seconds, 1),
        max_snapshot_age_seconds=max_age_seconds,
        next_step="Allow more with --max-snapshot-age, if what was missed since may be read now.",
    )
