"""Plans in a home: a query's plan is recorded before each start of it, where it differs from the one before.

A record is created once, so that no plan that a deployment ever ran is lost; a restarted script with another plan gets
the next number.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import DataError, DeploymentNotFoundError, ObjectExistsError
from airflow_streamstate.plan.model import QueryPlan, RecordedPlan
from airflow_streamstate.protocol import layout
from airflow_streamstate.store.transfer import keys_below

_LAST_BATCH = 2**63 - 1


def record_plan(control: StreamControl, record: RecordedPlan) -> RecordedPlan:
    """Record a plan under the next free number from ``record.number``, unless it is the newest one already.

    Returns the stored record.

    Raises:
        UnavailableError, OutcomeUnknownError: the store does not answer.
    """
    deployment_id, name = record.deployment_id, record.query_name
    number = record.number
    while True:
        if number > 1 or record.attempt > 1:
            keys = keys_below(control.cells.store, layout.plans_prefix(control.stream_id, deployment_id, name))
            taken = [found for found in map(layout.number_of, keys) if found is not None]
            number = max(taken, default=0) + 1
            before = _read(control, deployment_id, layout.plan_key(control.stream_id, deployment_id, name, number - 1))
            if before is not None and _is_same(before.plan, record.plan):
                return before
        body = replace(record, number=number)
        try:
            control.cells.create(layout.plan_key(control.stream_id, deployment_id, name, number), body)
            return body
        except ObjectExistsError:
            number += 1


def recorded_plans(control: StreamControl, deployment_id: str) -> dict[str, QueryPlan]:
    """The newest readable plan of each query of a deployment, by name (Law 7).

    Raises:
        UnavailableError: the store does not answer.
        HomeAwayError: the home is not there, so that it is unknown what is recorded (Law 17).
    """
    newest: dict[str, RecordedPlan] = {}
    keys = keys_below(control.cells.store, layout.plans_prefix(control.stream_id, deployment_id))
    if not keys:
        control.presence.need()  # an empty list is believed for some seconds; a change would be compared with nothing
    for key in keys:
        found = _read(control, deployment_id, key)
        if found is not None and (found.query_name not in newest or newest[found.query_name].number < found.number):
            newest[found.query_name] = found
    return {name: newest[name].plan for name in sorted(newest)}


def last_recorded_plans(control: StreamControl, deployment_id: str, names: Collection[str]) -> dict[str, QueryPlan]:
    """As ``recorded_plans``; while one of ``names`` has none, because its start was refused, also those of earlier
    deployments: the newest of each.

    Raises:
        UnavailableError: the store does not answer.
    """
    found: dict[str, QueryPlan] = {}
    next_id: str | None = deployment_id
    seen: set[str] = set()
    while next_id is not None and next_id not in seen:
        seen.add(next_id)
        found = {**recorded_plans(control, next_id), **found}
        if all(name in found for name in names):
            break
        try:
            next_id = control.spec(next_id).start.predecessor_id
        except (DeploymentNotFoundError, DataError):
            break
    return found


def plans_behind(
    control: StreamControl, deployment_id: str, query_name: str, batch_id: int
) -> tuple[RecordedPlan, ...]:
    """Whose state a start continues: the plan that made this committed batch of a query, then the plans that were about
    to continue it since and committed nothing, oldest first; () where the first is not known, and of a seed's batch.

    A start that was refused has recorded no plan.

    Args:
        deployment_id: the deployment that holds the state, or is about to start with it.

    Raises:
        UnavailableError: the store does not answer.
    """
    since: tuple[RecordedPlan, ...] = ()
    next_id: str | None = deployment_id
    seen: set[str] = set()
    while next_id is not None and next_id not in seen:
        seen.add(next_id)
        found = _records(control, next_id, query_name)
        made = sum(each.first_batch_id <= batch_id for each in found)
        if made:
            return (*found[made - 1 :], *since)
        since = (*found, *since)
        next_id = _state_from(control, next_id, query_name)
    return ()


def plan_behind(control: StreamControl, deployment_id: str, query_name: str) -> QueryPlan | None:
    """The newest plan of a query in a deployment; where its starts were refused, that of the deployment whose state it
    would continue. None where none is recorded, and where it began with no state.

    Raises:
        UnavailableError: the store does not answer.
    """
    behind = plans_behind(control, deployment_id, query_name, _LAST_BATCH)
    return behind[0].plan if behind else None


def _records(control: StreamControl, deployment_id: str, query_name: str) -> tuple[RecordedPlan, ...]:
    """The readable plans of a query of a deployment, oldest first."""
    keys = keys_below(control.cells.store, layout.plans_prefix(control.stream_id, deployment_id, query_name))
    found = (_read(control, deployment_id, key) for key in keys)
    return tuple(sorted((each for each in found if each is not None), key=lambda each: each.number))


def _state_from(control: StreamControl, deployment_id: str, query_name: str) -> str | None:
    """The deployment whose state of a query this one started with; None for none, and where it is not known."""
    try:
        start = control.spec(deployment_id).start
    except (DeploymentNotFoundError, DataError):
        return None
    if start.snapshot_id is None or query_name in start.offsets or start.begins_at is not None:
        return None
    manifest = control.readable_manifest(start.snapshot_id)
    if manifest is None:
        return start.predecessor_id if start.mode == "restore" else None
    known = manifest.queries.get(query_name)
    return None if known is None or known.drained else manifest.deployment_id


def _read(control: StreamControl, deployment_id: str, key: str) -> RecordedPlan | None:
    with suppress(DataError):
        return control.cells.value(key, RecordedPlan, stream_id=control.stream_id, deployment_id=deployment_id)
    return None


def _is_same(one: QueryPlan, other: QueryPlan) -> bool:
    """Equal apart from what the log pins: for a first start nothing, for a later one the first one's settings."""
    return replace(one, pinned={}) == replace(other, pinned={})
