"""Turns what was seen of a deployment into views and errors: status, outcomes, advice, log tail. Writes nothing."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import urlsplit

from airflow_streamstate.control.journal import CommandSlot
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.drivers.secret_lookup import has_references
from airflow_streamstate.controller.observe.handovers import moves_in
from airflow_streamstate.controller.observe.health import query_caught_up
from airflow_streamstate.controller.observe.observation import (
    ALIVE,
    Observation,
    OneTimeSources,
    State,
    consent,
    describe_foreseen,
    describe_restarts,
    describe_why,
    drain_phases,
    one_time_sources,
    pending_drain,
    repeated,
)
from airflow_streamstate.controller.observe.outcomes import (
    decide_command_outcome,
    decide_drain_outcome,
    decide_end,
    with_commits,
    with_newer,
)
from airflow_streamstate.controller.observe.pending_orders import pending_orders
from airflow_streamstate.controller.observe.views import (
    Outcome,
    QueryStatus,
    SnapshotFacts,
    StreamStatus,
)
from airflow_streamstate.controller.stream_guards import UpgradeHold, hold_of
from airflow_streamstate.controller.wait.condition import reason_of_end
from airflow_streamstate.errors import (
    DataError,
    DeploymentFailedError,
    DeploymentRefusedError,
    StreamStateError,
    UntrustedRecordError,
)
from airflow_streamstate.launch.interface import DRIVER_CONFIG, LOCAL, LaunchHandle, describe_place
from airflow_streamstate.launch.local import handed_over_secrets
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import (
    Claimed,
    Drained,
    DrainFailed,
    Event,
    Failed,
    Finished,
    QueryStarted,
    SnapshotReady,
    Started,
    Stopped,
)
from airflow_streamstate.protocol.ids import upgrade_of_return
from airflow_streamstate.protocol.positions import Heartbeat, QueryBeat, QueryPosition
from airflow_streamstate.protocol.records import DeploymentSpec, StartPlan
from airflow_streamstate.protocol.redaction import redact_text, secrets_of

AnyEvent = TypeVar("AnyEvent", bound=Event)
LOG_TAIL_BYTES = 8_192
MOST_URL_CHARACTERS = 2048
LOG_TAIL_LINES = 20
MOST_UNREADABLE = 100
_ENDED_ITSELF = "SystemExit: "
_OF_A_QUERY = "[STREAM_FAILED]"
"""In Spark's words for a query that failed; used for advice only, nothing is decided by it (Law 13)."""
_SIGNALS_FROM = 128


def next_step_of(seen: Observation, state: State, repeats: str = "", one_time: OneTimeSources | None = None) -> str:
    """What can be done about a failed, degraded or silent deployment, the likeliest step first; "" for other states.

    Args:
        repeats: what a resume runs again, as text (``repeating.describe_foreseen``).
        one_time: queries that no resume can start again, or None.
    """
    if state == "silent":
        return _of_silence(seen)
    if state not in ("failed", "degraded"):
        return ""
    if one_time:
        return _of_one_time_sources(seen, state, one_time)
    if state == "degraded":
        return _of_failed_queries(seen)
    failed = seen.terminal
    if isinstance(failed, Finished):
        return (
            f"`streamstate resume {seen.stream_id}` continues it. A script that is to end by itself reads with"
            " trigger(availableNow=True); any other one waits, as by awaitTermination(), until a verb ends it."
        )
    return _of_words(seen, failed) if isinstance(failed, Failed) else _of_no_last_word(seen, repeats)


def _of_silence(seen: Observation) -> str:
    """It may wake by itself, after a pause of its machine or its JVM, and then nothing is lost."""
    stream_id, policy = seen.stream_id, seen.register.restart_policy
    by_watchers = ""
    if policy.on_failure == "restart" and policy.hung_after_seconds:
        by_watchers = f"; a watcher does both after {policy.hung_after_seconds:g} s of silence"
    return (
        f"If it does not wake, `streamstate kill {stream_id}` ends its driver, and `streamstate resume {stream_id}`"
        f" continues from the last commit{by_watchers}; {_log(seen)}."
    )


