"""Drivers and queries that died between two looks, and that another attempt or deployment has replaced since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.errors import DataError, DeploymentNotFoundError, InvalidRequestError
from airflow_streamstate.protocol.alerts import Told
from airflow_streamstate.protocol.commands import BY_THE_DRIVER
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import (
    TERMINAL_EVENTS,
    Accepted,
    Claimed,
    Failed,
    Fenced,
    QueryFailed,
    QueryStarted,
    Stopped,
)
from airflow_streamstate.protocol.ids import order_of, upgrade_of_rehearsal

MOST_DEPLOYMENTS = 20
"""So many deployments since the last look are looked through, the newest ones."""


@dataclass(frozen=True)
class Deaths:
    """What died since the last look, and is replaced.

    Attributes:
        driver: the last driver, in one line; "" for none.
        queries: by name, why each query failed while the others ran.
    """

    driver: str = ""
    queries: Mapping[str, str] = field(default_factory=dict)


NONE = Deaths()


def deaths_since(controller: Controller, told: Told, seen: Observation) -> Deaths:
    """What died from the attempt that was current at the last look to the one before the current one.

    A new version that its upgrade gave up is left out: that is told as the failure of the upgrade.
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
                driver = f"attempt {attempt} of {deployment_id} has ended since the last look: {why}"
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
        return True  # it was never begun, or is pruned
    except (DataError, InvalidRequestError):
        return False


def why_dead(events: Sequence[Event], *, is_whole: bool) -> str:
    """Why the driver of an attempt that is not current any more died, by the events of that attempt; "" where it ended
    as it was told to, or never was, or where its end may be among events that cannot be read (not ``is_whole``)."""
    end = next((event for event in reversed(events) if isinstance(event, TERMINAL_EVENTS)), None)
    if end is None:
        was_there = any(isinstance(event, Claimed) for event in events)
        return "without a last word" if was_there and is_whole else ""
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
