"""What the page shows: the table of streams, one stream, its timeline and its plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Literal

from airflow_streamstate.cli.look import facts_of_event
from airflow_streamstate.control.command_status import ordered_by
from airflow_streamstate.control.upgrade_journal import UpgradeJournal, UpgradeState
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.observe.handovers import last_beats, last_sign
from airflow_streamstate.controller.observe.lineage import lineage_of
from airflow_streamstate.controller.observe.observation import ALIVE, ENDED
from airflow_streamstate.controller.observe.views import QueryStatus, StreamStatus
from airflow_streamstate.controller.upgrade.upgrade_views import WORDS, UpgradeView
from airflow_streamstate.errors import DataError, DeploymentNotFoundError
from airflow_streamstate.plan.comparison import compare_deployments
from airflow_streamstate.plan.model import PlanNode, QueryPlan
from airflow_streamstate.plan.record import last_recorded_plans, recorded_plans
from airflow_streamstate.plan.replay_report import (
    VERSIONS_COLUMNS,
    ReplayedVersions,
    ReplayReport,
    replay_report,
    sample_tables,
    versions_rows,
)
from airflow_streamstate.plan.segments import blocks_of
from airflow_streamstate.protocol.codec import format_time, to_json
from airflow_streamstate.protocol.events import (
    TERMINAL_EVENTS,
    Claimed,
    Event,
    Failed,
    Finished,
    StreamCursor,
)
from airflow_streamstate.protocol.forms import View, json_of, selected
from airflow_streamstate.protocol.positions import PHASES, Heartbeat
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.protocol.scratch import Replay
from airflow_streamstate.protocol.upgrades import UpgradeStep

# The rows of the table of streams, made of what ``status`` reports. Pure.

BEGINNING_OF_TIME_YEAR = 1970
"""Spark's watermark before it has seen a row."""


@dataclass(frozen=True)
class BatchTime:
    """How long batches took when a batch had been committed."""

    batch_id: int
    seconds: float


def row_of(status: StreamStatus, times: deque[BatchTime], now: datetime) -> dict[str, object]:
    """The row of a stream.

    Args:
        times: of the polls before; the one of this poll is added where a batch was committed since.
    """
    queries = status.queries
    slowest = max(queries.values(), key=lambda query: query.batch_seconds or -1.0, default=None)
    if slowest is not None and slowest.batch_seconds is not None and slowest.batch_id is not None:
        one = BatchTime(slowest.batch_id, slowest.batch_seconds)
        if not times or times[-1].batch_id != one.batch_id:
            times.append(one)
    last = status.last_event
    return {
        **selected(status, "stream_id state why=error|why version=version_label|application deployment_id attempt"),
        "restarts": max(status.attempt - 1, 0),
        "restart_policy": status.restarts,
        "lags": lags_of(queries.values()),
        "watermark_delay_seconds": watermark_delay_seconds(status, now),
        "batch_seconds": None if slowest is None else slowest.batch_seconds,
        "batch_times": [one.seconds for one in times],
        **selected(status, "heartbeat_age_seconds snapshot_id snapshot_age_seconds"),
        "last_event": None if last is None else selected(last, "kind at"),
        **selected(status, "upgrade owner labels"),
    }


def unread_row(stream_id: str) -> dict[str, object]:
    """The row of a stream of which no more than its name is known yet."""
    return {"stream_id": stream_id, "state": "", "why": "it is being read"}


def unreadable_row(stream_id: str, why: str) -> dict[str, object]:
    """The row of a stream whose records cannot be read."""
    return {"stream_id": stream_id, "state": "unreadable", "why": why}


def lags_of(queries: Iterable[QueryStatus]) -> dict[str, int] | None:
    """By unit, how much all sources of the queries are ahead; None if none reports it."""
    found: dict[str, int] = {}
    for query in queries:
        for lag in query.lags if query.behind_age_seconds is not None else ():
            if lag.behind is not None:
                found[lag.unit] = found.get(lag.unit, 0) + lag.behind
    return found or None