def _of_one_time_sources(seen: Observation, state: State, one_time: OneTimeSources) -> str:
    """Resume and rollback would be refused; only a deploy continues, and the sentence states what it loses."""
    is_cut_off = state == "failed" and not isinstance(seen.terminal, Failed)
    begin = "" if is_cut_off else "Fix what the error names, then "
    verb = "deploy" if state == "failed" else "upgrade"
    return (
        f"{begin}`streamstate {verb} {seen.stream_id}` with {consent(one_time)}: it keeps the state, and what was sent"
        " since, or was read and not committed, is lost; a resume is refused"
        f" ({describe_why(one_time)}); {_log(seen)}."
    )


def _of_failed_queries(seen: Observation) -> str:
    """The other queries run; a restart of the failed one stops them first, between two batches."""
    stream_id, failed = seen.stream_id, seen.failed_queries.values()
    skip = ""
    if any(event.planned_batch_id is not None for event in failed):
        skip = f"; if that batch can never run, `streamstate skip {stream_id}` after the stop passes it over"
    return (
        f"Fix the script and `streamstate upgrade {stream_id}`{_back(seen.spec)}: the failed query continues where it"
        f" was; if the cause was outside of it, `streamstate stop {stream_id}` and `streamstate resume"
        f" {stream_id}` run it again{skip}; {_log(seen)}."
    )


def next_step_of_drain(seen: Observation, event: object) -> str:
    """What can be done about a drain that failed; ``event``: its end, where only a ``DrainFailed`` has choices."""
    choices = event.choices if isinstance(event, DrainFailed) else ()
    if len(choices) == 1:
        return f"{choices[0][:1].upper()}{choices[0][1:]}. {_log(seen)}."
    listed = " ".join(f"({number}) {choice};" for number, choice in enumerate(choices, 1)).removesuffix(";")
    what = f"Do one of these: {listed}" if choices else f"`streamstate status {seen.stream_id}` shows it"
    return f"{what}. {_log(seen)}."


def _of_words(seen: Observation, failed: Failed) -> str:
    resume, back = f"`streamstate resume {seen.stream_id}`", _back(seen.spec)
    if failed.error.startswith(_ENDED_ITSELF):
        said = f"what it printed, such as how its arguments must be given, is in `streamstate logs {seen.stream_id}`"
        return f"The script ended itself: {said}; deploy it again as it wants to be called{back}."
    if failed.next_step:
        return failed.next_step
    if failed.is_refusal:
        return f"Change what the error names, and deploy the script again{back}; {_log(seen)}."
    if not failed.traceback:
        return f"Fix what the error names, then {resume}, or deploy another version{back}; {_log(seen)}."
    skip = f"; where one batch can never run, `streamstate skip {seen.stream_id}` passes it over"
    skips = skip if _has_planned_batch(seen) else ""
    outside = f"where the cause was outside of it, {resume} runs it again"
    return f"Fix the script and deploy it again{back}; {outside}{skips}; {_log(seen)}."


def _has_planned_batch(seen: Observation) -> bool:
    """Whether a failed query had planned a batch: only that can be skipped."""
    return any(event.planned_batch_id is not None for event in seen.failed_queries.values())


def _of_no_last_word(seen: Observation, repeats: str) -> str:
    """For a driver that was cut off, or that ended before it ran the script."""
    resume, status = f"`streamstate resume {seen.stream_id}`", seen.launch_status
    if seen.is_closed:
        return f"{resume} starts another driver for it."
    exit_code = None if status is None else status.exit_code
    if not exit_code or exit_code > _SIGNALS_FROM:
        told = f" ({repeats})" if repeats else ""
        return f"{resume} continues where it was cut off, without a lost row{told}; {_log(seen)}."
    other = "if that is a setting of this version, deploy it again with another"
    return f"Fix what the reason names, then {resume}; {other}{_back(seen.spec)}; {_log(seen)}."


