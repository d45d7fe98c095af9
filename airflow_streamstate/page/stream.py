"""What the page of one stream shows: each part by one function over a client of its home. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from airflow_streamstate.cli.look import facts_of_event
from airflow_streamstate.control.command_status import ordered_by
from airflow_streamstate.control.upgrades import UpgradeJournal, UpgradeState
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.lineage.lineage import lineage_of
from airflow_streamstate.controller.observe.observation import ALIVE, ENDED
from airflow_streamstate.controller.observe.views import StreamStatus
from airflow_streamstate.controller.upgrade.views import WORDS, UpgradeView
from airflow_streamstate.errors import DataError, DeploymentNotFoundError
from airflow_streamstate.page.plans import plan_graphs
from airflow_streamstate.page.rows import lags_of, watermark_delay_seconds
from airflow_streamstate.page.timeline import timeline
from airflow_streamstate.plan.recorded import last_recorded_plans, recorded_plans
from airflow_streamstate.plan.replay_report import (
    VERSIONS_COLUMNS,
    ReplayedVersions,
    ReplayReport,
    replay_report,
    sample_tables,
    versions_rows,
)
from airflow_streamstate.protocol.codec import format_time, to_json
from airflow_streamstate.protocol.downtimes import PHASES, downtime_seconds
from airflow_streamstate.protocol.events import TERMINAL_EVENTS
from airflow_streamstate.protocol.scratch import Replay
from airflow_streamstate.protocol.stream_events import StreamCursor
from airflow_streamstate.protocol.upgrades import UpgradeStep
from airflow_streamstate.protocol.views import selected

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
        upgrade_id: an upgrade that is wanted beside the last ones.
    """

    stream_id: str
    deployment_id: str | None = None
    attempt: int | None = None
    rehearsal_id: str | None = None
    upgrade_id: str | None = None


@dataclass(frozen=True)
class Part:
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
    """Where the stream stands, as ``streamstate status --json`` tells it, with lag and delay as the table has them."""
    stream_id = asked.stream_id
    status = client.status(stream_id)
    beat = client.home.control(stream_id).heartbeat(status.deployment_id)
    is_told = beat is not None and beat.attempt == status.attempt and status.state in ALIVE
    rates = beat.queries if beat is not None and is_told else {}
    plain = status.to_json()
    queries: Any = plain["queries"]
    for name, query in queries.items():
        one = rates.get(name)
        query["input_rows_per_second"] = None if one is None else one.input_rows_per_second
        query["processed_rows_per_second"] = None if one is None else one.processed_rows_per_second
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
            continue  # its deploy died, or its record is damaged: the custody names that one
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
    """The plan of a deployment or of a rehearsal, by default of the current deployment, beside that of the deployment
    before."""
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


def custody_part(client: Controller, asked: Asked) -> dict[str, Any]:
    """The chain of custody, as ``streamstate audit --json`` tells it."""
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
    """What happened to the stream over its last deployments, newest first, as DAGs are told it.

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
        "rehearsal_id": state.rehearsal_id,
        "seconds": downtime_seconds(view.downtimes),
        "steps": [
            {
                "phase": step.phase,
                "words": WORDS[step.phase],
                "text": step.text,
                "at": format_time(step.taken_at),
                "seconds": round((end - step.taken_at).total_seconds(), 3),
            }
            for step, end in zip(entered, ends, strict=True)
        ],
    }


def _is_new_phase(before: UpgradeStep | None, step: UpgradeStep) -> bool:
    return before is None or before.phase != step.phase


def replay_part(client: Controller, asked: Asked) -> dict[str, Any]:
    """The newest replay that is over, beside that of the recorded version where both ran; None where there is none."""
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
        samples |= {title: asdict(table) for title, table in sample_tables(name, batch).items()}
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
    """Replays that are over, newest first: the report, what it is compared with, and its folder."""
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


PARTS: Mapping[str, Part] = {
    "stream": Part(status_part, 3.0, has_rows=False),
    "timeline": Part(timeline_part, 10.0, has_rows=False),
    "upgrades": Part(upgrades_part, 3.0, has_rows=False),
    "plan": Part(plan_part, 10.0, has_rows=False),
    "snapshots": Part(snapshots_part, 10.0, has_rows=False),
    "custody": Part(custody_part, 30.0, has_rows=False),
    "replay": Part(replay_part, 10.0, has_rows=True),
    "stream_events": Part(stream_events_part, 10.0, has_rows=False),
    "log": Part(log_part, 3.0, has_rows=True),
    "events": Part(events_part, 3.0, has_rows=True),
}
"""By name. What reads the logs of all deployments is shared for longer."""