def watermark_delay_seconds(status: StreamStatus, now: datetime) -> float | None:
    """How far the oldest watermark of a stream that runs is behind the clock; None without one."""
    if status.state not in ALIVE:
        return None
    marks = [query.watermark_at for query in status.queries.values() if query.watermark_at is not None]
    told = [mark for mark in marks if mark.year > BEGINNING_OF_TIME_YEAR]
    return None if not told else round((now - min(told)).total_seconds(), 3)


# The timeline of a stream: its deployments, their attempts, and what happened to them. Pure.

SILENT = "its driver has ended without a last event"


@dataclass(frozen=True)
class AttemptLane(View):
    """An attempt in the timeline.

    Attributes:
        until_at: the last sign of it; now where it runs.
        end: how it ended; None where that is not known.
        why: the error of its failure, or who ordered another end; "" where that is not known.
        reason: why it was asked for; "" for no reason given.
    """

    attempt: int
    from_at: datetime
    until_at: datetime
    is_running: bool
    end: str | None
    why: str
    reason: str


def timeline(
    specs: Sequence[DeploymentSpec],
    events: Mapping[str, Sequence[Event]],
    beats: Mapping[str, Heartbeat],
    current_id: str | None,
    *,
    is_alive: bool,
    now: datetime,
) -> dict[str, Any]:
    """Deployments with their attempts, and marks, oldest first.

    Args:
        events, beats: by deployment.
        current_id: the deployment that is current.
        is_alive: whether a driver of that one runs, as far as is known: then its last attempt ends now.
    """
    lanes, marks = [], []
    for spec in specs:
        said = list(events.get(spec.deployment_id, ()))
        signs = {name: beat for name, beat in beats.items() if name == spec.deployment_id}
        is_current = spec.deployment_id == current_id
        attempts = _attempts(said, last_beats(said, signs), is_current, now if is_alive and is_current else None)
        lanes.append(_lane(spec, attempts))
        marks += [mark for event in said if (mark := _mark(event)) is not None]
        marks += [_silent_end(spec, one) for one in attempts if one.why == SILENT]
    return {"now": format_time(now), "deployments": lanes, "marks": sorted(marks, key=lambda mark: str(mark["at"]))}


def _attempts(
    said: Sequence[Event],
    beats: Mapping[tuple[str, int], datetime],
    is_current: bool,
    until_now: datetime | None,
) -> list[AttemptLane]:
    """The attempts of a deployment; that which runs ends at ``until_now``."""
    numbers = sorted({event.attempt for event in said if event.attempt > 0})
    found = []
    for number in numbers:
        own = [event for event in said if event.attempt == number]
        end = next((event for event in own if isinstance(event, TERMINAL_EVENTS)), None)
        is_last = is_current and number == numbers[-1]
        runs_now = is_last and end is None and until_now is not None
        is_silent = end is None and not is_last
        until_at = last_sign(own, beats) if end is None else end.at
        claimed = next((event for event in own if isinstance(event, Claimed)), None)
        found.append(
            AttemptLane(
                attempt=number,
                from_at=own[0].at,
                until_at=until_now if runs_now and until_now is not None else until_at,
                is_running=runs_now,
                end="failed" if is_silent else None if end is None else _word_of(end),
                why=SILENT if is_silent else _why_ended(end, own),
                reason="" if claimed is None else claimed.reason,
            )
        )
    return found


def _word_of(end: Event) -> str:
    return "failed" if isinstance(end, Finished) and end.unfinished else end.kind.lower()


def _why_ended(end: Event | None, said: Sequence[Event]) -> str:
    """The error of a failure; who ordered another end, and why."""
    if end is None:
        return ""
    if isinstance(end, Finished):
        return end.sentence
    return end.error if isinstance(end, Failed) else ordered_by(end, said)


def _lane(spec: DeploymentSpec, attempts: list[AttemptLane]) -> dict[str, Any]:
    form = "deployment_id version=version.version_label|version.application.name **start created_at requested_by reason"
    return selected(spec, form) | {"attempts": json_of(attempts)}


def _silent_end(spec: DeploymentSpec, attempt: AttemptLane) -> dict[str, Any]:
    text = f"attempt {attempt.attempt}: {SILENT}"
    ended = selected(attempt, "at=until_at")
    return {**ended, "word": "failed", "deployment_id": spec.deployment_id, "text": text}