def _log(seen: Observation) -> str:
    return f"`streamstate logs {seen.stream_id}` has the whole log"


def _back(spec: DeploymentSpec) -> str:
    """The rollback, where a version before exists; not where a rollback has just left that version."""
    if spec.start.predecessor_id is None or upgrade_of_return(spec.request_id) is not None:
        return ""
    return f", or `streamstate rollback {spec.stream_id}` to the version before"


class Watching:
    """Views and errors of observed deployments."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._home = context.home
        self._clock = context.clock

    def status(self, seen: Observation) -> StreamStatus:
        """The status of the observed deployment."""
        now = self._clock.now()
        last = seen.last_event
        intent = seen.register.intent
        snapshot_id, snapshot_at = self._last_snapshot(seen)
        state, why = seen.state, seen.why
        error, traceback = _describe_failure(seen, state, why)
        started = next(seen.of_kind(Started), None)
        beat = seen.heartbeat if seen.heartbeat is not None and seen.heartbeat.attempt == seen.attempt else None
        control = self._home.control(seen.stream_id)
        slots, hold = control.journal(seen.deployment_id).commands(), hold_of(control, seen.register)
        return StreamStatus(
            stream_id=seen.stream_id,
            deployment_id=seen.deployment_id,
            attempt=seen.attempt,
            state=state,
            why=redacted(seen, why),
            start=seen.spec.start,
            queries=with_commits(self._home, seen, _queries(seen, state)),
            is_current=seen.is_current,
            fencing_token=seen.spec.fencing_token,
            version_label=seen.spec.version.version_label,
            application=seen.spec.version.application.name,
            created_at=seen.spec.created_at,
            heartbeat_age_seconds=_rounded(seen.heartbeat_age_seconds),
            snapshot_age_seconds=None if snapshot_at is None else _age(now, snapshot_at),
            snapshot_id=snapshot_id,
            last_event=None if last is None or last.event is None else redacted_event(seen, last.event),
            last_event_number=0 if last is None else last.number,
            error=redacted(seen, error),
            traceback=redacted(seen, traceback),
            driver=self._place_of(seen),
            links=dict(self._links(seen)),
            application_id="" if started is None else started.application_id,
            upgrade=hold.text,
            upgrade_hold=hold.kind,
            intent="" if intent is None else f"{intent.deployment_id} by {intent.requested_by}",
            attempt_reason=redacted(seen, _attempt_reason(seen)),
            end_reason=redacted(seen, reason_of_end(seen)) if state in ("stopped", "drained") else "",
            restarts=redacted(seen, describe_restarts(seen)),
            moves=tuple(redacted_event(seen, event) for event in moves_in([entry.event for entry in seen.events])),
            running_since_at=None if started is None else started.at,
            next_step=self._next_step(seen, state, hold),
            orders=tuple(
                dataclasses.replace(order, reason=redacted(seen, order.reason))
                for order in pending_orders(seen, slots, state)
            ),
            unreadable=_unreadable(seen, slots),
            repeats=repeated(seen),
            changed_files=_changed_files(seen, beat),
            remarks=_remarks(seen),
            owner=seen.register.ownership.owner,
            labels=seen.register.ownership.labels,
            retention=seen.register.retention,
        )

    def status_again(self, seen: Observation, before: StreamStatus, before_at: datetime) -> StreamStatus:
        """The status of what ``Observer.look_again`` saw; reads nothing.

        Args:
            before: the status at the look before, and when that was.
        """
        now, age = self._clock.now(), before.snapshot_age_seconds
        beat = seen.heartbeat if seen.heartbeat is not None and seen.heartbeat.attempt == seen.attempt else None
        return dataclasses.replace(
            before,
            why=redacted(seen, seen.why),
            queries=with_newer(_queries(seen, seen.state), before.queries if seen.state not in ALIVE else {}),
            changed_files=_changed_files(seen, beat),
            heartbeat_age_seconds=_rounded(seen.heartbeat_age_seconds),
            snapshot_age_seconds=None if age is None else age + _age(now, before_at),
            driver=self._place_of(seen),
        )

    def _place_of(self, seen: Observation) -> str:
        """Where the driver runs, and why its cluster does not report whether it runs; "" for this machine."""
        if seen.handle is None or seen.handle.launcher == LOCAL:
            return ""
        host = "" if seen.claim is None or not seen.claim.pid else f", on {seen.claim.host}"
        status = seen.launch_status
        untold = "" if status is None or status.state != "unknown" else f"; unknown whether it runs: {status.reason}"
        return redacted(seen, f"{describe_place(seen.handle)}{host}{untold}")

    def _links(self, seen: Observation) -> Mapping[str, str]:
        try:
            found = {} if seen.handle is None else self._context.launcher.links(seen.handle)
            return {name: url for name, url in found.items() if is_page(url)}
        except StreamStateError:
            return {}  # a cluster that does not answer has no page either

    def unreadable(self, stream_id: str, error: StreamStateError) -> StreamStatus:
        """The view of a stream whose control objects cannot be read."""
        short = {name: fact for name, fact in error.context.items() if "\n" not in str(fact)}
        return StreamStatus(
            stream_id=stream_id,
            deployment_id="",
            attempt=0,
            state="unreadable",
            why="its control objects cannot be read",
            start=StartPlan(mode="fresh"),
            queries={},
            is_current=False,
            fencing_token=0,
            error=str(type(error)(error.message, next_step=error.next_step, **short)),
        )

    def outcome(self, seen: Observation, end: Outcome, command_id: str = "") -> Outcome:
        """The end as it is shown: with the facts of its snapshot, and without secrets."""
        return dataclasses.replace(
            end,
            snapshot=self._facts(self._home.control(seen.stream_id), end.snapshot_id),
            reason=redacted(seen, end.reason),
            traceback=redacted(seen, end.traceback),
            command_id=command_id,
        )

    def command_end(self, seen: Observation, command_id: str, kind: str = "") -> Outcome | None:
        """What became of a command; None while it is under way."""
        return decide_command_outcome(seen, command_id, kind or self._command_kind(seen, command_id))

    def _command_kind(self, seen: Observation, command_id: str) -> str:
        """The kind of a command whose object exists and that no event names; "" for others."""
        if any(getattr(entry.event, "command_id", None) == command_id for entry in seen.events):
            return ""
        for slot in self._home.control(seen.stream_id).journal(seen.deployment_id).commands():
            if slot.command is not None and slot.command.command_id == command_id:
                return slot.command.kind
        return ""

    def drain_end(self, seen: Observation) -> Outcome | None:
        """What the drain by any client came to; None while one may still come."""
        end = decide_drain_outcome(seen, is_pending=False)
        if end is not None and (end.outcome in ("expired", "rejected") or end.state in ALIVE):
            slots = self._home.control(seen.stream_id).journal(seen.deployment_id).commands()
            return decide_drain_outcome(seen, is_pending=pending_drain(seen, slots) is not None)
        return end

    def failure(self, seen: Observation, end: Outcome) -> DeploymentFailedError:
        """The error of a failed deployment or drain: its words, the script's traceback, the end of its log."""
        is_drain = end.outcome == "drain_failed"
        if isinstance(end.event, Failed) and end.event.refuses_start:
            return DeploymentRefusedError(
                "the driver refused the start",
                stream_id=seen.stream_id,
                deployment_id=seen.deployment_id,
                attempt=seen.attempt,
                error=redacted(seen, end.reason),
                next_step=self._next_step(seen, "failed"),
            )
        return DeploymentFailedError(
            "the drain failed" if is_drain else "the deployment failed",
            stream_id=seen.stream_id,
            deployment_id=seen.deployment_id,
            attempt=seen.attempt,
            state=end.state,
            error=redacted(seen, end.reason),
            snapshot_id=end.snapshot_id,
            traceback=redacted(seen, end.traceback),
            log_tail=self.log_tail(seen),
            next_step=next_step_of_drain(seen, end.event) if is_drain else self._next_step(seen, "failed"),
        )

    def query_failure(self, seen: Observation) -> DeploymentFailedError:
        """The error of a degraded deployment: queries that failed while the others run on."""
        error, traceback = _describe_failure(seen, "degraded", seen.why)
        return DeploymentFailedError(
            "a query of the deployment has failed, and the others run on",
            stream_id=seen.stream_id,
            deployment_id=seen.deployment_id,
            attempt=seen.attempt,
            state="degraded",
            error=redacted(seen, error),
            traceback=redacted(seen, traceback),
            next_step=self._next_step(seen, "degraded"),
        )

    def log_tail(self, seen: Observation) -> str:
        """The last lines of the driver's log, secrets hidden, or why they are not shown; "" if there is no log."""
        is_alive = seen.launch_status is not None and seen.launch_status.state in ("running", "pending")
        return log_tail_of(self._context, seen.spec, seen.handle, is_alive=is_alive)

    def end_of(self, seen: Observation) -> Outcome | None:
        """How the deployment ended; None while it has not."""
        return decide_end(seen)

    def _next_step(self, seen: Observation, state: State, hold: UpgradeHold | None = None) -> str:
        if state == "silent":
            return next_step_of(seen, state)
        if state not in ("failed", "degraded"):
            return ""
        held = hold_of(self._home.control(seen.stream_id), seen.register) if hold is None else hold
        if held.next_step and seen.is_current:
            return f"{held.next_step[:-1]}; {_log(seen)}."
        one_time = one_time_sources(self._home, seen)
        repeats = describe_foreseen(self._home, seen) if state == "failed" and not one_time else ""
        return next_step_of(seen, state, repeats, one_time)

    def _facts(self, control: StreamControl, snapshot_id: str | None) -> SnapshotFacts | None:
        if snapshot_id is None:
            return None
        manifest = control.readable_manifest(snapshot_id)
        return SnapshotFacts(snapshot_id, "unreadable", 0, 0) if manifest is None else SnapshotFacts.of(manifest)

    def _last_snapshot(self, seen: Observation) -> tuple[str | None, datetime | None]:
        for entry in reversed(seen.events):
            event = entry.event
            if isinstance(event, Drained | Stopped | Finished | SnapshotReady) and event.snapshot_id is not None:
                return event.snapshot_id, event.at
        start = seen.spec.start.snapshot_id
        if start is None:
            return None, None
        manifest = self._home.control(seen.stream_id).readable_manifest(start)
        return start, None if manifest is None else manifest.taken_at


