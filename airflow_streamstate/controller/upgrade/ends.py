"""The end of an upgrade: its last step with what it cost, and the removal of what it left behind."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from airflow_streamstate.control.upgrades import UpgradeState
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.lineage.downtimes import downtimes
from airflow_streamstate.controller.lineage.lineage import Lineage, lineage_of
from airflow_streamstate.controller.lineage.not_running import NotRunning, not_running
from airflow_streamstate.controller.upgrade.tools import Tools
from airflow_streamstate.controller.wait.known_good import mark_known_good
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol.downtimes import Downtime
from airflow_streamstate.protocol.ids import order_of
from airflow_streamstate.protocol.register import StreamRegister
from airflow_streamstate.protocol.upgrades import BEFORE_THE_STOP, Phase, UpgradeResult

log = logging.getLogger(__name__)
AUDIT_TRIES = 3


def finish(
    tools: Tools, state: UpgradeState, phase: Phase, text: str = "", result: UpgradeResult | None = None
) -> None:
    """Record the last step, with the lineage and the downtime where the stream was moved, and clear up.

    Args:
        result: ``state.result_so_far`` and what is known more; None for nothing more.
    """
    result = result or state.result_so_far
    if state.phase not in BEFORE_THE_STOP:
        lineage = _audited(tools)
        if lineage is not None:
            asked_at = tools.upgrade.created_at
            seconds = not_running_seconds(lineage.not_running, asked_at)
            result = replace(
                result,
                audit_ok=lineage.is_whole,
                not_running_seconds=result.not_running_seconds if seconds is None else seconds,
                downtimes=downtimes_since(lineage.downtimes, asked_at),
            )
    if phase == "refused":
        result = replace(result, stream_state=_state_of_stream(tools))
    if phase == "failed" and tools.upgrade.asked == "upgrade":
        why = tools.why_given_up()
        text = f"{text}; the new version was given up: {why}" if why and why not in text else text
    tools.take(state, phase, text, result)
    now = tools.journal.need_state(tools.upgrade.upgrade_id)
    if not now.is_over:
        return  # another worker recorded another step, and goes on
    good_id = {"upgraded": now.new_deployment_id, "rolled_back": now.returned_deployment_id}.get(now.phase)
    if good_id is not None:
        mark_known_good(tools.context, tools.stream_id, good_id)
    clear_up(tools)


def _state_of_stream(tools: Tools) -> str | None:
    """The state in which a refusal leaves the stream; None where it cannot be read."""
    with suppress(StreamStateError):
        register = tools.control.need_register().value
        if register.deployment_id is not None:
            return tools.context.observer.observe(tools.stream_id, register.deployment_id).state
    return None


def clear_up(tools: Tools) -> None:
    """Remove the upgrade's rehearsals, and let go of the stream. The next command does what fails now."""

    def let_go(register: StreamRegister) -> StreamRegister:
        return replace(register, upgrade_id=None) if register.upgrade_id == tools.upgrade.upgrade_id else register

    with suppress(StreamStateError):
        for rehearsal_id in tools.rehearsal_ids():
            with suppress(StreamStateError):
                tools.rehearsals.give_up(tools.stream_id, rehearsal_id)
    try:
        tools.context.update_register(tools.control, let_go)
    except StreamStateError as error:
        log.info("upgrade %s is over, but the register still names it: %s", tools.upgrade.upgrade_id, error)


def _audited(tools: Tools) -> Lineage | None:
    """The lineage, retried while a part of it is unread; None where it could not be read."""
    found: Lineage | None = None
    for _ in range(AUDIT_TRIES):
        with suppress(StreamStateError):
            found = lineage_of(tools.context.home, tools.stream_id, every_entry=False)
            if not found.unread:
                break
    return found


def not_running_seconds(found: Sequence[NotRunning], asked_at: datetime) -> float | None:
    """The seconds without a query in all periods that ended after an upgrade was requested; None for no period.

    Includes the way back from a version that failed, and the time before the request of a stream that did not run; but
    not of one that was between two runs, in which nothing was to run.
    """
    moved = [
        (one.until_at - (max(one.from_at, asked_at) if one.between_runs else one.from_at)).total_seconds()
        for one in found
        if one.until_at and one.until_at > asked_at
    ]
    return round(sum(moved), 3) if moved else None


def downtimes_since(found: Sequence[Downtime], asked_at: datetime) -> tuple[Downtime, ...]:
    """The downtimes that ended after an upgrade was requested, or have not ended.

    One whose end is not recorded counts by its last known moment.
    """
    return tuple(one for one in found if _last_known_at(one, asked_at) >= asked_at)


def _last_known_at(one: Downtime, now: datetime) -> datetime:
    if one.until_at is not None or not one.has_ended:
        return one.until_at or now
    return max((mark.at for mark in one.marks), default=one.from_at)


def cost_until_now(
    home: Home, stream_id: str, old_deployment_id: str, asked_at: datetime
) -> tuple[float | None, tuple[Downtime, ...]]:
    """``not_running_seconds`` and ``downtimes_since`` of an upgrade that is under way.

    Args:
        old_deployment_id: the current deployment at the time of the request.
        asked_at: the time of the request.
    """
    control = home.control(stream_id)
    ids = [one for one in control.deployment_ids() if order_of(one) >= order_of(old_deployment_id)]
    said = [entry.event for one in ids for entry in control.journal(one).events() if entry.event is not None]
    beats = {one: beat for one in ids if (beat := control.heartbeat(one)) is not None}
    seconds = not_running_seconds(not_running(said, beats), asked_at)
    return seconds, downtimes_since(downtimes(home, control, ids, said, beats), asked_at)