def _mark(event: Event) -> dict[str, Any] | None:
    if not event.mark:
        return None
    snapshot_id = getattr(event, "snapshot_id", None) or ""
    query_name = getattr(event, "query_name", "")
    text = " ".join(part for part in (str(snapshot_id), query_name) if part)
    return selected(event, "at word=mark deployment_id") | {"text": text}


# The recorded plan of a query as a graph, with that of the version before. Pure.

Change = Literal["same", "added", "removed", "changed"]
MAX_NODES = 400


@dataclass(frozen=True)
class GraphNode(View):
    """A node of a plan, compared with the version before.

    Attributes:
        was: its text in the version before, of a changed one; "" of others.
        parent: the index of the node that it feeds; None for the top.
    """

    form: ClassVar[str] = (
        "kind=node.kind text=node.text was depth=node.depth parent operator_id=node.operator_id source=node.source"
        " change"
    )

    node: PlanNode
    change: Change = "same"
    was: str = ""
    parent: int | None = None


def plan_graphs(old: Mapping[str, QueryPlan], new: Mapping[str, QueryPlan]) -> dict[str, Any]:
    """Each query of a version with its graph, and what differs from the version before.

    A plan of more than ``MAX_NODES`` nodes gets no verdict here: `plan` and each upgrade compare it.

    Args:
        old: the plans of the version before, by query; empty without one.
        new: the plans of this version.
    """
    is_small = all(len(plan.nodes) <= MAX_NODES for plan in (*old.values(), *new.values()))
    compared = compare_deployments(old, new) if old and new and is_small else None
    queries = []
    for name in sorted({*new, *(old if compared is not None else ())}):
        before, now = old.get(name), new.get(name)
        comparison = None if compared is None else compared.queries.get(name)
        queries.append(
            {
                "query": name,
                "is_gone": now is None,
                "output_mode": "" if now is None else now.output_mode,
                "trigger": "" if now is None else now.trigger,
                "sink": "" if now is None else f"{now.sink.kind} {now.sink.target}".strip(),
                "nodes": graph(None if before is None else before.nodes, () if now is None else now.nodes),
                "verdict": None if comparison is None else comparison.verdict,
                "differences": json_of(() if comparison is None else comparison.differences),
            }
        )
    return {"verdict": None if compared is None else compared.verdict, "queries": queries}


def graph(before: Sequence[PlanNode] | None, now: Sequence[PlanNode]) -> list[dict[str, Any]]:
    """The nodes of a tree, each before its children, with how it differs from the tree before.

    A removed node stays where it was.
    """
    # Cut before the comparison, not after: what is not shown is not compared.
    of_now = now[:MAX_NODES]
    marked = [GraphNode(node) for node in of_now] if before is None else _compared(before[:MAX_NODES], of_now)
    found: list[dict[str, Any]] = []
    stack: list[tuple[int, int]] = []
    for one in marked[:MAX_NODES]:
        depth_now, is_removed = one.node.depth, one.change == "removed"
        while not is_removed and stack and stack[-1][0] >= depth_now:
            stack.pop()
        above = next((number for depth, number in reversed(stack) if depth < depth_now), None)
        found.append(replace(one, parent=above).to_json())
        if not is_removed:  # nothing of this version goes through a removed one
            stack.append((depth_now, len(found) - 1))
    return found


def _compared(before: Sequence[PlanNode], now: Sequence[PlanNode]) -> list[GraphNode]:
    old, new = ([(node.kind, node.text) for node in nodes] for nodes in (before, now))
    marked: list[GraphNode] = []
    for is_same, of_old, of_new in blocks_of(old, new):
        gone, come = list(before[of_old]), list(now[of_new])
        if is_same:
            marked += [GraphNode(node) for node in come]
            continue
        for node in come:
            was = next((one for one in gone if one.kind == node.kind), None)
            if was is not None:
                gone.remove(was)
            marked.append(GraphNode(node, "added") if was is None else GraphNode(node, "changed", was.text))
        marked += [GraphNode(node, "removed") for node in gone]
    return marked