def _changed_files(seen: Observation, beat: Heartbeat | None) -> tuple[str, ...]:
    return () if beat is None else tuple(redacted(seen, text) for text in beat.changed_files)


def _remarks(seen: Observation) -> dict[str, tuple[str, ...]]:
    """Per query, the remarks of its last start, if there are any."""
    starts = {event.query_name: event for event in reversed(list(seen.of_kind(QueryStarted, any_attempt=True)))}
    return {
        name: tuple(redacted(seen, one) for one in start.remarks) for name, start in starts.items() if start.remarks
    }


def is_page(url: object) -> bool:
    """Whether this is the address of a page that a browser may be led to: http(s), a host, no credentials."""
    if not isinstance(url, str) or len(url) > MOST_URL_CHARACTERS or not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and "@" not in parts.netloc and "\\" not in url


def log_tail_of(
    context: ControllerContext, spec: DeploymentSpec, handle: LaunchHandle | None, *, is_alive: bool = False
) -> str:
    """The last lines of a driver's log, as ``Watching.log_tail``; ``is_alive``: the driver may write its last line."""
    if handle is None:
        return ""
    try:
        text = context.launcher.logs(handle, LOG_TAIL_BYTES)
    except StreamStateError:
        return ""
    if len(text.encode(errors="replace")) >= LOG_TAIL_BYTES:
        text = text.partition("\n")[2]  # a line cut in two may start with half a secret
    if is_alive:
        text = text[: text.rfind("\n") + 1]  # a line that is still being written may end with one
    try:
        text = redact_text(text, secrets_in_log(context, spec, handle)) if text else ""
    except DataError as error:
        return str(error)
    return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])


