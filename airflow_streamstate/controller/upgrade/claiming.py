"""An upgrade takes the stream: of two at once, one comes first, and the other is told to which it lost."""

from __future__ import annotations

from dataclasses import replace

from airflow_streamstate.control.upgrades import LOST_CLAIM, UpgradeState
from airflow_streamstate.controller.decide import refuse_other_intent
from airflow_streamstate.controller.retired import refuse_retired
from airflow_streamstate.controller.under_upgrade import BusyError, refuse_another_upgrade
from airflow_streamstate.controller.upgrade.ends import finish
from airflow_streamstate.controller.upgrade.tools import Tools
from airflow_streamstate.errors import ConflictError
from airflow_streamstate.protocol.register import StreamRegister
from airflow_streamstate.protocol.upgrades import Cancellation


def claim(tools: Tools, state: UpgradeState) -> None:
    """Name the upgrade in the register, before any other step of it.

    Raises:
        BusyError: another is under way, and whose; or the stream was moved since this one was asked for. It is refused
            then.
        ConflictError: the stream is retired, or is being deployed.
    """
    upgrade_id = tools.upgrade.upgrade_id

    def take(register: StreamRegister) -> StreamRegister:
        if register.upgrade_id != upgrade_id:
            _refuse_moved(tools, register)
        return replace(register, upgrade_id=upgrade_id)

    try:
        tools.context.update_register(tools.control, take)
    except ConflictError as error:
        if isinstance(error, BusyError):
            tools.journal.cancel(_lost(tools))
        finish(tools, state, "refused", str(error))
        raise


def _lost(tools: Tools) -> Cancellation:
    """Why it is over: the same request may be begun anew when the other is over, under another request id."""
    clock, by = tools.context.clock, tools.context.requested_by
    upgrade_id = tools.upgrade.upgrade_id
    return Cancellation(tools.stream_id, upgrade_id, "finish", by, clock.now(), clock.new_uuid(), reason=LOST_CLAIM)


def _refuse_moved(tools: Tools, register: StreamRegister) -> None:
    upgrade = tools.upgrade
    refuse_retired(register)
    refuse_another_upgrade(tools.control, register, upgrade.upgrade_id)
    refused = refuse_other_intent(register, upgrade.request_id, tools.context.clock.now())
    if refused is not None:
        raise refused.error
    if upgrade.to_snapshot_id is not None:
        return  # it is older than whatever is current
    before = register.deployment_id
    if upgrade.asked == "rollback":
        before = tools.control.spec(str(before)).start.predecessor_id
    if before != upgrade.old_deployment_id:
        raise BusyError(
            "somebody else moved this stream since the upgrade was asked for",
            stream_id=tools.stream_id,
            upgrade_id=upgrade.upgrade_id,
            deployment_id=register.deployment_id,
            moved_by=register.updated_by,
            next_step="Look whether the upgrade is still wanted, and ask for it anew.",
        )