LAST_DEPLOYMENTS = 40
LAST_UPGRADES = 10
LAST_DEPLOYMENTS_OF_EVENTS = 10
LAST_EVENTS = 500
LAST_REPLAYS = 20
LOG_TAIL_BYTES = 65_536


@dataclass(frozen=True)
class Asked:
    """What a request asks for; of a stream its current deployment and attempt where it names no other.

    Attributes:
        rehearsal_id: a plan, whose version no deployment runs.
        upgrade_id: an upgrade that is wanted in addition to the last ones.
    """

    stream_id: str
    deployment_id: str | None = None
    attempt: int | None = None
    rehearsal_id: str | None = None
    upgrade_id: str | None = None


@dataclass(frozen=True)
class PagePart:
    """A part of the page.

    Attributes:
        read: how it is read.
        seconds: for how long one reading is shared.
        has_rows: it has rows of data, or what drivers logged: it needs the right to read the logs of tasks.
    """

    read: Callable[[Controller, Asked], dict[str, Any]]
    seconds: float
    has_rows: bool


def status_part(client: Controller, asked: Asked) -> dict[str, Any]:
    """The state of the stream, as ``streamstate status --json`` reports it, with lag and delay as in the table."""
    stream_id = asked.stream_id
    status = client.status(stream_id)
    beat = client.home.control(stream_id).heartbeat(status.deployment_id)
    is_told = beat is not None and beat.attempt == status.attempt and status.state in ALIVE
    rates = beat.queries if beat is not None and is_told else {}
    plain = status.to_json()
    queries: Any = plain["queries"]
    for name, query in queries.items():
        query |= selected(rates.get(name), "input_rows_per_second processed_rows_per_second")
    now = client.clock.now()
    return {
        **plain,
        "stop_reason": _stop_reason(client, status),
        "is_alive": status.state in ALIVE,
        "lags": lags_of(status.queries.values()),
        "watermark_delay_seconds": watermark_delay_seconds(status, now),
        "looked_at": format_time(now),
    }


def _stop_reason(client: Controller, status: StreamStatus) -> str:
    """Who ended a stream that has ended, and why; "" where nobody did."""
    if status.state not in ENDED:
        return ""
    said = [entry.event for entry in client.events(status.stream_id, status.deployment_id)]
    end = next((event for event in reversed(said) if isinstance(event, TERMINAL_EVENTS)), None)
    order = "" if end is None else ordered_by(end, said)
    return f"{status.state} {order}" if order else ""


def timeline_part(client: Controller, asked: Asked) -> dict[str, Any]:
    """The last deployments with what happened to them, and the downtime at each handover."""
    stream_id = asked.stream_id
    control = client.home.need_stream(stream_id)
    register = control.need_register().value
    specs = []
    for deployment_id in control.deployment_ids()[-LAST_DEPLOYMENTS:]:
        try:
            specs.append(control.spec(deployment_id))
        except (DeploymentNotFoundError, DataError):
            continue  # its deploy died, or its record is damaged: the lineage names that one
    ids = [spec.deployment_id for spec in specs]
    events = {one: [entry.event for entry in client.events(stream_id, one) if entry.event is not None] for one in ids}
    beats = {one: beat for one in ids if (beat := control.heartbeat(one)) is not None}
    is_alive = client.status(stream_id).state in ALIVE
    found = timeline(specs, events, beats, register.deployment_id, is_alive=is_alive, now=client.clock.now())
    lineage = lineage_of(client.home, stream_id, ids[0] if ids else None, every_entry=False).to_json()
    return {**found, "downtimes": lineage["downtimes"], "not_running": lineage["not_running"]}


def snapshots_part(client: Controller, asked: Asked) -> dict[str, Any]:
    """The complete snapshots, newest first, with what keeps them."""
    stream_id = asked.stream_id
    rows = [
        selected(kept.manifest, "snapshot_id kind=snapshot_kind taken_at files=files_count bytes=size_bytes")
        | selected(kept, "shared_bytes is_pinned is_known_good")
        | {"batches": {name: query.position.batch_id for name, query in kept.manifest.queries.items()}}
        for kept in client.kept_snapshots(stream_id)
    ]
    return {"snapshots": rows[::-1], "unreadable": client.snapshots.unreadable(stream_id)}