def secrets_seen(spec: DeploymentSpec, handle: LaunchHandle | None) -> tuple[str, ...]:
    """The secrets of a deployment; those that its record only refers to, as far as they are known here.

    Enough for the texts of its agent, which has hidden all of them itself.
    """
    handed_over = handed_over_secrets(handle) if has_references(spec) and _is_here(handle) else ()
    return secrets_of(spec.version.conf, spec.version.arguments, spec.version.environment, handed_over or ())


def secrets_in_log(context: ControllerContext, spec: DeploymentSpec, handle: LaunchHandle | None) -> tuple[str, ...]:
    """The secrets that may be in a driver's log, in which nothing is hidden; with its credentials for the home.

    Raises:
        DataError: the record refers to secrets, and their values at this launch cannot be read.
    """
    looked_up = context.drivers.handed_over(spec, handle)
    if looked_up is None and handle is not None and handle.launcher != LOCAL:
        raise DataError(
            "this log cannot be shown without the driver's secrets, and these cannot be looked up here",
            launcher=handle.launcher,
            next_step="Run this where the driver was launched from: in Airflow, or with the same environment.",
        )
    if looked_up is None:
        if handle is not None and handle.refused:
            raise UntrustedRecordError(
                "this log cannot be shown: it is unknown where it is",
                launch_key=handle.launch_key,
                reason=handle.refused,
            )
        path = None if handle is None else handle.data.get("log_path")
        raise DataError(
            "this log cannot be shown without the driver's secrets, and these cannot be read here",
            log=path,
            next_step=f"Read the log itself, as its owner on the machine that launched the driver; {DRIVER_CONFIG} "
            "next to it is damaged, gone, or another user's.",
        )
    return secrets_of(
        spec.version.conf,
        spec.version.arguments,
        spec.version.environment,
        (*looked_up, *context.home.credentials(os.environ)),
    )


