"""Only the steps of the upgrade that is under way may move a stream; the steps of an ended upgrade may not (Law 4)."""

from __future__ import annotations

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.control.upgrades import UpgradeJournal
from airflow_streamstate.errors import ConflictError, DataError
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.register import StreamRegister


class BusyError(ConflictError):
    """Another upgrade or rollback holds the stream, or has just moved it."""


class NotHeldError(ConflictError):
    """The calling upgrade does not hold the stream: it is over, or it never held it."""


def refuse_during_upgrade(control: StreamControl, register: StreamRegister | None, upgrade_id: str | None) -> None:
    """Refuse a caller that may not move the stream.

    Args:
        register: as it was read; the caller changes it by compare-and-swap against this version.
        upgrade_id: the upgrade whose step asks; None for any other caller.

    Raises:
        BusyError: another upgrade is under way.
        NotHeldError: ``upgrade_id`` does not hold the stream, or another worker ended it meanwhile (Law 4).
    """
    if upgrade_id is None:
        refuse_another_upgrade(control, register, None)
        return
    held_by = None if register is None else register.upgrade_id
    if held_by != upgrade_id or not UpgradeJournal(control).is_under_way(upgrade_id):
        raise NotHeldError(
            "this upgrade does not hold the stream",
            stream_id=control.stream_id,
            upgrade_id=upgrade_id,
            held_by=held_by,
            next_step=f"`streamstate status {control.stream_id}` shows where it stands.",
        )


def refuse_another_upgrade(control: StreamControl, register: StreamRegister | None, upgrade_id: str | None) -> None:
    """Raise BusyError while another upgrade is under way; first ends one whose task is gone and touched nothing."""
    under_way = None if register is None else register.upgrade_id
    if under_way is None or under_way == upgrade_id:
        return
    journal = UpgradeJournal(control)
    if not journal.is_under_way(under_way) or journal.end_abandoned(under_way):
        return
    try:
        upgrade = journal.upgrade(under_way)
    except DataError:
        upgrade = None
    is_asking = upgrade is not None and upgrade.needs_approval and journal.approval(under_way) is None
    answer = ", `approve` or `reject` answers its plan" if is_asking else ""
    raise BusyError(
        f"{'a rollback' if upgrade is not None and upgrade.asked == 'rollback' else 'an upgrade'} of this stream is"
        " under way",
        stream_id=control.stream_id,
        upgrade_id=under_way,
        requested_by=None if upgrade is None else upgrade.requested_by,
        begun_at=None if upgrade is None else upgrade.created_at,
        next_step=f"`streamstate continue {control.stream_id}` finishes it, `cancel` gives it up{answer}.",
    )


def describe_upgrade(control: StreamControl, register: StreamRegister) -> str:
    """The id, phase and owner of the upgrade that holds the stream, in one line; "" for none."""
    if register.upgrade_id is None:
        return ""
    journal = UpgradeJournal(control)
    try:
        state = journal.state(register.upgrade_id)
    except DataError:
        return f"{register.upgrade_id}, which cannot be read"
    if state is None or state.is_over:
        return ""
    lease = journal.abandoned_lease(state)
    if lease is None:
        gone = ""
    else:
        gone = f"; its task is gone since {format_time(lease.until_at)}, so it no longer holds the stream"
    return f"{register.upgrade_id} {state.phase_for_people}, by {state.upgrade.requested_by}{gone}"