def plan_part(client: Controller, asked: Asked) -> dict[str, Any]:
    """The plan of a deployment (by default the current one) or of a rehearsal, with that of the deployment before."""
    control = client.home.need_stream(asked.stream_id)
    if asked.rehearsal_id is not None:
        run = control.scratch_run(asked.rehearsal_id)
        planned = recorded_plans(control, asked.rehearsal_id)
        of = None if run is None else run.deployment_id
        running = {} if of is None else last_recorded_plans(control, of, tuple(planned))
        found = {"deployment_id": None, "rehearsal_id": asked.rehearsal_id, "before": of}
        return {**found, **plan_graphs(running if planned else {}, planned)}
    shown = asked.deployment_id or str(control.need_register().value.deployment_id)
    spec = control.spec(shown)
    new, before = recorded_plans(control, shown), spec.start.predecessor_id
    old = {} if before is None else last_recorded_plans(control, before, tuple(new))
    return {"deployment_id": shown, "rehearsal_id": None, "before": before, **plan_graphs(old, new)}


def lineage_part(client: Controller, asked: Asked) -> dict[str, Any]:
    """The lineage, as ``streamstate audit --json`` reports it."""
    return lineage_of(client.home, asked.stream_id).to_json()


def events_part(client: Controller, asked: Asked) -> dict[str, Any]:
    """The journal of a deployment, newest first, with the facts that the shell prints."""
    rows = []
    for entry in client.events(asked.stream_id, asked.deployment_id)[-LAST_EVENTS:]:
        if entry.event is None:
            rows.append({"number": entry.number, "kind": "unreadable", "facts": {"problem": str(entry.problem)}})
            continue
        plain = to_json(entry.event)
        facts = dict(facts_of_event(plain))
        kept = {"number": entry.number, "kind": plain["kind"], "at": plain["at"], "attempt": entry.event.attempt}
        rows.append({**kept, "facts": facts})
    return {"events": rows[::-1]}


def stream_events_part(client: Controller, asked: Asked) -> dict[str, Any]:
    """What happened to the stream over its last deployments, newest first, as DAGs receive it.

    An event without a time is none of a journal: it is what is seen now.
    """
    control, began = client.home.need_stream(asked.stream_id), client.clock.now()
    ids = control.deployment_ids()[-LAST_DEPLOYMENTS_OF_EVENTS:]
    first = ids[0] if ids else str(control.need_register().value.deployment_id)
    found, _ = client.stream_events.since(asked.stream_id, StreamCursor(first, 0, 0, has_ended=False))
    rows = [{**one.to_json(), **({"at": None} if one.at >= began else {})} for one in found]
    rows.sort(key=lambda row: row["at"] or "9")
    return {"events": rows[::-1][:LAST_EVENTS]}


def log_part(client: Controller, asked: Asked) -> dict[str, Any]:
    """The end of a driver's log, secrets hidden."""
    status = client.status(asked.stream_id, asked.deployment_id)
    text = client.logs(asked.stream_id, status.deployment_id, asked.attempt, tail_bytes=LOG_TAIL_BYTES)
    return {"deployment_id": status.deployment_id, "attempt": asked.attempt or status.attempt, "log": text}


def upgrades_part(client: Controller, asked: Asked) -> dict[str, Any]:
    """The last upgrades and rollbacks, newest first, each with its steps; and the phases that a handover has."""
    stream_id = asked.stream_id
    journal = UpgradeJournal(client.home.need_stream(stream_id))
    found: list[tuple[UpgradeState, list[UpgradeStep]]] = []
    for upgrade_id in journal.ids():
        try:
            state = journal.state(upgrade_id)
            steps = journal.steps(upgrade_id)
        except DataError:
            continue
        if state is not None:
            found.append((state, steps))
    found.sort(key=lambda one: one[0].upgrade.created_at, reverse=True)
    now = client.clock.now()
    shown = [one for at, one in enumerate(found) if at < LAST_UPGRADES or one[0].upgrade.upgrade_id == asked.upgrade_id]
    upgrades = [_upgrade_json(journal, *each, now) for each in shown]
    return {"upgrades": upgrades, "phases": dict(PHASES)}