def _is_here(handle: LaunchHandle | None) -> bool:
    return handle is not None and handle.launcher == LOCAL


def redacted(seen: Observation, text: str) -> str:
    """The text without the secrets of this deployment."""
    return redact_text(text, secrets_seen(seen.spec, seen.handle)) if text else text


def redacted_event(seen: Observation, event: AnyEvent) -> AnyEvent:
    """The event without the secrets of this deployment."""
    secrets = secrets_seen(seen.spec, seen.handle)
    if not secrets:
        return event
    texts: dict[str, Any] = {
        name: redact_text(value, secrets)
        for name, value in vars(event).items()
        if isinstance(value, str) and any(secret in value for secret in secrets)
    }
    return dataclasses.replace(event, **texts)


def _unreadable(seen: Observation, slots: Sequence[CommandSlot]) -> dict[str, str]:
    """What is wrong with each object of the deployment that cannot be read, by its key (Law 7): its events first, then
    its commands; of many of a kind the first ones."""
    events = (
        (layout.event_key(seen.stream_id, seen.deployment_id, one.number), one.problem)
        for one in seen.events
        if one.problem is not None
    )
    commands = ((slot.key, slot.problem) for slot in slots if slot.problem is not None)
    bad = (*islice(events, MOST_UNREADABLE), *islice(commands, MOST_UNREADABLE))
    return {key: str(problem.context.get("reason") or problem.message) for key, problem in bad}


