"""The state of a deployment: one pure function of (register, last event, launcher status, age of the sign of life).

``STATE_TABLE`` is that function: the first row that holds decides. docs/reference/states.md is written from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.protocol.commands import StopRequest
from airflow_streamstate.protocol.events import Failed, Fenced, Finished, QueryFailed, Stopped

State = Literal[
    "launching",
    "running",
    "degraded",
    "draining",
    "drained",
    "stopping",
    "stopped",
    "finished",
    "failed",
    "lost",
    "fenced",
]
STATES: tuple[State, ...] = (
    "launching", "running", "degraded", "draining", "drained", "stopping", "stopped", "finished", "failed", "lost",
    "fenced",
)  # fmt: skip
ALIVE: frozenset[State] = frozenset({"launching", "running", "degraded", "draining", "stopping"})
ENDED: frozenset[State] = frozenset({"drained", "stopped", "finished", "failed", "fenced"})


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        state: what holds where this row is the first that does.
        when: the condition, in words.
        holds: the condition.
    """

    state: State
    when: str
    holds: Callable[[Observation, datetime], bool]


STATE_TABLE: tuple[Row, ...] = (
    Row("drained", "some attempt said Drained", lambda seen, _: seen.drained is not None),
    Row("stopped", "the attempt said Stopped", lambda seen, _: isinstance(seen.terminal, Stopped)),
    Row("finished", "the attempt said Finished", lambda seen, _: isinstance(seen.terminal, Finished)),
    Row("failed", "the attempt said Failed", lambda seen, _: isinstance(seen.terminal, Failed)),
    Row("fenced", "the attempt said Fenced", lambda seen, _: isinstance(seen.terminal, Fenced)),
    Row("fenced", "another deployment is current", lambda seen, _: not seen.is_current),
    Row("failed", "the driver has ended without a last word", lambda seen, _: _has_ended(seen)),
    Row("failed", "the attempt was given up before a driver had claimed it", lambda seen, _: seen.is_closed),
    Row(
        "lost",
        "the driver cannot be asked about, and its sign of life is older than lost_after_seconds",
        lambda seen, now: _is_unknown(seen) and _is_silent(seen, now),
    ),
    Row("draining", "the attempt has accepted a drain, or was started for one", lambda seen, _: seen.is_draining),
    Row("stopping", "the attempt has accepted a stop", lambda seen, _: seen.accepted(StopRequest.kind) is not None),
    Row(
        "degraded",
        "the attempt said QueryFailed of a query, and has not started it again",
        lambda seen, _: bool(seen.failed_queries),
    ),
    Row("running", "the attempt said Started", lambda seen, _: seen.has_started),
    Row("launching", "otherwise", lambda _seen, _now: True),
)


def decide_state(observation: Observation, now: datetime) -> State:
    """The state of the observed deployment."""
    return deciding_row(observation, now).state


def deciding_row(observation: Observation, now: datetime) -> Row:
    """The row of the table that decides."""
    return next(row for row in STATE_TABLE if row.holds(observation, now))


def explain_state(observation: Observation, now: datetime) -> str:
    """Why it is in that state, in one lower-case sentence."""
    row = deciding_row(observation, now)
    status = observation.launch_status
    if row.state == "launching" and observation.is_unlaunched:
        return "it is recorded, but no driver was started for it yet; resume starts one"
    if row.state == "degraded":
        return failed_in_words(observation)
    if row.state == "failed" and observation.is_closed and observation.claim is not None:
        return observation.claim.agent_version
    if row.state == "failed" and status is not None and observation.terminal is None:
        said = f"{row.when}: {status.reason}" if status.reason else row.when
        return f"{said}{_perhaps_unread(observation)}"
    if row.state == "lost" and status is not None:
        return f"{row.when}: {status.reason}" if status.reason else row.when
    return row.when if row.when != "otherwise" else "its driver has not started its Spark session yet"


def failed_in_words(observation: Observation) -> str:
    """Which queries have failed, and why, in one sentence; "" where none has."""
    return "; ".join(_failed_in_words(event) for event in observation.failed_queries.values())


def _failed_in_words(event: QueryFailed) -> str:
    where = "" if event.planned_batch_id is None else f" in batch {event.planned_batch_id}"
    return f"query {event.query_name} has failed{where}: {event.in_words}"


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
    # Claimed, and no launch known here: launched by somebody else, who died before recording it.
    return seen.is_claimed if seen.launch_status is None else seen.launch_status.state == "unknown"


def _is_silent(seen: Observation, now: datetime) -> bool:
    return (now - seen.silent_since_at).total_seconds() > seen.spec.settings.lost_after_seconds
