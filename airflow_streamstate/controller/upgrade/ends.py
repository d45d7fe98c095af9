"""The end of an upgrade: its last step, and what it leaves behind is removed."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from typing import Any

from airflow_streamstate.control.upgrades import UpgradeState
from airflow_streamstate.controller.lineage.lineage import Lineage, lineage_of
from airflow_streamstate.controller.upgrade.downtime import downtimes_since, not_running_seconds
from airflow_streamstate.controller.upgrade.tools import Tools
from airflow_streamstate.controller.wait.known_good import mark_known_good
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol.register import StreamRegister
from airflow_streamstate.protocol.upgrades import BEFORE_THE_STOP, Phase

log = logging.getLogger(__name__)
AUDIT_TRIES = 3


def finish(tools: Tools, state: UpgradeState, phase: Phase, text: str = "", **facts: Any) -> None:
    """Record how it ended, with the chain of custody where the stream was moved, and clear up."""
    if state.phase not in BEFORE_THE_STOP:
        custody = _audited(tools)
        facts["audit_ok"] = None if custody is None else custody.is_whole
        if custody is not None:
            asked_at = tools.upgrade.created_at
            facts["not_running_seconds"] = not_running_seconds(custody.not_running, asked_at)
            facts["downtimes"] = downtimes_since(custody.downtimes, asked_at)
    if phase == "failed" and tools.upgrade.asked == "upgrade":
        text = _with_why(tools, text)
    tools.take(state, phase, text, **facts)
    now = tools.journal.need_state(tools.upgrade.upgrade_id)
    if now.is_over:  # else another worker took another step, and goes on
        _mark_known_good(tools, now)
        clear_up(tools)


def _with_why(tools: Tools, text: str) -> str:
    """With why the new version was given up, where that is not what the text says."""
    why = tools.why_given_up()
    return f"{text}; the new version was given up: {why}" if why and why not in text else text


def _mark_known_good(tools: Tools, state: UpgradeState) -> None:
    good = {"upgraded": state.last.new_deployment_id, "rolled_back": state.last.returned_deployment_id}.get(state.phase)
    if good is not None:
        mark_known_good(tools.context, tools.stream_id, good)


def clear_up(tools: Tools) -> None:
    """Remove what it made, and let go of the stream. What cannot be done now is left to the next command."""

    def let_go(register: StreamRegister) -> StreamRegister:
        return replace(register, upgrade_id=None) if register.upgrade_id == tools.upgrade.upgrade_id else register

    with suppress(StreamStateError):
        for rehearsal_id in tools.rehearsal_ids():
            with suppress(StreamStateError):
                tools.planning.give_up(tools.stream_id, rehearsal_id)
    try:
        tools.context.update_register(tools.control, let_go)
    except StreamStateError as error:
        log.info("upgrade %s is over, and stays named in the register: %s", tools.upgrade.upgrade_id, error)


def _audited(tools: Tools) -> Lineage | None:
    """The chain of custody; None where it could not be read. What was not answered is asked again."""
    found: Lineage | None = None
    for _ in range(AUDIT_TRIES):
        with suppress(StreamStateError):
            found = lineage_of(tools.context.home, tools.stream_id, every_entry=False)
            if not found.unread:
                break
    return found