def _describe_failure(seen: Observation, state: State, why: str) -> tuple[str, str]:
    """The error and the traceback of a failed or degraded deployment."""
    if state == "degraded":
        return why, "\n".join(event.traceback for event in seen.failed_queries.values())
    failed = next(seen.of_kind(Failed), None)
    if state != "failed" or failed is None:
        return why if state == "failed" else "", ""
    return failed.sentence, failed.traceback


def _attempt_reason(seen: Observation) -> str:
    """Why the attempt was asked for: by the register, the spec for a first attempt, or the claim for a replaced one."""
    said = seen.register.attempt_reason if seen.is_current else ""
    if seen.attempt == 1:
        return said or seen.spec.reason
    claimed = next(seen.of_kind(Claimed), None)
    return (claimed.reason if claimed is not None else "") or said


def _queries(seen: Observation, state: State) -> dict[str, QueryStatus]:
    found: dict[str, QueryStatus] = {}
    beat = seen.heartbeat
    if beat is not None:
        for name, query in beat.queries.items():
            is_active = query.is_active and beat.attempt == seen.attempt and state in ALIVE
            caught_up = query_caught_up(query)
            found[name] = QueryStatus(
                batch_id=query.batch_id,
                committed_at=query.committed_at,
                state_rows=query.state_rows,
                watermark_at=query.watermark_at,
                idle_triggers=query.idle_triggers,
                skipped_batches=query.skipped_batches,
                rows_behind=query.rows_behind,
                is_active=is_active,
                lags=query.lags,
                lags_at=query.lags_at,
                caught_up=caught_up.is_so if is_active else None,
                caught_up_why=caught_up.why if is_active else "",
                batches_since_snapshot=query.batches_since_snapshot,
                batch_seconds=query.batch_seconds,
                behind_age_seconds=_behind_age_seconds(seen, beat.at, query) if is_active and query.lags else None,
            )
    end = seen.drained or seen.terminal
    if isinstance(end, Drained | Stopped | Finished):
        for name, position in end.queries.items():
            found[name] = _ended(position, found.get(name))
    for name, failed in seen.failed_queries.items():
        known = found.get(name, QueryStatus(None))
        if failed.batch_id is not None and failed.batch_id > (-1 if known.batch_id is None else known.batch_id):
            known = QueryStatus(failed.batch_id, skipped_batches=known.skipped_batches)
        found[name] = dataclasses.replace(known, is_active=False, error=redacted(seen, failed.sentence))
    for name, phase in drain_phases(seen).items():
        found[name] = dataclasses.replace(found.get(name, QueryStatus(batch_id=None)), drain_phase=phase)
    return found


def _ended(position: QueryPosition, known: QueryStatus | None) -> QueryStatus:
    """The status by the end; what that does not contain is from the last heartbeat, if that was of the same batch."""
    skipped = 0 if known is None else known.skipped_batches
    if known is None or known.batch_id != position.batch_id:
        known = QueryStatus(position.batch_id)
    rows = position.state_rows_left
    return QueryStatus(
        batch_id=position.batch_id,
        committed_at=known.committed_at,
        state_rows=known.state_rows if rows is None else rows,
        watermark_at=position.watermark_at,
        skipped_batches=skipped,
    )


def _behind_age_seconds(seen: Observation, beat_at: datetime, query: QueryBeat) -> float | None:
    """How long ago the sources were asked: both times of the heartbeat are by the driver's clock."""
    if seen.heartbeat_age_seconds is None:
        return None
    before_seconds = max(0.0, (beat_at - (query.lags_at or beat_at)).total_seconds())
    return _rounded(seen.heartbeat_age_seconds + before_seconds)


def _age(now: datetime, then: datetime) -> float:
    return round(max(0.0, (now - then).total_seconds()), 3)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