def _upgrade_json(
    journal: UpgradeJournal, state: UpgradeState, steps: list[UpgradeStep], now: datetime
) -> dict[str, Any]:
    view, upgrade = UpgradeView(state), state.upgrade
    entered = [step for before, step in zip((None, *steps), steps, strict=False) if _is_new_phase(before, step)]
    ends = [*(step.taken_at for step in entered[1:]), steps[-1].taken_at if state.is_over else now]
    approval = journal.approval(upgrade.upgrade_id)
    return {
        **view.to_json(),
        **selected(
            upgrade,
            "asked created_at requested_by asked_reason=reason needs_approval=terms.waits_for_approval"
            " approved_by_another=terms.approved_by_another",
        ),
        "awaits_approval": upgrade.terms.waits_for_approval and state.phase == "planned" and approval is None,
        **selected(view, "rehearsal_id=state.rehearsal_id seconds=downtime_seconds"),
        "steps": [
            {"phase": step.phase, "words": WORDS[step.phase]}
            | selected(step, "text at=taken_at")
            | {"seconds": round((end - step.taken_at).total_seconds(), 3)}
            for step, end in zip(entered, ends, strict=True)
        ],
    }


def _is_new_phase(before: UpgradeStep | None, step: UpgradeStep) -> bool:
    return before is None or before.phase != step.phase


def replay_part(client: Controller, asked: Asked) -> dict[str, Any]:
    """The newest replay that has ended, with that of the recorded version where both ran; None without one."""
    reports = _replays(client, asked.stream_id)
    if not reports:
        return {"replay": None}
    report, compared_with, _ = reports[0]
    old = next((one for one, _, out in reports if out == compared_with), None) if compared_with else None
    queries = {name: selected(query, "outcome error batches") for name, query in report.queries.items()}
    shown = selected(report, "replay_id deployment_id outcome error seconds notes") | {"queries": queries}
    found: dict[str, Any] = {"replay": shown, "columns": [], "rows": [], "samples": {}}
    if old is None:
        return found
    both = ReplayedVersions(old, report)
    samples: dict[str, Any] = {}
    for name, _, batch in both.pairs:
        samples |= {title: json_of(table) for title, table in sample_tables(name, batch).items()}
    titles = ["query", "batch", *(title for title, _ in VERSIONS_COLUMNS)]
    speed = both.speed
    return {
        **found,
        "columns": titles,
        "rows": versions_rows(both),
        "samples": samples,
        "speed": None if speed is None else str(speed),
    }


def _replays(client: Controller, stream_id: str) -> list[tuple[ReplayReport, str, str]]:
    """Replays that have ended, newest first: the report, what it is compared with, and its folder."""
    control = client.home.need_stream(stream_id)
    found = []
    for run_id in control.scratch_ids():
        try:
            run, verdict = control.scratch_run(run_id), control.verdict(run_id)
        except DataError:
            continue
        if run is None or not isinstance(run.what, Replay) or verdict is None:
            continue
        found.append((verdict.given_at, replay_report(run, verdict), run.what))
    found.sort(key=lambda one: one[0], reverse=True)
    return [(report, replay.compared_with, replay.out) for _, report, replay in found[:LAST_REPLAYS]]


PARTS: Mapping[str, PagePart] = {
    "stream": PagePart(status_part, 3.0, has_rows=False),
    "timeline": PagePart(timeline_part, 10.0, has_rows=False),
    "upgrades": PagePart(upgrades_part, 3.0, has_rows=False),
    "plan": PagePart(plan_part, 10.0, has_rows=False),
    "snapshots": PagePart(snapshots_part, 10.0, has_rows=False),
    "lineage": PagePart(lineage_part, 30.0, has_rows=False),
    "replay": PagePart(replay_part, 10.0, has_rows=True),
    "stream_events": PagePart(stream_events_part, 10.0, has_rows=False),
    "log": PagePart(log_part, 3.0, has_rows=True),
    "events": PagePart(events_part, 3.0, has_rows=True),
}
"""By name. What reads the logs of all deployments is shared for longer."""
