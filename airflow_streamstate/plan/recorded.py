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
    """
    newest: dict[str, RecordedPlan] = {}
    for key in keys_below(control.cells.store, layout.plans_prefix(control.stream_id, deployment_id)):
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


def _read(control: StreamControl, deployment_id: str, key: str) -> RecordedPlan | None:
    with suppress(DataError):
        return control.cells.value(key, RecordedPlan, stream_id=control.stream_id, deployment_id=deployment_id)
    return None


def _is_same(one: QueryPlan, other: QueryPlan) -> bool:
    """Equal apart from what the log pins: for a first start nothing, for a later one the first one's settings."""
    return replace(one, pinned={}) == replace(other, pinned={})
